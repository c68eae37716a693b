import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from suite.plan import BASELINE, TARGETS, Plan
from tests.suite.conftest import make_plan

seeds = st.integers(min_value=0, max_value=1 << 40)


def test_the_baseline_is_a_target() -> None:
    assert BASELINE in TARGETS


@given(seeds)
def test_the_same_seed_gives_the_same_trials(seed: int) -> None:
    assert list(make_plan(seed=seed).trials()) == list(make_plan(seed=seed).trials())


@given(seeds, st.integers(1, 4), st.integers(1, 4))
def test_a_longer_run_begins_with_the_blocks_of_a_shorter_one(seed: int, blocks: int, more: int) -> None:
    short = list(make_plan(seed=seed, blocks=blocks).trials())
    assert list(make_plan(seed=seed, blocks=blocks + more).trials())[: len(short)] == short


def test_another_seed_gives_another_order() -> None:
    orders = {tuple(t.target for t in make_plan(seed=seed, blocks=4).trials()) for seed in range(10)}
    assert len(orders) > 1


@given(seeds)
def test_every_block_has_each_target_once_for_each_model(seed: int) -> None:
    models = ("resnet50", "alexnet")
    trials = list(make_plan(seed=seed, blocks=3, models=models, targets=TARGETS).trials())
    wanted = sorted((model, target) for model in models for target in TARGETS)
    for block in range(3):
        here = [trial for trial in trials if trial.block == block]
        assert sorted((trial.model, trial.target) for trial in here) == wanted
        assert [trial.position for trial in here] == list(range(8))
        assert len({trial.seed for trial in here}) == 1


def test_blocks_come_one_after_the_other_and_models_stay_together(plan: Callable[..., Plan]) -> None:
    trials = list(plan(blocks=3, models=("alexnet", "resnet50")).trials())
    assert [trial.block for trial in trials] == [0] * 6 + [1] * 6 + [2] * 6
    assert [trial.model for trial in trials[:6]] == ["alexnet"] * 3 + ["resnet50"] * 3


def test_blocks_differ_in_their_seed(plan: Callable[..., Plan]) -> None:
    assert len({trial.seed for trial in plan(blocks=5).trials()}) == 5


def test_trial_ids_are_unique_and_safe_as_file_names(plan: Callable[..., Plan]) -> None:
    ids = [trial.trial_id for trial in plan(blocks=12, models=("resnet50", "alexnet"), targets=TARGETS).trials()]
    assert len(ids) == len(set(ids)) == 12 * 2 * 4
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", trial_id) for trial_id in ids)


@pytest.mark.parametrize("change", [{"blocks": 0}, {"targets": ()}, {"models": ()}, {"trial_timeout_s": 0}, {"x": 1}])
def test_a_plan_holds_no_nonsense(plan: Callable[..., Plan], change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        plan(**change)
