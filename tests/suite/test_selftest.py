"""Injuries and their truths, from made records; and when a self-test has passed."""

from typing import Any

import pytest

from suite.errors import RequestError
from suite.job.ablations import get_ablation, properties_of
from suite.job.envelope import GIB
from suite.job.profiles import Sizes
from suite.job.properties import AS_IT_IS
from suite.records.record import TrialRecord
from suite.registries import ABLATIONS, INJURIES
from suite.request.request import RunRequest
from suite.selftest.certificate import Certificate, InjuryFinding, by_chance
from suite.selftest.injuries import BATCHES_AHEAD, SLOW_DISK_BYTES_PER_S, Truth, get_injury, injuries_of
from tests.suite.conftest import make_record
from worker.data.loader import PREFETCH

RATE = {"throughput_per_s": 10.0, "sizes": Sizes(batch=2, image_px=32, warmup_steps=1, steps=30)}
"""Measured steps of 6 s."""


def truth(name: str, injured: TrialRecord, usual: TrialRecord | None = None) -> Truth | None:
    return get_injury(name).truth(injured, usual or make_record(**RATE))


def exactly(ratio: float) -> Truth:
    """The truth, but for what floating point leaves out."""
    return Truth(pytest.approx(ratio), pytest.approx(ratio))  # type: ignore[arg-type]


def told(**injected: float) -> dict[str, Any]:
    return {"injected": injected}


def test_clocked_seconds_are_taken_off_the_measured_span() -> None:
    late = make_record(**RATE, details=told(seconds=0.6))
    for name in ("late-steps", "late-batches"):
        assert truth(name, late) == exactly(0.9)
    assert truth("late-steps", make_record(**RATE)) is None, "the worker says nothing: it was not injured"


def test_page_faults_are_believed_where_the_kernel_has_counted_them() -> None:
    def faulting(faults: int) -> TrialRecord:
        return make_record(
            **RATE, details={**told(seconds=0.6, pages=1000), "measured_usage": {"minor_faults": faults}}
        )

    assert truth("page-faults", faulting(1000)) == exactly(0.9)
    assert truth("page-faults", faulting(999)) is None


def test_a_quota_is_believed_where_the_kernel_has_held_something_back() -> None:
    held = make_record(**RATE, conditions={"interval_s": 10.0, "throttled_s": 0.9})
    assert truth("cpu-quota-10", held) == Truth(0.9, pytest.approx(0.91))  # type: ignore[arg-type]
    hardly = make_record(**RATE, conditions={"interval_s": 10.0, "throttled_s": 0.4})
    assert truth("cpu-quota-10", hardly) is None, "less than half of what 10 % are"
    assert truth("cpu-quota-10", make_record(**RATE)) is None


def test_held_memory_is_part_of_what_the_host_serves() -> None:
    held = make_record(**RATE, resources={"serving": {"peak_memory_bytes": GIB}}, details=told(held_bytes=GIB // 2))
    assert truth("held-memory", held) == exactly(2.0)


def test_a_slow_disk_gives_the_images_that_come_at_its_rate() -> None:
    use = {"kind": "imagefolder", "sha256": "a" * 64, "images": 9, "size_bytes": 9, "decoder": "none"}
    read = {**use, "loader_workers": 1, "images_read": 10, "bytes_read": 10 * SLOW_DISK_BYTES_PER_S // 5}
    environment = {"host": {}, "target": {"disk_limit_bytes_per_s": SLOW_DISK_BYTES_PER_S}}
    slow = make_record(**RATE, data_use=read, environment=environment)
    found: Any = truth("slow-disk", slow)
    assert found.low == pytest.approx(0.5), "5 images/s of 10"
    assert found.high == pytest.approx(0.5 * 30 / 27), "of 30 batches 3 may have been read before"
    assert truth("slow-disk", make_record(**RATE, data_use=read)) is None, "the limit was not attested"


def test_the_injuries_of_a_scenario_come_with_the_arm_that_changes_nothing() -> None:
    assert injuries_of("synthetic", ["late-steps", "slow-disk"]) == ("nothing", "late-steps")
    assert injuries_of("real", ["late-steps"]) == ()
    assert [name for name in INJURIES if not get_injury(name).changes] == ["nothing"]


def test_an_injury_is_an_arm_of_a_target_and_no_ablation_that_can_be_asked_for() -> None:
    assert not set(ABLATIONS) & set(INJURIES)
    assert get_ablation("cpu-quota-10") is get_injury("cpu-quota-10")
    assert properties_of("nothing") == AS_IT_IS
    assert properties_of("cpu-quota-10").cpu_share == 0.9
    with pytest.raises(RequestError, match="cpu-quota-10"):
        RunRequest.of({"ablate": ("cpu-quota-10",)})


def finding(size: bool | None, place: bool | None, verdict: bool | None) -> InjuryFinding:
    words = {"scenario": "synthetic", "target": "container", "injury": "late-steps", "metric": "throughput"}
    judged = {"size": size, "place": place, "verdict_right": verdict}
    return InjuryFinding.model_validate({**words, "summary": "", "witness": "", "blocks": 10, **judged})


def certificate(*findings: InjuryFinding) -> Certificate:
    made = {"suite_version": "1", "made_at": "2026-11-22T03:00:00+00:00", "directory": "/r", "machine": {}}
    asked = {"targets": ("container",), "engine": "runc", "blocks": 10, "margin": 0.02}
    return Certificate.model_validate({**made, **asked, "findings": findings, "smallest": {"throughput": 0.021}})


def test_what_could_be_judged_must_be_found() -> None:
    right, small = finding(True, True, True), finding(True, None, None)
    assert (right.found, small.found, small.judged) == (True, False, False)
    assert certificate(*[right] * 9, small).passed
    assert not certificate(*[right] * 9, *[finding(True, False, True)] * 2).passed
    assert not certificate(small).passed, "nothing could be judged"
    found = "this machine's selftest of 2026-11-22 found 1 of 2 injuries"
    line = certificate(right, finding(False, True, True), small).line()
    assert line == f"{found}; smallest throughput effect that 10 blocks show: 2.1%"


def test_intervals_may_miss_as_often_as_chance_lets_them() -> None:
    assert [by_chance(count) for count in (0, 1, 2, 16, 28)] == [0, 0, 1, 2, 3]
    right, off = finding(True, True, True), finding(False, True, True)
    assert certificate(*[right] * 14, *[off] * 2).passed
    assert not certificate(*[right] * 13, *[off] * 3).passed


def test_the_loader_is_as_far_ahead_as_the_injuries_take_it_to_be() -> None:
    assert BATCHES_AHEAD == PREFETCH
