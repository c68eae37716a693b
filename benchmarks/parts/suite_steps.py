"""The steps of the suite's worker, timed as those of a loop by hand are: no job around them."""

import time

from suite.registries import WORKLOADS
from worker.spec import Spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import open_devices
from worker.training.step import Samples


def suite_s(model: str, device: str, warmup_steps: int, steps: int, **more: str | int) -> float:
    place = {"workload": WORKLOADS.place(model), "device": device, "devices": 1, "parallel": "none"}
    spec = Spec(**place, warmup_steps=warmup_steps, steps=steps, **more)  # type: ignore[arg-type]
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, open_devices(device, 1), batches)
        for _ in range(warmup_steps):
            trainer.step(Samples.allocate(1, trainer.phases, trainer.parts), 0)
        samples = Samples.allocate(steps, trainer.phases, trainer.parts)
        begin_s = time.monotonic()
        for index in range(steps):
            trainer.step(samples, index)
        return time.monotonic() - begin_s
