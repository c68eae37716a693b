"""A server and its client, each on an instance of the target, joined as the ranks of a distributed job are.

A generator's server is launched; one of the user's own is started by its command, or from a snapshot of its guest.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Self

from scenarios.distributed import LAST_WORDS_S, RankProcess, followed
from scenarios.events import EventLog
from scenarios.job import AttestedJob, attest, listening
from scenarios.serving_options import ServingOptions
from suite.errors import BenchError, MeasurementError, option
from suite.interfaces import Context, Instance, Node, Observer, Snapshot
from suite.job.datasets import MOST_COLD, PageCache
from suite.plan import Trial
from suite.records.record import MetricValue
from suite.records.usage import Usage
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from worker.data.page_cache import arrange
from worker.spec import LoadRequest, Strict

_MIB = 1 << 20
_RESENT = "TCPSynRetrans"


class ServiceScenario(PlannedScenario):
    """Base of the services: one server, asked by one client."""

    name = "serve"
    options = ServingOptions
    trains = False
    joined = inventory = service = True
    unnamed = "gan"
    no_turns = "a service is asked in one piece"
    deciding = ("throughput", "latency-p50")

    def ranks(self, request: RunRequest) -> tuple[int, int]:
        return 1, 1


@dataclass(frozen=True)
class Launch:
    """A program of the worker that serves or asks: its specification, its word, and the phases by its events."""

    spec: Strict
    word: str
    phases: Mapping[str, str]


@dataclass
class ServedPair:
    """A server and the client that asks it."""

    server: RankProcess
    client: RankProcess
    client_waits: Event
    """Set once the client waits for the server, or has failed."""

    @classmethod
    def of(
        cls,
        trial: Trial,
        instances: Sequence[Instance],
        server: Launch,
        client: Launch,
        observer: Observer,
        *,
        waits_at: str = "environment",
        **more: Any,  # noqa: ANN401 (fields of a subclass)
    ) -> Self:
        """Attest both instances for a server and its client, which waits once it has said the event ``waits_at``."""
        client_waits = Event()

        def hear(event: str) -> None:
            if event == waits_at:
                client_waits.set()

        asking_log = EventLog(phases=client.phases, observer=observer, heard=hear)
        serving = _rank(trial, 0, instances, server, EventLog(phases=server.phases))
        asking = _rank(trial, 1, instances, client, asking_log)
        return cls(serving, asking, client_waits, **more)

    def to_its_end(self, account: Context) -> float:
        """Launch the server once the client waits for it. Returns the seconds from then until both have ended."""
        with listening([self.server.job, self.client.job]) as pool:
            self.client.job.launch()
            asking = pool.submit(self.client.job.follow)
            asking.add_done_callback(lambda _: self.client_waits.set())
            self.client_waits.wait()
            if asking.done():
                asking.result()
            with account:
                self.server.job.launch_ordered()
                # It reads on until a line comes.
                asking.add_done_callback(lambda _: self.server.job.order(b"end"))
                serving: Future[float] = pool.submit(self.server.job.follow)
                return followed([self.server, self.client], [serving, asking])


def _rank(trial: Trial, number: int, instances: Sequence[Instance], part: Launch, log: EventLog) -> RankProcess:
    share = trial.instances[number]
    own = trial.with_job(envelope=share.envelope)
    job = attest(own, instances[number].node, part.spec, log, part.word)
    return RankProcess(number, share.role, instances[number], job)


@dataclass
class OwnPair(ServedPair, ABC):
    """A server of the user's own, and the client that asks it."""

    tokens: bool
    """Whether its answers come as streams of tokens."""

    @property
    @abstractmethod
    def starts_s(self) -> float:
        """The moment of the host's clock at which it starts."""

    @abstractmethod
    def own_openings_s(self) -> Mapping[str, float]:
        """Return the times of this kind of start, by metric."""

    def details(self) -> Mapping[str, object]:
        """Return what a record says of the start."""
        return {}

    def notes(self) -> list[str]:
        return []

    def usage(self) -> Usage | None:
        """Return what the server used, by its own account."""
        used: Usage | None = self.server.job.log.usage()
        return used

    def openings(self) -> dict[str, MetricValue]:
        """Return the times of the start as metrics."""
        events = self.client.job.log.events
        ready_s = events["ready"].arrived_s - self.starts_s
        seconds = {**self.own_openings_s(), "start-to-ready": ready_s}
        first_token_s = events["answered"].fields.get("first_token_after_s")
        if self.tokens and isinstance(first_token_s, float):
            seconds["start-to-first-token"] = ready_s + first_token_s
        # The lines of the two processes come by two pipes: one of them that is read late is dated after the other.
        in_order = {name: value for name, value in seconds.items() if value > 0}
        return {name: MetricValue(value=value, unit="s", better="less") for name, value in in_order.items()}


@dataclass
class StartedPair(OwnPair):
    """A server that its command starts in a ready target."""

    @property
    def starts_s(self) -> float:
        launched_s: float = self.server.job.log.events["launched"].arrived_s
        return launched_s

    def own_openings_s(self) -> Mapping[str, float]:
        cold_s = self.client.job.log.events["answered"].arrived_s - self.server.job.log.begun_s
        return {
            "cold-start": cold_s,
            "cold-start-with-opening": cold_s + self.server.instance.node.opening.seconds,
        }


@dataclass
class SavedPair(OwnPair):
    """A server that is saved with its guest once it has answered, and measured from when a hypervisor loads that.

    The client is launched before, and gets its request when the hypervisor holds what is sent to the guest: what it
    sends earlier would be lost, and sent again only a second later.
    """

    snapshot: Snapshot
    once: LoadRequest
    """The requests that the server answers before it is saved."""
    page_cache: PageCache | None
    """The state into which the snapshot's file is brought in the host's page cache; None: as saving has left it."""
    size_bytes: int = 0
    save_s: float = 0.0
    page_cache_share: object = None
    """The share of the file in the page cache when it is loaded; None if it is as saving has left it."""
    resent: int | None = None
    """How often the client had to ask for a connection again, each a second late or more; None if unknown."""
    connected_s: float = 0.0
    loaded_s: float = 0.0
    """The moments at which the hypervisor answered, and the guest ran on."""

    @property
    def starts_s(self) -> float:
        begun_s: float = self.server.job.log.begun_s
        return begun_s

    def own_openings_s(self) -> Mapping[str, float]:
        events = self.client.job.log.events
        return {
            "cold-start-with-opening": events["answered"].arrived_s - self.starts_s,
            "restore-hypervisor": self.connected_s - self.starts_s,
            "restore-memory": self.loaded_s - self.connected_s,
            "restore-answer": events["ready"].arrived_s - self.loaded_s,
        }

    def details(self) -> Mapping[str, object]:
        late_s = self.client.job.log.events["environment"].arrived_s - self.loaded_s
        snapshot = {
            "method": self.snapshot.method,
            "size_bytes": self.size_bytes,
            "save_s": self.save_s,
            "page_cache_share": self.page_cache_share,
            "client_late_s": max(0.0, late_s),
            "client_resent": self.resent,
        }
        return {"snapshot": snapshot}

    def notes(self) -> list[str]:
        notes = [f"started from a snapshot of {self.size_bytes // _MIB} MiB, saved in {self.save_s:.3g} s"]
        if self.resent:
            notes.append("its start is too long by a second or more: what the client sent was lost, and sent again")
        return notes

    def usage(self) -> Usage | None:
        """Return nothing: the server's own account has what it did before it was saved, too."""
        return None

    def to_its_end(self, account: Context) -> float:
        """Save the server's guest, load it and measure. Returns the seconds from then until both have ended."""
        observer = self.client.job.log.observer
        observer.phase("starting the server to be saved")
        self._answer_once()
        server = self.server.job
        client = self.client.job
        with listening([server, client]) as pool:
            client.log.begin()
            client.launch_waiting(client.argv)
            asking = pool.submit(client.follow)
            asking.add_done_callback(lambda _: self.client_waits.set())
            self.client_waits.wait()
            if asking.done():
                asking.result()
            observer.phase("saving the guest")
            self._save()
            observer.phase("loading the guest")
            resent_before = _resent(client.node)
            with account:
                server.log.begin()
                self.snapshot.start()
                self.snapshot.connect()
                self.connected_s = time.monotonic()
                client.order(client.spec.encoded())
                client.end_orders()
                self.snapshot.load()
                self.loaded_s = time.monotonic()
                wait([asking])
                self._reach_server(asking)
                server.launch_waiting(self.snapshot.following)
                server.order(b"end")
                serving = pool.submit(server.follow)
                elapsed_s = followed([self.server, self.client], [serving, asking])
        resent_after = _resent(client.node)
        if resent_before is not None and resent_after is not None:
            self.resent = resent_after - resent_before
        for name in ("started", "environment", "launched"):  # it had happened when the guest ran on
            server.log.events[name] = replace(server.log.events[name], arrived_s=self.loaded_s)
        return elapsed_s

    def _answer_once(self) -> None:
        """Start the server without a connection, and have it answer. Raises MeasurementError of who failed first."""
        fresh = self.server.job
        self.snapshot.detach(fresh.argv, fresh.spec.encoded())
        self.server = replace(self.server, job=_with_new_log(fresh))  # its log explains a failure
        asking = _with_new_log(self.client.job)
        asking.spec = self.once
        client = replace(self.client, job=asking)
        watched = self.server.job
        with listening([watched, asking]) as pool:
            watched.log.begin()
            watched.launch_waiting(self.snapshot.following)
            asking.launch()
            serving = pool.submit(watched.follow)
            answering = pool.submit(asking.follow)
            answering.add_done_callback(partial(_end_unless_answered, watched))
            wait([serving, answering], return_when=FIRST_COMPLETED)
            if serving.done() or answering.exception():
                followed([self.server, client], [serving, answering])
            watched.end_orders()  # it is followed no longer, and runs on
            wait([serving], timeout=LAST_WORDS_S)
        self.server = replace(self.server, job=_with_new_log(fresh))

    def _save(self) -> None:
        begin_s = time.monotonic()
        directory = self.snapshot.save()
        self.save_s = time.monotonic() - begin_s
        self.size_bytes = sum(file.stat().st_size for file in directory.iterdir())
        if self.page_cache:
            self.page_cache_share = _arranged(directory, self.page_cache)

    def _reach_server(self, asking: "Future[float]") -> None:
        """Connect to the loaded guest. Raises the client's failure, which comes first, if that fails."""
        try:
            self.server.job.node.run(["true"])
        except BenchError:
            asking.result()
            raise


def _with_new_log(job: AttestedJob[Any]) -> AttestedJob[Any]:
    return replace(job, log=EventLog(phases=job.log.phases))


def _resent(node: Node) -> int | None:
    """Return how many requests for a connection the node has sent again; see netstat(8), ``TCPSynRetrans``."""
    lines = node.run(["cat", "/proc/net/netstat"], check=False).stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith("TcpExt:")]
    if len(rows) < 2 or _RESENT not in rows[0]:
        return None
    return int(rows[1][rows[0].index(_RESENT)])


def _end_unless_answered(server: AttestedJob[Any], answering: "Future[float]") -> None:
    if answering.exception():
        server.order(b"end")


def _arranged(directory: Path, state: PageCache) -> object:
    """Bring the files into the state, and return the share of their pages in memory. Raises MeasurementError."""
    share = arrange(state, str(directory))["page_cache_share"]
    if state == "cold" and isinstance(share, float) and share > MOST_COLD:
        raise MeasurementError(
            f"{share:.1%} of the snapshot stay in the page cache, {MOST_COLD:.0%} may",
            kind="page-cache",
            remedy=f"set VIRTBENCH_HOME to a disk, or use {option('cache')} warm",
        )
    return share
