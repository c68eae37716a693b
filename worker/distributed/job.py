"""One rank's part of a distributed job: a parameter server, or a worker among several."""

import contextlib
import sys
from dataclasses import asdict

from worker.data.tally import together
from worker.distributed.group import joined
from worker.distributed.serve import serve
from worker.distributed.trainers import opened_trainer
from worker.errors import JobError
from worker.protocol import Events
from worker.spec import Membership, Spec
from worker.training.build import opened_batches
from worker.training.device import Device
from worker.training.measure import measure
from worker.training.models import build_network
from worker.training.numerics import numerics_of
from worker.training.turns import take_turns
from worker.usage import whole_usage
from worker.workloads.workload import LEARNING_RATE, Workload


def run_rank(spec: Spec, membership: Membership, device: Device, events: Events) -> None:
    """Emit everything from ``built`` to ``done``. Raises JobError, of kind ``network`` when another rank is lost."""

    def report(error: JobError) -> None:
        """Report for a rank that the heartbeat must end, because gloo does not wake it."""
        events.error(error.kind, str(error))

    workload = spec.load_workload()
    if membership.servers and type(workload).optimizer is not Workload.optimizer:
        raise JobError(
            f"parameter servers update by plain gradient descent, and {workload.name} has an optimizer of its own",
            kind="request",
            remedy="use --strategy all-reduce",
        )
    if membership.is_server:
        with joined(membership, "cpu", report=report) as workers:
            events.emit("built")
            served = serve(workers, learning_rate=LEARNING_RATE, threads=spec.threads)
        events.emit("done", usage=whole_usage(), exchanged=served)
        return
    with contextlib.ExitStack() as stack:
        batches = stack.enter_context(opened_batches(spec))
        numerics = numerics_of(spec.recipe, spec.device)
        numerics.apply()
        network = build_network(workload, spec.shape, spec.seed)
        group = stack.enter_context(joined(membership, spec.device, report=report))
        with opened_trainer(group, workload, network, device, batches[0], numerics) as trainer:
            events.emit("built")
            if spec.turns:
                take_turns(spec, spec.turns, trainer, events, sys.stdin)
            else:
                measure(spec, trainer, events)
        uses = [use for each in batches if (use := each.close())]
    data_use = asdict(together(uses)) if uses else None
    events.emit("done", usage=whole_usage(), data_use=data_use, exchanged=trainer.exchanged())
