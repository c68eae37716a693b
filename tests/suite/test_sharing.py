"""Jobs that share a machine: what a block holds, what each instance is given, and what a record may claim."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from suite.interfaces import Measurement
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import PROFILES, Sizes
from suite.job.sharing import PAPERS_VICTIMS, Sharing, architecture, sizes_of, victim_names
from suite.plan import Plan, Trial
from suite.records.course import _differences
from suite.records.environment import Environment, Environments
from suite.records.record import Aggression, AggressorInstance, Outcome, TrialRecord
from tests.suite.conftest import make_plan, record_fields

WORKLOAD = Sizes(batch=2, image_px=64, warmup_steps=1, steps=2)
SHARING = Sharing(aggressors=("alexnet", "disk"), workloads={"alexnet": WORKLOAD})


def shared(**changes: Any) -> Plan:
    values: dict[str, Any] = {"scenario": "shared", "sharing": SHARING, "targets": ("bare-metal", "container")}
    return make_plan(**(values | changes))


def test_every_block_holds_every_target_alone_and_beside_each_aggressor() -> None:
    trials = list(shared(blocks=3).trials())
    assert len({trial.trial_id for trial in trials}) == len(trials) == 3 * 2 * 3
    for block in range(3):
        found = {(trial.target, trial.aggressor) for trial in trials if trial.block == block}
        assert found == {(t, a) for t in ("bare-metal", "container") for a in (None, "alexnet", "disk")}
    orders = {tuple((t.target, t.aggressor) for t in trials if t.block == block) for block in range(3)}
    assert len(orders) > 1


def test_the_instances_are_the_same_whether_the_aggressor_runs_or_not() -> None:
    by_target: dict[str, set[Any]] = {}
    for trial in shared().trials():
        by_target.setdefault(trial.target, set()).add((trial.instances, trial.scratch_bytes))
        assert [planned.role for planned in trial.instances] == ["victim", "aggressor"]
    assert all(len(found) == 1 for found in by_target.values())


def test_the_noise_and_an_ablation_are_measured_alone_and_beside_each_aggressor() -> None:
    arms = Counter((trial.target, trial.aggressor) for trial in shared(blocks=1, aa=True).trials())
    assert arms["container", None] == arms["bare-metal", None] == 2
    assert arms["container", "disk"] == 1
    trials = [trial for trial in shared(blocks=1, ablations=("seccomp",)).trials() if trial.ablation]
    assert {(trial.target, trial.aggressor) for trial in trials} == {
        ("container", aggressor) for aggressor in (None, "alexnet", "disk")
    }


def test_instances_have_equal_shares_and_jobs_on_bare_metal_the_whole_unless_asked_otherwise() -> None:
    envelope = Envelope(cpus=(0, 1, 4, 5), memory_bytes=4 * GIB, threads=4)
    first, second = SHARING.instances_of("vm", envelope)
    assert (first.envelope.cpus, second.envelope.cpus) == ((0, 1), (4, 5))
    assert (first.envelope.memory_bytes, first.envelope.threads) == (2 * GIB, 2)
    assert {each.envelope for each in SHARING.instances_of("bare-metal", envelope)} == {envelope}
    equal = SHARING.model_copy(update={"bare_metal_cpus": "equal"})
    assert equal.instances_of("bare-metal", envelope) == (first, second)
    assert len(SHARING.model_copy(update={"copies": 3}).instances_of("vm", envelope)) == 4


def test_the_small_batch_of_alexnet_is_to_the_large_one_as_in_the_paper() -> None:
    paper = PROFILES["paper"]
    batches = {victim: sizes_of(paper, victim, {}).batch for victim in victim_names()}
    of_paper = {"inception_v3": 32, "resnet50": 32, "alexnet": 512, "alexnet-small": 32}
    assert {victim: batches[victim] for victim in PAPERS_VICTIMS} == of_paper
    assert architecture("alexnet-small") == "alexnet"
    assert sizes_of(PROFILES["smoke"], "alexnet-small", {}).batch == 1


def place(envelope: Envelope, **changes: Any) -> Environment:
    seen = {"cpus": list(envelope.cpus), "memory_bytes": envelope.memory_bytes, "threads": envelope.threads}
    return Environment.model_validate(seen | changes)


def aggression(**changes: Any) -> Aggression:
    values: dict[str, Any] = {"unit": "images", "begun_s": -2.0, "ended_s": 9.0, "heard_s": [], "steps": [], "work": []}
    return Aggression(**(values | changes))


def measured(trial: Trial, **aggressor: Any) -> Measurement:
    victim, other = (planned.envelope for planned in trial.instances)
    beside = AggressorInstance(
        environment=place(other, **aggressor), aggression=aggression() if trial.aggressor else None
    )
    return Measurement(elapsed_s=5.0, throughput_per_s=10.0, environment=place(victim), aggressors=[beside])


def test_every_instance_is_held_to_its_own_share() -> None:
    trials = {(trial.target, trial.aggressor): trial for trial in shared(blocks=1).trials()}
    for trial in trials.values():
        assert _differences(trial, measured(trial)) == []
    trial = trials["container", "disk"]
    (found,) = _differences(trial, measured(trial, memory_bytes=GIB // 2))
    assert found.startswith("aggressor 1: ")
    assert "bytes of memory" in found
    victim = measured(trial).changed(environment=place(trial.job.envelope))
    assert any(found.startswith("victim: CPUs") for found in _differences(trial, victim))


def test_an_idle_instance_has_no_threads_to_attest_and_a_working_one_has() -> None:
    trials = {(trial.target, trial.aggressor): trial for trial in shared(blocks=1).trials()}
    alone, beside = trials["container", None], trials["container", "disk"]
    assert _differences(alone, measured(alone, threads=None)) == []
    (found,) = _differences(beside, measured(beside, threads=None))
    assert "None threads" in found


def test_a_record_beside_an_aggressor_proves_that_it_enclosed_the_victim() -> None:
    fields: Callable[..., dict[str, Any]] = record_fields
    environment = Environment()
    good = {"aggressor": "disk", "sharing": SHARING, "elapsed_s": 8.0, "environment": Environments(host=environment)}
    beside = AggressorInstance(environment=environment, aggression=aggression())
    record = TrialRecord(**fields(**good, aggressors=[beside]))
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record
    early = beside.model_copy(update={"aggression": aggression(ended_s=7.9)})
    for wrong in ([], [AggressorInstance(environment=environment)], [early]):
        with pytest.raises(ValidationError, match="until the victim has ended"):
            TrialRecord(**fields(**good, aggressors=wrong))
    with pytest.raises(ValidationError, match="begun_s"):
        aggression(begun_s=0.1)
    failed = Outcome(status="failed", kind="aggressor", message="it ended")
    unproven = fields(aggressor="disk", outcome=failed, throughput_per_s=None, elapsed_s=None)
    assert TrialRecord(**unproven).aggressors == []
