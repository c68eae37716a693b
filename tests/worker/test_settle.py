"""What a training on a GPU waits for before its measured steps, played on the CPU."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from worker.protocol import Events, JobError, SpecError
from worker.spec import Spec, parse_spec
from worker.training import job, settle
from worker.training.device import Device

CPU = Device("cpu")


@pytest.fixture
def trained(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Any], dict[str, Any]]]:
    """Trains, and returns the events and the other fields of ``done``; windows are short, and as level as needed."""
    monkeypatch.setattr(settle, "WINDOW_S", 0.02)
    monkeypatch.setattr(settle, "LEVEL", 1e9)

    def _trained(**changes: Any) -> tuple[list[Any], dict[str, Any]]:
        reading, writing = os.pipe()
        try:
            _, ended = job._train(replace(parse_spec(json.dumps(spec)), **changes), None, [CPU], Events(writing))
        finally:
            os.close(writing)
            with os.fdopen(reading) as lines:
                events = [json.loads(line) for line in lines]
        return events, ended

    return _trained


def test_what_settles_the_device_changes_nothing_that_is_trained_and_is_no_step_of_it(trained: Any) -> None:
    events, ended = trained()
    settled_events, settled = trained(settle_s=0.2)
    assert [event["event"] for event in settled_events] == [event["event"] for event in events]
    for name in ("losses", "weights_sha256"):
        assert settled_events[-1][name] == events[-1][name]
    assert settled["drawn"] == ended["drawn"]
    assert ended["settled"] is None
    assert settled["settled"]["seconds"] >= 0.2
    assert settled["settled"]["steps"] >= settle.WINDOWS
    built, warmup = (next(one["t"] for one in settled_events if one["event"] == name) for name in ("built", "warmup"))
    assert warmup - built >= 0.2, "the time counts as warm-up"


@pytest.mark.parametrize(
    ("means_s", "expected"),
    [
        ([1.0, 1.0], False),
        ([1.0, 1.04, 1.0], True),
        ([1.0, 1.06, 1.0], False),
        ([2.0, 1.5, 1.0, 1.0, 1.01], True),
        ([1.0, 1.0, 1.0, 1.2], False),
    ],
)
def test_steps_are_level_when_the_last_windows_agree(means_s: list[float], expected: bool) -> None:
    assert settle.level(means_s) is expected


def test_a_device_that_never_settles_fails_the_trial(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MOST_S", 0.1)
    monkeypatch.setattr(settle, "LEVEL", -0.5)
    with pytest.raises(JobError, match=r"steps are not level after 0\.1 s: the last took .* ms") as caught:
        trained(settle_s=0.01)
    assert caught.value.kind == "unsettled"


def test_steps_that_took_too_little_time_fail_with_the_number_that_is_enough(
    trained: Any, spec: dict[str, Any]
) -> None:
    with pytest.raises(JobError, match=r"steps took .* s, and the profile measures 1000 s or more") as caught:
        trained(least_s=1000)
    assert caught.value.kind == "short"
    assert int(str(caught.value.remedy).split()[2]) > spec["steps"]


@pytest.mark.parametrize("change", [{"parallel": "ddp"}, {"turns": {"rounds": 1, "burst_steps": 2}, "steps": 2}])
def test_ranks_and_turns_do_not_settle(spec: dict[str, Any], change: dict[str, Any]) -> None:
    assert isinstance(parse_spec(json.dumps({**spec, "settle_s": 5})), Spec)
    with pytest.raises(SpecError, match=r"settle_s is 5\.0"):
        parse_spec(json.dumps({**spec, **change, "settle_s": 5}))
