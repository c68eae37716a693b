"""The plan: which trials, in which order, alone and beside aggressors, injured, and with which instances."""

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import RequestError
from suite.interfaces import Measurement
from suite.job.ablations import get_ablation, properties_of
from suite.job.envelope import GIB
from suite.job.profiles import PROFILES, Sizes
from suite.job.properties import AS_IT_IS
from suite.job.sharing import PAPERS_VICTIMS, Sharing, architecture, sizes_of, victim_names
from suite.plan import Plan, Trial, balanced
from suite.records.course import _differences
from suite.records.record import Aggression, AggressorInstance
from suite.registries import ABLATIONS, INJURIES
from suite.request.request import RunRequest
from suite.selftest.injuries import get_injury, injuries_of
from suite.targets import TARGETS
from tests.suite.conftest import inside, make_plan

seeds = st.integers(min_value=0, max_value=1 << 40)


@given(seeds, st.integers(1, 4), st.integers(1, 4))
def test_a_longer_run_begins_with_the_blocks_of_a_shorter_one(seed: int, blocks: int, more: int) -> None:
    short = list(make_plan(seed=seed, blocks=blocks).trials())
    assert list(make_plan(seed=seed, blocks=blocks + more).trials())[: len(short)] == short


@pytest.mark.parametrize("arms", range(1, 8))
def test_every_arm_is_level_after_two_blocks_and_follows_every_other_equally_often(arms: int) -> None:
    for seed in range(20):
        design = arms * 2 if arms % 2 else arms
        orders = [balanced(range(arms), block, str(seed)) for block in range(2 * design)]
        for first, second in zip(orders[::2], orders[1::2], strict=True):
            assert sorted(first) == list(range(arms))
            assert second == first[::-1]
        follows = Counter(pair for order in orders[:design] for pair in itertools.pairwise(order))
        assert set(follows.values()) <= {design // arms}
        assert len(follows) == arms * (arms - 1)
    firsts = [balanced(range(arms), 0, str(seed))[0] for seed in range(400)]
    assert min(Counter(firsts).values(), default=0) > 200 / arms, "no arm begins more often than chance has it"


def test_the_order_of_each_job_is_drawn_by_itself_and_its_warm_up_too() -> None:
    plan = make_plan(models=("alexnet", "resnet50"), targets=TARGETS, blocks=40, warmup_blocks=40, order_seed=3)
    orders: dict[tuple[object, ...], list[str]] = {}
    for trial in plan.trials():
        orders.setdefault((trial.job.model, trial.warm_up, trial.block), []).append(trial.target)
    kinds = [[orders[model, warm_up, block] for block in range(40)] for model in plan.models for warm_up in (0, 1)]
    assert all(kinds.count(kind) == 1 for kind in kinds)
    for orders_of_kind in kinds:
        places = {name: [order.index(name) for order in orders_of_kind] for name in TARGETS}
        assert {sum(found) / 40 for found in places.values()} == {1.5}


@given(seeds)
def test_every_block_has_each_target_once_for_each_model(seed: int) -> None:
    models = ("resnet50", "alexnet")  # which stay together
    trials = list(make_plan(seed=seed, blocks=3, models=models, targets=TARGETS).trials())
    wanted = sorted((model, target) for model in models for target in TARGETS)
    for block in range(3):
        here = [trial for trial in trials if trial.block == block]
        assert sorted((trial.job.model, trial.target) for trial in here) == wanted
        assert [trial.position for trial in here] == list(range(8))
        assert [trial.job.model for trial in here] == ["resnet50"] * 4 + ["alexnet"] * 4
        assert len({trial.seed for trial in here}) == 1
    assert [trial.block for trial in trials] == [0] * 8 + [1] * 8 + [2] * 8
    assert len({trial.seed for trial in trials}) == 3
    assert len({trial.trial_id for trial in trials}) == len(trials)


def test_an_ablation_adds_one_trial_of_each_target_that_has_the_property_to_every_block() -> None:
    trials = list(make_plan(targets=TARGETS, ablations=("seccomp", "disk-cache"), blocks=3).trials())
    for block in range(3):
        here = {(trial.target, trial.ablation) for trial in trials if trial.block == block}
        switched = {(target, name) for target, name in here if name}
        assert switched == {
            *(("container", "seccomp"), ("container-vm", "seccomp")),
            *(("vm", "disk-cache"), ("container-vm", "disk-cache")),
        }
        assert {(target, None) for target in TARGETS} < here
    assert len({trial.trial_id for trial in trials}) == len(trials) == 3 * 8


def test_the_switched_instructions_are_the_next_lower_level() -> None:
    trials = make_plan(cpu_capability="avx512", ablations=("isa",)).trials()
    assert {(trial.ablation, trial.cpu_capability) for trial in trials} == {(None, "avx512"), ("isa", "avx2")}


def test_warm_up_blocks_come_first_and_change_nothing_of_the_others() -> None:
    trials = list(make_plan(warmup_blocks=2).trials())
    assert [trial.warm_up for trial in trials] == [True] * 6 + [False] * 6
    assert trials[6:] == list(make_plan().trials())
    assert len({trial.trial_id for trial in trials}) == 12


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


def test_the_small_batch_of_alexnet_is_to_the_large_one_as_in_the_paper() -> None:
    paper = PROFILES["paper"]
    batches = {victim: sizes_of(paper, victim, {}).batch for victim in victim_names()}
    of_paper = {"inception_v3": 32, "resnet50": 32, "alexnet": 512, "alexnet-small": 32}
    assert {victim: batches[victim] for victim in PAPERS_VICTIMS} == of_paper
    assert architecture("alexnet-small") == "alexnet"
    assert sizes_of(PROFILES["smoke"], "alexnet-small", {}).batch == 1


def measured(trial: Trial, **aggressor: Any) -> Measurement:
    victim, other = (planned.envelope for planned in trial.instances)
    working = Aggression(unit="images", begun_s=-2.0, ended_s=9.0, heard_s=[], steps=[], work=[])
    beside = AggressorInstance(environment=inside(other, **aggressor), aggression=working if trial.aggressor else None)
    return Measurement(elapsed_s=5.0, throughput_per_s=10.0, environment=inside(victim), aggressors=[beside])


def test_every_instance_is_held_to_its_own_share_and_an_idle_one_has_no_threads_to_attest() -> None:
    trials = {(trial.target, trial.aggressor): trial for trial in shared(blocks=1).trials()}
    for trial in trials.values():
        assert _differences(trial, measured(trial)) == []
    alone, beside = trials["container", None], trials["container", "disk"]
    (found,) = _differences(beside, measured(beside, memory_bytes=GIB // 2))
    assert found.startswith("aggressor 1: ")
    assert "bytes of memory" in found
    victim = measured(beside).changed(environment=inside(beside.job.envelope))
    assert any(found.startswith("victim: CPUs") for found in _differences(beside, victim))
    assert _differences(alone, measured(alone, threads=None)) == []
    (found,) = _differences(beside, measured(beside, threads=None))
    assert "None threads" in found


def test_injuries_come_with_the_arm_that_changes_nothing_and_are_no_ablations_that_can_be_asked_for() -> None:
    assert injuries_of("synthetic", ["late-steps", "slow-links"]) == ("nothing", "late-steps")
    assert injuries_of("real", ["late-steps"]) == ()
    assert [name for name in INJURIES if not get_injury(name).changes] == ["nothing"]
    assert not set(ABLATIONS) & set(INJURIES)
    assert get_ablation("cpu-quota-10") is get_injury("cpu-quota-10")
    assert properties_of("nothing") == AS_IT_IS
    assert properties_of("cpu-quota-10").cpu_share == 0.9
    with pytest.raises(RequestError, match="cpu-quota-10"):
        RunRequest.of({"ablate": ("cpu-quota-10",)})
