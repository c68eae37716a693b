"""Training as an aggressor: the steps of the ordinary job, without an end."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.aggressors.aggressor import AggressorLoad
from worker.spec import Spec
from worker.training.build import build_trainer, opened_batches
from worker.training.device import open_devices, prepare
from worker.training.models import torchvision_version
from worker.training.samples import Samples


@contextmanager
def opened(spec: Spec) -> Iterator[AggressorLoad]:
    """Train; a step is one of the training, and its work is in images."""
    facts = prepare(spec.threads, spec.device)
    devices = open_devices(spec.device, spec.devices)
    with opened_batches(spec) as batches:
        trainer = build_trainer(spec, devices, batches)
        samples = Samples.allocate(1, trainer.phases, trainer.parts)

        def step() -> float:
            trainer.step(samples, 0)
            return spec.batch * spec.devices

        yield AggressorLoad(spec.load_workload().unit, step, {**facts, "torchvision": torchvision_version()})
