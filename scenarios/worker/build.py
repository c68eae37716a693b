"""From a specification to what trains: model, data, numerics and the way of using the devices."""

from torch.nn.parallel import DistributedDataParallel

from scenarios.worker.data import Batches
from scenarios.worker.device import Device
from scenarios.worker.models import build_model
from scenarios.worker.numerics import numerics_of
from scenarios.worker.parameter_cpu import ParameterCpu
from scenarios.worker.spec import Spec
from scenarios.worker.training import Single, Trainer


def build_trainer(spec: Spec, devices: list[Device], rank: int = 0) -> Trainer:
    """The trainer of this process; for ``ddp`` that of one rank, inside an initialised process group."""
    numerics = numerics_of(spec.recipe, spec.device)
    numerics.apply()
    model = build_model(spec.model, spec.seed)
    batches = [Batches(spec, number, numerics) for number in range(len(devices))]
    if spec.parallel == "parameter-cpu":
        return ParameterCpu(model, devices, batches, numerics)
    device = devices[rank]
    placed = numerics.place(model, device)
    if spec.parallel == "ddp":
        ids = [device.torch] if device.is_cuda else None
        placed = DistributedDataParallel(placed, device_ids=ids)
    return Single(numerics.compile(placed), device, batches[rank], numerics)
