"""Distributed training: the ranks of one job, each in an instance of its own, launched and heard together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from scenarios.events import SERVER_ORDER, Silent
from scenarios.job import AttestedJob, data_use_of, digest_of_ranks, listening, measurement_of, prepare, recordable
from scenarios.training import ReadingScenario, with_whole_epochs
from scenarios.turns import TrainingTurns
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Observer, TurnTaker
from suite.job.distributed import DistributedJob, Role, Strategy
from suite.job.job import Devices
from suite.plan import Trial, planned
from suite.records.record import Rank, Turn
from suite.registries import WORKLOADS
from suite.request.option import Count, OptionGroup, about, given
from suite.request.request import RunRequest
from worker.spec import GENERATOR_RANK, SERVERLESS, SPLIT, Membership

PORT = 29500
"""The port of the rendezvous where rank 0 has a network of its own: nothing else listens there."""
LAST_WORDS_S = 10.0
"""How long the others have, after one rank has failed, to say whom they lost."""
_Told = TypeVar("_Told")


class DistributedOptions(OptionGroup):
    """Scenario distributed."""

    strategy: Strategy = about(
        "parameter-server",
        "Exchange between instances. Gradients by parameter-server, parameter-server-async or all-reduce; split: one "
        "has the generator of a GAN, the other the discriminator and the data.",
    )
    workers: Count | None = about(None, "Workers of the job. Default: 2.")
    ps: Count | None = about(
        None,
        "Parameter servers of the job. Default: 1; all-reduce and split have none.",
        excludes=(given("strategy", *SERVERLESS, why="it has no server"),),
    )


class Distributed(ReadingScenario):
    """The paper's distributed benchmark: parameter servers, all-reduce, or a split GAN."""

    name = "distributed"
    options = DistributedOptions
    joined = spread = inventory = keeps = epochs = True

    def trainers(self, request: RunRequest) -> int:
        return self.ranks(request)[0]

    def ranks(self, request: RunRequest) -> tuple[int, int]:
        options = request.options(DistributedOptions)
        return options.workers or 2, 0 if options.strategy in SERVERLESS else options.ps or 1

    def batches(self, request: RunRequest) -> int:
        return 1 if self.strategy(request) == SPLIT else self.trainers(request)

    def strategy(self, request: RunRequest) -> Strategy:
        return request.options(DistributedOptions).strategy

    def check_devices(self, request: RunRequest) -> None:
        parallel = request.gpus.parallel
        (_, servers) = self.ranks(request)
        if parallel == "ddp" or (parallel != "none" and not servers):
            raise RequestError(
                f"{option('parallel')} {parallel} does not go with {option('scenario')} {self.name}, "
                f"{option('strategy')} {self.strategy(request)}: the devices of a worker share parameters on its CPU, "
                "which it exchanges with servers",
                remedy=f"use {option('parallel')} parameter-cpu with {option('strategy')} parameter-server; or leave "
                f"out {option('parallel')} and {option('devices')}, for one GPU for each of the {option('workers')}",
            )

    def check_model(self, request: RunRequest, model: str) -> None:
        super().check_model(request, model)
        conflict = next(self._conflicts(request, model), None)
        if conflict:
            conflict_text, remedy = conflict
            raise RequestError(conflict_text, remedy=f"use {remedy}")

    def _conflicts(self, request: RunRequest, model: str) -> Iterator[tuple[str, str]]:
        """Yield why the strategy cannot train a workload, and what can."""
        workload = WORKLOADS.get(model)
        strategy = self.strategy(request)
        (workers, servers) = self.ranks(request)
        chosen = f"{option('strategy')} {strategy}"
        all_reduce = f"{option('strategy')} all-reduce"
        if workload.communicates and (strategy != "all-reduce" or workers < 2):
            which = chosen if strategy != "all-reduce" else f"{option('workers')} {workers}"
            message = f"{model} exchanges messages between workers, which {which} does not have it do"
            yield message, f"{all_reduce} with {option('workers')} 2 or more"
        if strategy == SPLIT and not workload.splits:
            yield f"{model} has no generator and discriminator that {chosen} could put on two instances", all_reduce
        if strategy == SPLIT and workers != 2:
            message = f"{chosen} has one instance for the generator and one for the discriminator, not {workers}"
            yield message, f"{option('workers')} 2"
        if servers and not workload.descends:
            yield (
                f"parameter servers update by plain gradient descent, and {model} has optimizers of its own",
                all_reduce,
            )

    def measure(
        self,
        trial: Trial,
        instances: Sequence[Instance],
        observer: Observer,
        account: Context,
    ) -> Measurement:
        """Run all ranks. Raises MeasurementError, with the rank that failed first, unless the job comes to its end."""
        ranks = _prepared(trial, instances, observer)
        measured = {}
        with account, listening([rank.job for rank in ranks]) as pool:
            for rank in ranks:
                rank.job.launch()
            following = [pool.submit(rank.job.follow) for rank in ranks]
            elapsed_s = followed(ranks, following)
        for rank in _workers(ranks):
            with recordable(rank.job.argv):
                measured[rank.number] = with_whole_epochs(rank.job, measurement_of(rank.job, elapsed_s))
        return _measurement(ranks, measured)

    def turn_taker(self, trial: Trial, instances: Sequence[Instance], observer: Observer) -> TurnTaker:
        return RankTurns(_prepared(trial, instances, observer))


@dataclass
class RankProcess:
    """One rank, from its launch to what it said."""

    number: int
    role: Role
    instance: Instance
    job: AttestedJob[Any]

    @property
    def name(self) -> str:
        return f"{self.role} (rank {self.number}) on {self.instance.node.name}"


class RankTurns:
    """The ranks of one job, of which all workers take their turn at once. See ``suite.interfaces.TurnTaker``.

    A server needs no word of the host's: it has nothing to do until its workers send something.
    """

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        self._ranks = ranks
        self._turns = {rank.number: TrainingTurns(rank.job) for rank in _workers(ranks)}

    @property
    def finished(self) -> bool:
        return False

    def begin(self) -> None:
        # The ranks meet while they are built, so all are launched first.
        for rank in self._ranks:
            if rank.number in self._turns:
                rank.job.launch_ordered()
            else:
                rank.job.launch()
        self._each(TrainingTurns.ready)

    def turn(self) -> Turn:
        """Let each worker take its turn, which lasts as long as that of the slowest.

        The rest is the first worker's own account, as the steps of a distributed job are.
        """
        turns = self._each(TrainingTurns.turn)
        span_s = max(turn.span_s for turn in turns)
        heard_s = max(turn.heard_s for turn in turns)
        return replace(turns[0], span_s=span_s, heard_s=heard_s)

    def end(self) -> Measurement:
        measured = self._each(TrainingTurns.end, to_the_end=True)
        by_rank = dict(zip(self._turns, measured, strict=True))
        return _measurement(self._ranks, by_rank)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.job.kill()

    def _each(self, method: Callable[[TrainingTurns], _Told], *, to_the_end: bool = False) -> list[_Told]:
        """Call the method of all workers at once. Returns what they tell, by rank.

        Servers are heard ``to_the_end`` alone, and where a worker fails: one of them may be the reason. Raises the
        failure that explains the others.
        """
        workers = _workers(self._ranks)
        servers = [rank for rank in self._ranks if rank.role == "server"]
        with ThreadPoolExecutor(len(self._ranks)) as pool:
            try:
                futures = [pool.submit(method, turns) for turns in self._turns.values()]
                wait(futures, return_when=FIRST_EXCEPTION)
                if to_the_end or any(each.done() and each.exception() for each in futures):
                    followed_servers = (pool.submit(rank.job.follow) for rank in servers)
                    awaited([*servers, *workers], [*followed_servers, *futures])
                return [each.result() for each in futures]
            except BaseException:
                # Also on Ctrl-C: the threads end with what they listen to.
                self.kill()
                raise


def _prepared(trial: Trial, instances: Sequence[Instance], observer: Observer) -> list[RankProcess]:
    distributed = planned(trial.job.distributed, "its instances")
    return [_rank(trial, distributed, number, instances, observer) for number in range(len(instances))]


def _workers(ranks: Sequence[RankProcess]) -> list[RankProcess]:
    return [rank for rank in ranks if rank.role == "worker"]


def _rank(
    trial: Trial,
    distributed: DistributedJob,
    number: int,
    instances: Sequence[Instance],
    observer: Observer,
) -> RankProcess:
    instance = instances[number]
    share = trial.instances[number]
    keeps = GENERATOR_RANK if distributed.strategy == SPLIT else distributed.servers
    trial_of_rank = trial.with_job(
        envelope=share.envelope,
        # A server has no GPU: its parameters are in host memory.
        devices=trial.job.devices if share.role == "worker" else Devices(),
        keep_model=trial.job.keep_model if number == keeps else None,
    )
    view = Membership(
        strategy=str(distributed.strategy),
        rank=number,
        workers=distributed.workers,
        servers=distributed.servers,
        master=instances[0].address or "",
        port=instances[0].port or PORT,
        interface=instance.interface or "",
        timeout_s=distributed.comm_timeout_s,
        join_timeout_s=trial.trial_timeout_s,
    )
    job = prepare(trial_of_rank, instance.node, observer, f"rank {number}", distributed=view)
    if share.role == "server":
        job.log.order = SERVER_ORDER
    if number != distributed.servers:
        job.log.observer = Silent()  # a display has one line: that of the first worker
    return RankProcess(number, share.role, instance, job)


def followed(ranks: Sequence[RankProcess], futures: "list[Future[float]]") -> float:
    """Return the seconds from the first launch to the last end. Raises the failure that explains the others."""
    awaited(ranks, futures)
    begun_s: float = ranks[0].job.log.begun_s
    pairs = zip(ranks, futures, strict=True)
    ends_s: list[float] = [rank.job.log.begun_s + future.result() for rank, future in pairs]
    return max(ends_s) - begun_s


def awaited(ranks: Sequence[RankProcess], futures: "Sequence[Future[Any]]") -> None:
    """Wait for what each rank is asked for. Raises the failure that explains the others."""
    _, listening = wait(futures, return_when=FIRST_EXCEPTION)
    # A rank that says nothing even now is cut off or hangs: how it ends by our hand explains nothing.
    _, silent = wait(listening, timeout=LAST_WORDS_S)
    for rank in ranks if silent else ():
        rank.job.kill()
    wait(futures)
    pairs = zip(ranks, futures, strict=True)
    ended = [each for each in pairs if each[1] not in silent]
    failed = [(rank, error) for rank, future in ended if (error := future.exception())]
    if failed:
        raise _blamed(failed)


def _blamed(failed: Sequence[tuple[RankProcess, BaseException]]) -> BaseException:
    """Return the failure that explains the others: a rank that lost a peer says ``network``, and the peer says why."""
    failures = [(rank, error) for rank, error in failed if isinstance(error, MeasurementError)]
    if len(failures) < len(failed):
        return next(error for _, error in failed if not isinstance(error, MeasurementError))
    other_kinds = ((r, e) for r, e in failures if e.kind != "network")
    rank, error = next(other_kinds, failures[0])
    others = "\n".join(
        f"--- {other.name}: {other_error.message}" for other, other_error in failures if other is not rank
    )
    return MeasurementError(
        f"{rank.name}: {error.message}",
        kind=error.kind,
        command=error.command,
        output_tail="\n".join(part for part in (error.output_tail, others) if part),
        remedy=error.remedy,
    )


def _measurement(ranks: Sequence[RankProcess], measured: Mapping[int, Measurement]) -> Measurement:
    """Return the job's numbers from those ``measured`` of its workers, by rank."""
    first = _workers(ranks)[0]
    job = first.job.trial.job
    batches = [first.number] if job.one_batch else list(measured)
    holding = (each for each in measured.values() if each.kept)
    keeping = next(holding, measured[first.number])
    # The networks of a split GAN are on both ranks; workers of other strategies have the first one's weights.
    strategy = job.distributed and job.distributed.strategy
    trained = measured.values() if strategy == SPLIT else [measured[first.number]]
    with recordable(first.job.argv):
        return measured[first.number].changed(
            kept=keeping.kept,
            models=keeping.models,
            throughput_per_s=sum(measured[number].throughput_per_s or 0.0 for number in batches),
            weights_sha256=digest_of_ranks([each.weights_sha256 for each in trained]),
            drawn_sha256=digest_of_ranks([each.drawn_sha256 for each in measured.values()]),
            unfinished_s=max(filter(None, (each.unfinished_s for each in measured.values())), default=None),
            # Every worker has the whole data set, as in the paper.
            data_use=data_use_of(first.job),
            ranks=[record_of(rank, measured.get(rank.number)) for rank in ranks],
        )


def check_way(rank: RankProcess, exchanged: Mapping[str, Any]) -> None:
    """Raise MeasurementError if the messages of a rank did not pass its interface, as by NVLink or shared memory."""
    sent = exchanged.get("bytes_sent")
    passed = exchanged.get("interface_sent_bytes")
    if isinstance(sent, int) and isinstance(passed, int) and passed < sent / 2:
        raise MeasurementError(
            f"rank {rank.number} sent {sent} bytes, and {passed} passed its interface {rank.instance.interface}",
            kind="network",
            remedy="its messages took another way than the network that is measured; please report it with this record",
        )


def record_of(rank: RankProcess, measured: Measurement | None = None) -> Rank:
    """Return what a record holds of a rank; ``measured`` is what a worker that trains has measured."""
    instance = rank.instance
    log = rank.job.log
    # Checked by the record.
    exchanged: Mapping[str, Any] = log.said("done", "exchanged")
    check_way(rank, exchanged)
    steps = measured.steps if measured else None
    return Rank(
        rank=rank.number,
        role=rank.role,
        address=str(instance.address),
        interface=str(instance.interface),
        node_address=instance.node_address,
        environment=rank.job.environment(),
        throughput_per_s=measured.throughput_per_s if measured else None,
        measured_s=measured.timeline.measured_s if measured and measured.timeline else None,
        data_s=sum(steps.data_s or ()) if steps else None,
        compute_s=sum(steps.compute_s or ()) if steps else None,
        communicate_s=sum(steps.communicate_s) if steps and steps.communicate_s else None,
        sent_bytes=exchanged.get("bytes_sent"),
        received_bytes=exchanged.get("bytes_received"),
        interface_sent_bytes=exchanged.get("interface_sent_bytes"),
        interface_received_bytes=exchanged.get("interface_received_bytes"),
        links=list(instance.links),
        clock_offset_s=instance.clock_offset_s,
    )
