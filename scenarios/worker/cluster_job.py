"""One rank's part of a distributed job: a parameter server, or a worker among several."""

import contextlib
from dataclasses import asdict

from scenarios.worker.build import opened_batches
from scenarios.worker.device import Device
from scenarios.worker.distributed.cluster import Cluster
from scenarios.worker.distributed.group import joined
from scenarios.worker.distributed.serve import serve
from scenarios.worker.distributed.trainers import opened_trainer
from scenarios.worker.errors import JobError
from scenarios.worker.job import measure
from scenarios.worker.models import build_model
from scenarios.worker.numerics import numerics_of
from scenarios.worker.protocol import Events
from scenarios.worker.spec import Spec
from scenarios.worker.tally import together
from scenarios.worker.training import LEARNING_RATE
from scenarios.worker.usage import whole_usage


def run_rank(spec: Spec, cluster: Cluster, device: Device, events: Events) -> None:
    """From the meeting of the ranks to ``done``. Raises JobError, of kind ``network`` when another rank is lost."""

    def report(error: JobError) -> None:
        """For a rank that the watch must end, because gloo does not wake it."""
        events.error(error.kind, str(error))

    if cluster.is_server:
        with joined(cluster, "cpu", report=report) as workers:
            events.emit("built")
            served = serve(workers, learning_rate=LEARNING_RATE, threads=spec.threads)
        events.emit("done", usage=whole_usage(), exchanged=asdict(served))
        return
    with contextlib.ExitStack() as stack:
        batches = stack.enter_context(opened_batches(spec))
        numerics = numerics_of(spec.recipe, spec.device)
        numerics.apply()
        model = build_model(spec.model, spec.seed)
        group = stack.enter_context(joined(cluster, spec.device, report=report))
        with opened_trainer(group, model, device, batches[0], numerics) as trainer:
            events.emit("built")
            measure(spec, trainer, events)
        uses = [use for each in batches if (use := each.close())]
        exchanged = {"bytes_sent": trainer.bytes_sent, "bytes_received": trainer.bytes_received}
    data_use = asdict(together(uses)) if uses else None
    events.emit("done", usage=whole_usage(), data_use=data_use, exchanged=exchanged)
