"""The costs that workloads declare for forecasts, counted in a step of each."""

import json

import pytest
from torch.utils.flop_counter import FlopCounterMode

from suite.job.profiles import PROFILES
from suite.registries import WORKLOADS
from worker.spec import parse_spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import open_devices
from worker.training.step import Samples

UNCOUNTED = ("progressive-gan",)
"""Its step takes gradients of gradients, which torch's counter cannot follow."""
COUNTED = [name for name in WORKLOADS.own if not WORKLOADS.get(name).communicates]


@pytest.mark.parametrize("name", COUNTED)
def test_a_workload_declares_its_operations_and_its_parameters(name: str) -> None:
    sizes = PROFILES["quick"].sizes_of(name)
    batch = sizes.tokens or 2
    shape = sizes.model_dump(include={"image_px", "channels", "tokens", "depth"}, exclude_none=True)
    job = {"workload": WORKLOADS.place(name), "batch": batch, "warmup_steps": 0, "steps": 1, "threads": 1, "seed": 0}
    how = {"recipe": "reference", "device": "cpu", "devices": 1, "parallel": "none"}
    spec = parse_spec(json.dumps({**job, **how, **shape}))
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, open_devices("cpu", 1), batches)
        counter = FlopCounterMode(display=False)
        if name not in UNCOUNTED:
            with counter:
                trainer.step(Samples.allocate(1, trainer.phases, trainer.parts), 0)
    cost = WORKLOADS.get(name).cost_at(sizes.image_px or sizes.tokens, sizes.depth)
    trained = sum(each.numel() for each in trainer.network.parameters() if each.requires_grad)
    assert cost.parameters_millions == pytest.approx(trained / 1e6, rel=0.05)
    if name not in UNCOUNTED:
        # Borders and layers that see the whole image depart from the square of its side.
        assert cost.gflop == pytest.approx(counter.get_total_flops() / batch / 1e9, rel=0.8)
