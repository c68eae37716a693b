"""Distributed training: the ranks of one job, each in an instance of its own, launched and heard together."""

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from scenarios.events import ORDER, SERVER_ORDER, Transcript
from scenarios.job import (
    attest,
    follow,
    measurement_of,
    merged_environment,
    recordable,
    specification,
    worker_argv,
    workload_of,
)
from scenarios.reading import Seen, arrange_page_cache, data_of, data_use
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, Observer, Process
from suite.job.distributed import DistributedJob
from suite.job.job import Devices
from suite.plan import Trial
from suite.records.record import DataUse, Rank, TrialRecord

PORT = 29500
"""The port of the rendezvous where rank 0 has a network of its own: nothing else listens there."""
LAST_WORDS_S = 10.0
"""How long the others have, after one rank has failed, to say whom they lost."""


class Distributed:
    """The paper's distributed benchmark: parameter servers, or all-reduce."""

    name = "distributed"

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: AbstractContextManager[object],
    ) -> Measurement:
        """Run all ranks. Raises MeasurementError, with the rank that failed first, unless the job comes to its end."""
        if trial.job.distributed is None:
            raise MeasurementError("a distributed job was planned without its instances", kind="plan")
        ranks = [
            self._prepared(trial, trial.job.distributed, rank, instances, observer) for rank in range(len(instances))
        ]
        with account:
            elapsed_s = _run(ranks)
        return _measurement(trial, ranks, elapsed_s)

    def _prepared(
        self, trial: Trial, job: DistributedJob, rank: int, instances: Sequence[Instance], observer: Observer
    ) -> "_Rank":
        """Attest a rank, arrange its page cache, and prepare its launch."""
        instance, planned = instances[rank], trial.instances[rank]
        own = trial.with_job(envelope=planned.envelope, devices=Devices(device=trial.job.devices.device))
        argv = worker_argv(instance.node, own)
        data = data_of(own, instance.node)
        observer.phase("attesting", f"rank {rank}")
        attested = attest(instance.node, argv, trial.trial_timeout_s)
        seen = arrange_page_cache(own, instance.node, worker_argv, observer)
        spec = specification(own, data, _view(job, rank, instances, trial.trial_timeout_s))
        first_worker = rank == job.servers
        order = SERVER_ORDER if planned.role == "server" else ORDER
        transcript = Transcript(workload_of(trial), observer if first_worker else _Silent(), order=order)
        return _Rank(rank, own, instance, argv, spec, attested, seen, transcript)


def _view(job: DistributedJob, rank: int, instances: Sequence[Instance], join_timeout_s: float) -> Mapping[str, object]:
    """Return the key ``distributed`` of a rank's specification: see ``worker.distributed.membership``."""
    return {
        "strategy": job.strategy,
        "rank": rank,
        "workers": job.workers,
        "servers": job.servers,
        "master": instances[0].address,
        "port": instances[0].port or PORT,
        "interface": instances[rank].interface,
        "timeout_s": job.comm_timeout_s,
        "join_timeout_s": join_timeout_s,
    }


@dataclass
class _Rank:
    """One rank, from its launch to what it said."""

    number: int
    trial: Trial
    """The trial with the envelope of this instance."""
    instance: Instance
    argv: list[str]
    spec: bytes
    attested: Mapping[str, object]
    seen: Seen | None
    transcript: Transcript
    process: Process | None = field(default=None)

    @property
    def is_server(self) -> bool:
        return self.transcript.order is SERVER_ORDER

    @property
    def name(self) -> str:
        return f"{'server' if self.is_server else 'worker'} (rank {self.number}) on {self.instance.node.name}"

    def launch(self) -> None:
        self.transcript.begin()
        self.process = self.instance.node.start(self.argv, stdin=self.spec)

    def follow(self) -> float:
        if self.process is None:
            raise MeasurementError(f"{self.name} was not launched", kind="plan")
        return follow(self.trial, self.argv, self.process, self.transcript)

    def kill(self) -> None:
        if self.process:
            self.process.kill()


class _Silent:
    """An observer for all ranks but one: a display has one line."""

    def trial_started(self, trial: Trial, number: int, of: int) -> None: ...
    def phase(self, name: str, detail: str = "") -> None: ...
    def trial_finished(self, record: TrialRecord) -> None: ...
    def note(self, text: str) -> None: ...


def _run(ranks: Sequence[_Rank]) -> float:
    """Launch all and hear them to their ends. Returns the seconds from the first launch to the last end."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        try:
            for rank in ranks:
                rank.launch()
            return _followed(ranks, [pool.submit(rank.follow) for rank in ranks])
        finally:
            # Also on Ctrl-C: the threads end with what they listen to.
            for rank in ranks:
                rank.kill()


def _followed(ranks: Sequence[_Rank], futures: "list[Future[float]]") -> float:
    _, listening = wait(futures, return_when=FIRST_EXCEPTION)
    # A rank that says nothing even now is cut off or hangs: how it ends by our hand explains nothing.
    _, silent = wait(listening, timeout=LAST_WORDS_S)
    for rank in ranks if silent else ():
        rank.kill()
    wait(futures)
    ended = [each for each in zip(ranks, futures, strict=True) if each[1] not in silent]
    failed = [(rank, error) for rank, future in ended if (error := future.exception())]
    if failed:
        raise _blamed(failed)
    begun_s = ranks[0].transcript.begun_s
    ends_s = [rank.transcript.begun_s + future.result() for rank, future in zip(ranks, futures, strict=True)]
    return max(ends_s) - begun_s


def _blamed(failed: Sequence[tuple[_Rank, BaseException]]) -> BaseException:
    """Return the failure that explains the others: a rank that lost a peer says ``network``, and the peer says why."""
    known = [(rank, error) for rank, error in failed if isinstance(error, MeasurementError)]
    if len(known) < len(failed):
        return next(error for _, error in failed if not isinstance(error, MeasurementError))
    rank, error = next(((r, e) for r, e in known if e.kind != "network"), known[0])
    others = "\n".join(f"--- {other.name}: {told.message}" for other, told in known if other is not rank)
    return MeasurementError(
        f"{rank.name}: {error.message}",
        kind=error.kind,
        command=error.command,
        output_tail="\n".join(part for part in (error.output_tail, others) if part),
        remedy=error.remedy,
    )


def _measurement(trial: Trial, ranks: Sequence[_Rank], elapsed_s: float) -> Measurement:
    workers = [rank for rank in ranks if not rank.is_server]
    measured = {}
    for rank in workers:
        with recordable(rank.argv):
            measured[rank.number] = measurement_of(
                rank.trial, rank.instance.node, rank.attested, rank.transcript, elapsed_s
            )
    with recordable(workers[0].argv):
        records = [_record(rank, measured.get(rank.number)) for rank in ranks]
        use = _data_use(trial, workers)
    first = measured[workers[0].number]
    return replace(
        first,
        elapsed_s=elapsed_s,
        throughput_images_per_s=sum(each.throughput_images_per_s or 0.0 for each in measured.values()),
        data_use=use,
        ranks=records,
    )


def _record(rank: _Rank, measured: Measurement | None) -> Rank:
    events = rank.transcript.events
    exchanged = events["done"].fields.get("exchanged")
    counted = exchanged if isinstance(exchanged, Mapping) else {}
    steps = measured.steps if measured else None
    environment = (
        measured.environment
        if measured
        else merged_environment(rank.attested, events["environment"].fields, rank.instance.node.facts)
    )
    return Rank(
        rank=rank.number,
        role="server" if rank.is_server else "worker",
        address=str(rank.instance.address),
        interface=str(rank.instance.interface),
        node_address=rank.instance.node_address,
        environment=environment,
        throughput_images_per_s=measured.throughput_images_per_s if measured else None,
        measured_s=rank.transcript.between("measuring", "measured") if measured else None,
        data_s=sum(steps.data_s) if steps else None,
        compute_s=sum(steps.compute_s) if steps else None,
        communicate_s=sum(steps.communicate_s) if steps and steps.communicate_s else None,
        sent_bytes=counted.get("bytes_sent"),
        received_bytes=counted.get("bytes_received"),
        links=list(rank.instance.links),
        clock_offset_s=rank.instance.clock_offset_s,
    )


def _data_use(trial: Trial, workers: Sequence[_Rank]) -> DataUse | None:
    """Return the use by the first worker: every worker has the whole data set, as in the paper."""
    first = workers[0]
    return data_use(trial, first.transcript.events["done"].fields.get("data_use"), first.seen)
