"""A training before the measured one, until the clocks and the heat of its devices have settled."""

import time
from itertools import count

from msgspec.structs import replace

from worker.protocol import Events, JobError
from worker.spec import Spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import Device
from worker.training.step import Samples

WINDOW_S, WINDOWS = 1.0, 3
LEVEL = 0.05
"""Steps are level when the means of the last windows lie within this share of each other."""
MOST_S = 60.0
"""A GPU that is throttled or shared would never be level."""


def settle(spec: Spec, least_s: float, devices: list[Device], events: Events) -> dict[str, float]:
    """Emit ``built``, and train on drawn data until steps are level. Returns the steps, their time, and the last mean.

    The network and its data are forgotten, and the measured training is built anew from the seed: however long this
    takes on a target, all targets take the same steps afterwards. Raises JobError if the steps do not become level.
    """
    drawn = replace(spec, data=None, epochs=None, checkpoint=None)  # nothing is read, or kept in a page cache
    steps, means_s = 0, list[float]()
    with opened_batches(drawn) as batches:
        trainer = build_trainer(drawn, devices, batches)
        scratch = Samples.allocate(1, trainer.phases, trainer.parts)
        events.emit("built")
        begin_s = end_s = time.monotonic()
        while end_s - begin_s < least_s or not level(means_s):
            if end_s - begin_s > MOST_S:
                last_ms = ", ".join(f"{1e3 * mean_s:.3g}" for mean_s in means_s[-WINDOWS:])
                message = f"steps are not level after {MOST_S:g} s: the last took {last_ms} ms"
                raise JobError(message, kind="unsettled", remedy="see what else uses or throttles the GPU (nvidia-smi)")
            window_s = end_s
            for taken in count(1):
                events.step = f"step {steps + taken} before the training"
                trainer.step(scratch, 0)
                trainer.synchronize()
                if (end_s := time.monotonic()) - window_s >= WINDOW_S:
                    break
            steps += taken
            means_s.append((end_s - window_s) / taken)
    return {"steps": steps, "seconds": end_s - begin_s, "step_s": means_s[-1]}


def level(means_s: list[float]) -> bool:
    last = means_s[-WINDOWS:]
    return len(last) == WINDOWS and max(last) <= (1 + LEVEL) * min(last)
