import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.errors import RequestError
from suite.plan import balanced
from suite.targets import TARGETS
from tests.suite.conftest import make_plan

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


@pytest.mark.parametrize(("capability", "why"), [(None, "not capped"), ("default", "already default")])
def test_instructions_that_cannot_be_lowered_are_refused(capability: str | None, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        [trial.cpu_capability for trial in make_plan(cpu_capability=capability, ablations=("isa",)).trials()]


def test_warm_up_blocks_come_first_and_change_nothing_of_the_others() -> None:
    trials = list(make_plan(warmup_blocks=2).trials())
    assert [trial.warm_up for trial in trials] == [True] * 6 + [False] * 6
    assert trials[6:] == list(make_plan().trials())
    assert len({trial.trial_id for trial in trials}) == 12


@pytest.mark.parametrize(
    "change", [{"blocks": 0}, {"targets": ()}, {"models": ("../x",)}, {"trial_timeout_s": 0}, {"x": 1}]
)
def test_a_plan_holds_no_nonsense(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_plan(**change)
