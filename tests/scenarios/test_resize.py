"""The resize probe on a real loop whose affinity is changed, and its judgement of forged reports."""

import math
import os
from typing import Any

import psutil
import pytest

from scenarios.probe import Probing
from scenarios.probes import resize as probe_resize
from scenarios.probes.resize import RESIZE, Report, ResizeLoop, level_s, resized, seen_s
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Instance, Shares
from suite.request.request import RunRequest
from tests.scenarios.conftest import HereNode


def reports(rate_of: Any, until_s: float = 2.0, cpus: Any = lambda _: 2) -> list[Report]:
    """A report every 10 ms of a loop with this rate at each moment."""
    total, found = 0.0, []
    for number in range(round(until_s * 100)):
        at_s = number / 100
        found.append(Report(at_s, round(total), cpus(at_s)))
        total += rate_of(at_s) / 100
    return found


def level_after(rate_of: Any, asked_s: float = 2.0) -> float | None:
    """The level after a change is asked for, of a loop with this rate at each moment from 2 s before on."""
    loop: Any = ResizeLoop(None)  # type: ignore[arg-type]
    loop.arrived = [(100 + one.at_s, one) for one in reports(rate_of, asked_s + 2) if rate_of(one.at_s)]
    return level_s(loop, 100 + asked_s)


@pytest.mark.parametrize("late_s", [0.0, 0.3, 0.85])
def test_the_rate_is_level_from_its_change_on(late_s: float) -> None:
    assert level_after(lambda at_s: 1e6 if at_s < 2 + late_s else 5e5) == pytest.approx(late_s, abs=0.05)


def test_a_quota_that_holds_back_in_every_period_is_level() -> None:
    found = level_after(lambda at_s: 1e6 if at_s < 2.3 or math.modf(at_s * 10)[0] < 0.45 else 0)
    assert found == pytest.approx(0.3, abs=0.11)


@pytest.mark.parametrize("rate_of", [lambda _: 1e6, lambda at_s: 1e6 if at_s < 2 else 1e5 * 4 ** (at_s - 2)])
def test_a_rate_that_does_not_change_or_does_not_end_is_not_level(rate_of: Any) -> None:
    assert level_after(rate_of) is None


def test_a_change_is_seen_when_the_kernel_first_shows_what_it_shows_at_the_end() -> None:
    loop: Any = ResizeLoop(None)  # type: ignore[arg-type]
    loop.arrived = [(100 + one.at_s, one) for one in reports(lambda _: 1e6, cpus=lambda at_s: 2 if at_s < 0.72 else 1)]
    assert seen_s(loop, 100.5) == pytest.approx(0.22)
    assert seen_s(loop, 101.0) is None


def test_an_instance_is_resized_and_has_all_of_its_cpus_afterwards(
    here: HereNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float, float]] = []

    def loops() -> list[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return [process for process in children if "sched_getaffinity" in " ".join(process.cmdline())]

    def resize(shares: Shares) -> None:
        if shares.memory_share < 1:
            raise RequestError("none")
        asked.append((len(shares.cpus), shares.cpu_share, shares.memory_share))
        for process in loops():
            os.sched_setaffinity(process.pid, shares.cpus)

    monkeypatch.setattr(probe_resize, "HOLD_S", 0.5)
    here.cpus = tuple(sorted(os.sched_getaffinity(0)))
    found = resized(here, resize, times=1)
    assert asked == [(2, 0.5, 1), (2, 1, 1), (1, 1, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert {"cpus-down-seen", "cpus-up-seen"} <= found.keys()
    assert "quota-down-seen" not in found
    assert all(0 <= value < 2 for values in found.values() for value in values)  # a busy machine takes longer
    assert loops() == []


def test_a_target_that_cannot_be_resized_fails_with_what_can(trial: Any, here: HereNode, observer: Any) -> None:
    with pytest.raises(MeasurementError, match="cannot be resized while it is open"):
        RESIZE.run(trial, Instance(here), observer, None)  # type: ignore[arg-type]


def test_it_is_measured_only_if_it_is_named() -> None:
    request = RunRequest.of({"scenario": "probe"})
    assert "resize" not in Probing().models(request)
    assert Probing().models(request.changed(probe=("resize",))) == ("resize",)
