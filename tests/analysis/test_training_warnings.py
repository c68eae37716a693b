"""What losses say of a training is said by name, and only where it holds."""

import math
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.load.records import load
from analysis.warnings.training import LEARNINGS, least_discriminator_loss
from suite.records.record import Outcome, Steps

KINDS = {one.kind for one in LEARNINGS} | {"diverged"}
SOUND = {"discriminator-real": 0.7, "discriminator-fake": 0.7, "generator": 0.7, "generated-deviation": 0.3}


def steps(losses: dict[str, float]) -> Steps:
    columns = {"elapsed_s": [0.2] * 3, "data_s": [0.0] * 3, "compute_s": [0.2] * 3}
    return Steps.model_validate({**columns, "losses": {name: [loss] * 3 for name, loss in losses.items()}})


def kinds(path: Path) -> set[str]:
    return {one.kind for one in compare(load([path / "run"])).warnings} & KINDS


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ({}, None),
        ({"discriminator-real": 1e-5, "discriminator-fake": 1e-4, "generator": 12.0}, "discriminator-collapsed"),
        ({"discriminator-real": 1e-5, "discriminator-fake": 0.7}, None),
        ({"generated-deviation": 1e-5}, "generated-alike"),
        ({"generator": 0.41, "discriminator-fake": 0.5}, "losses-contradict"),
        ({"generator": 0.41, "discriminator-fake": 1.1}, None),
    ],
)
def test_losses_that_show_no_learning_are_warned_of(
    losses: dict[str, float], kind: str | None, tmp_path: Path, save: Any
) -> None:
    save(model="gan", steps=steps(SOUND | losses))
    assert kinds(tmp_path) == ({kind} if kind else set())


def test_workloads_with_other_losses_are_let_be(tmp_path: Path, save: Any) -> None:
    save(steps=steps({"loss": 1e-9, "generator": -4.0}))
    assert kinds(tmp_path) == set()


def test_a_loss_that_is_not_finite_is_named_with_its_step(tmp_path: Path, save: Any) -> None:
    outcome = Outcome(status="failed", kind="diverged", message="the loss generator is nan in measured step 2")
    save(model="gan")
    save(model="gan", target="vm", outcome=outcome, throughput_per_s=None, elapsed_s=None, steps=None)
    found = [one for one in compare(load([tmp_path / "run"])).warnings if one.kind == "diverged"]
    assert ["generator is nan in measured step 2" in one.message for one in found] == [True]


def test_the_bound_is_that_of_jensen() -> None:
    # shared/reference/distributed-gan.md: a generator loss of 0.41 asks for 1.09, half of which is 0.54.
    assert least_discriminator_loss(0.41) == pytest.approx(1.09, abs=0.005)
    assert least_discriminator_loss(math.log(2)) == pytest.approx(math.log(2))
    assert least_discriminator_loss(0.0) == math.inf
