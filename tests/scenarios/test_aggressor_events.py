"""What an aggressor says, as the host hears it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scenarios.events import LEAST_BEFORE_S, AggressorLog, Progress, work_at
from suite.errors import MeasurementError


class Clock:
    """Goes on by a second with every look."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def ready() -> list[bool]:
    return []


@pytest.fixture
def log(ready: list[bool]) -> AggressorLog:
    return AggressorLog(ready=lambda: ready.append(True), clock=Clock())


def line(event: str, **fields: object) -> str:
    return json.dumps({"event": event, "t": 1.0, **fields})


def begin(log: AggressorLog) -> AggressorLog:
    for said in (line("started", pid=7), line("environment", environment={}), line("measuring", unit="bytes")):
        log.hear(said)
    return log


def progress(log: AggressorLog, works: Iterator[float] | list[float]) -> None:
    for steps, work in enumerate(works, start=1):
        log.hear(line("progress", steps=steps, work=work))


def test_a_victim_is_launched_when_the_aggressor_has_worked_for_a_while(log: AggressorLog, ready: list[Any]) -> None:
    begin(log)
    for steps, enough in ((1, []), (2, [True])):
        log.hear(line("progress", steps=steps, work=10.0 * steps))
        assert ready == enough
    assert log.progress[-1].arrived_s - log.progress[0].arrived_s >= LEAST_BEFORE_S


def test_its_speed_is_that_between_two_moments_of_the_hosts_clock(log: AggressorLog) -> None:
    progress(begin(log), [10.0, 20.0, 60.0])
    begin_s = log.progress[0].arrived_s
    assert log.per_s(begin_s, begin_s + 2) == pytest.approx(10.0)
    assert log.per_s(begin_s + 1.5, begin_s + 3) == pytest.approx((60 - 15) / 1.5)


def test_of_moments_that_it_did_not_tell_of_nothing_is_known(log: AggressorLog) -> None:
    progress(begin(log), [10.0, 20.0])
    begin_s = log.progress[0].arrived_s
    assert log.per_s(begin_s, begin_s + 2.5) is None
    assert log.per_s(begin_s - 1, begin_s + 1) is None
    assert log.per_s(begin_s + 1, begin_s + 1) is None
    uncounted = [Progress(0.0, 0, 0.0), Progress(1.0, 4, None)]
    assert (work_at(uncounted, 0.5), work_at(uncounted, 0.0)) == (None, 0.0)


def test_what_comes_in_the_wrong_order_is_refused(log: AggressorLog) -> None:
    with pytest.raises(MeasurementError, match="the worker said in the phase 'launching'"):
        log.hear(line("measuring", unit="bytes"))
    begin(log).hear(line("measured", steps=0, work=0.0))
    with pytest.raises(MeasurementError, match="'measured'"):
        log.hear(line("progress", steps=1, work=1.0))


@pytest.mark.parametrize("said", ["no json", "[]", '{"event": "started"}', line("progress", steps="many", work=1.0)])
def test_what_is_no_event_of_it_is_refused(log: AggressorLog, said: str) -> None:
    if "progress" in said:
        begin(log)
    with pytest.raises(MeasurementError) as caught:
        log.hear(said)
    assert caught.value.kind == "protocol"
    with pytest.raises(MeasurementError, match="fio is not installed here") as caught:
        log.hear(line("error", kind="probe", message="fio is not installed here"))
    assert caught.value.kind == "probe", "its own reason for failing"
