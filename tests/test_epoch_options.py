"""Epochs and checkpoints as they are asked for: refused before anything is started where they cannot be."""

import pytest

from commands.run.plan import between_checkpoints, in_epochs
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.profiles import PROFILES
from suite.registries import SCENARIOS, WORKLOADS
from suite.request.request import RunRequest


def test_checkpoints_of_drawn_data_lie_whole_steps_apart_and_have_room_for_two() -> None:
    sizes = PROFILES["quick"].sizes_of("gan")
    parts = between_checkpoints(sizes, 5)
    assert (parts.steps, parts.warmup_steps, parts.epochs) == (20, sizes.warmup_steps, 4)
    usual = RunRequest.of({"model": ("gan",)})
    assert Synthetic().scratch_bytes(usual, ("gan",)) == {}
    writing = usual.changed(checkpoint="fsync", checkpoint_every=5)
    assert Synthetic().scratch_bytes(writing, ("gan",)) == {"gan": 4 << 30}


def test_the_steps_of_epochs_are_whole_batches_and_none_is_a_warm_up() -> None:
    sizes = PROFILES["smoke"].sizes_of("gan").model_copy(update={"epochs": 3})
    planned = in_epochs("gan", sizes, 42, 2)
    assert (planned.batch, planned.steps, planned.warmup_steps, planned.epochs) == (4, 3 * 5, 0, 3)
    with pytest.raises(RequestError, match="--epochs 3 of gan are 750,000 steps") as raised:
        in_epochs("gan", sizes, 1_000_000, 1)
    assert "--batch" in str(raised.value.remedy)


@pytest.mark.parametrize("scenario", ["synthetic", "real"])
def test_images_are_generated_by_what_generates_images_and_nothing_else(scenario: str) -> None:
    kind = SCENARIOS.get(scenario)
    asked = RunRequest.of({"scenario": scenario, "generate": 8})
    for name in WORKLOADS.own:
        if scenario not in (WORKLOADS.get(name).scenarios or (scenario,)):
            continue
        if WORKLOADS.get(name).makes_images:
            kind.of(asked).check_model(asked, name)
            continue
        with pytest.raises(RequestError, match=f"{name} generates no images") as raised:
            kind.of(asked).check_model(asked, name)
        assert "leave out --generate" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("preempt", "says"),
    [("mean=60s,notice=5s", "has a notice"), ("mean=0s", "is no time at all"), ("60s", "is not a preemption")],
)
def test_a_preemption_that_cannot_be_is_refused(preempt: str, says: str) -> None:
    usual = {"model": ("gan",), "steps": 20, "checkpoint": "on", "checkpoint_every": 10}
    assert RunRequest.of({**usual, "preempt": "mean=60s"}).measurement.preempt == "mean=60s"
    with pytest.raises(RequestError, match=says):
        RunRequest.of({**usual, "preempt": preempt})
