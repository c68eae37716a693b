"""A server and its client, each on an instance of the target, joined as the ranks of a distributed job are."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event

from scenarios.distributed import RankProcess, followed
from scenarios.events import EventLog
from scenarios.job import attest, listening
from scenarios.serving_options import ServingOptions
from suite.interfaces import Context, Instance, Observer
from suite.plan import Trial
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from worker.spec import Strict


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
        cls, trial: Trial, instances: Sequence[Instance], server: Launch, client: Launch, observer: Observer
    ) -> "ServedPair":
        """Attest both instances for a server and its client."""
        client_waits = Event()

        def hear(event: str) -> None:
            if event == "environment":
                client_waits.set()

        asking_log = EventLog(phases=client.phases, observer=observer, heard=hear)
        serving = _rank(trial, 0, instances, server, EventLog(phases=server.phases))
        asking = _rank(trial, 1, instances, client, asking_log)
        return cls(serving, asking, client_waits)

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
