"""A server of the user's own: its command is started in one instance of the target, and asked from another.

In the same trial a server that answers at once is asked first: what that takes is the cost of network and client.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.command import command_data_set
from scenarios.distributed import record_of
from scenarios.events import EventLog, Silent
from scenarios.job import metrics_of, recordable, throughput_of, worker_argv
from scenarios.reading import TEMPORARY, empty_page_cache
from scenarios.served_pair import Launch, OwnPair, SavedPair, ServedPair, ServiceScenario, StartedPair
from scenarios.served_requests import bodies_of, digest_of
from scenarios.serving_options import CHAT, MODELS, READY_WITHIN_S, ServingOptions, load_of
from suite.errors import MeasurementError, RequestError, option
from suite.interfaces import Context, Instance, Measurement, Note, Observer
from suite.job.command import CommandJob, parse_command
from suite.job.datasets import Dataset, PageCache
from suite.job.profiles import EXTENTS, Profile
from suite.job.serving import LOADS, TOKEN_LOADS, Limit, OwnServer, Serving, parse_limit
from suite.plan import Trial, planned
from suite.records.record import MetricValue, Timeline
from suite.request.request import RunRequest
from worker.spec import LoadRequest, NullServerRequest, ServerRequest

SERVER_PHASES = {
    "started": "preparing",
    "environment": "preparing",
    "launched": "serving",
    "stopping": "ending",
    "done": "finishing",
}
NULL_PHASES = {name: phase for name, phase in SERVER_PHASES.items() if name != "stopping"}
CLIENT_PHASES = {
    "started": "preparing",
    "environment": "waiting until the server is ready",
    "ready": "waiting for the first answer",
    "answered": "measuring",
    "metrics": "finishing",
    "done": "finishing",
}
PATH_PHASES = {name: phase for name, phase in CLIENT_PHASES.items() if name != "ready"}
"""The events of servers and clients in their order, and the phase that begins with each."""
PATH_REQUESTS = 200
"""The most requests to the server that answers at once: their median is known well enough then."""
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 (in an instance of its own)


class OwnServing(ServiceScenario):
    """One server of the user's own, under one load."""

    workloads = service = False

    def __init__(self, command: CommandJob, server: OwnServer, bodies: tuple[str, ...]) -> None:
        self._command = command
        self._server = server
        self._bodies = bodies

    @classmethod
    def of(cls, request: RunRequest) -> "OwnServing":
        """Return the scenario of a request. Raises RequestError, also for a file of bodies that cannot be sent."""
        asked = request.options(ServingOptions)
        if not asked.port:
            raise RequestError(
                f"{option('scenario')} {cls.name} with {option('command')} needs {option('port')}",
                remedy=f"add {option('port')} 8000, at which your server listens",
            )
        unused = [name for name in (*EXTENTS, "channels") if request.value(name) is not None]
        if unused:
            raise RequestError(
                f"{option(unused[0])} would change nothing: it is about generators, and {option('command')} is served",
                remedy="leave it out",
            )
        path = asked.path or (CHAT if asked.api == "openai" else "/")
        bodies = bodies_of(asked, path)
        server = _server_of(asked, path, bodies, request.data.cache)
        return cls(CommandJob(argv=parse_command(request.value("command"))), server, bodies)

    def models(self, request: RunRequest) -> tuple[str, ...]:
        return (self._command.name,)

    def check_model(self, request: RunRequest, model: str) -> None:
        self.check_devices(request)

    def data_set(self, request: RunRequest, home: Path, note: Note) -> tuple[str, Dataset | None]:
        return command_data_set(request, [self._command.argv], note)

    def unit(self, request: RunRequest, model: str) -> str:
        return "tokens" if self._server.api == "openai" else "requests"

    def part(self, request: RunRequest, profile: Profile, model: str) -> Mapping[str, object]:
        loads = TOKEN_LOADS if self._server.api == "openai" else LOADS
        load = load_of(request.options(ServingOptions), loads[profile.name])
        _check_limit(self._server.limit, load.requests)
        serving = Serving(**load.model_dump(), server=self._server)
        return {"serving": serving, "command": self._command}

    def measure(self, trial: Trial, instances: Sequence[Instance], observer: Observer, account: Context) -> Measurement:
        """Measure the path, then serve. Raises MeasurementError of whoever failed first."""
        served = _ServedTrial(trial, instances, self._bodies, planned(trial.job.serving, "its load"), self._server)
        observer.phase("measuring the path")
        path = served.path_metrics()
        observer.phase("attesting")
        pair = served.pair(observer)
        try:
            page_cache_share = served.arrange_page_cache(observer)
            elapsed_s = pair.to_its_end(account)
        except MeasurementError as error:
            raise served.explained(error, pair.server.job.log) from error
        measured = served.measurement(pair, elapsed_s, path)
        if page_cache_share is not None:
            measured = measured.changed(details={**measured.details, "page_cache_share": page_cache_share})
        for note in (*pair.notes(), *_notes_on(measured.details), *served.notes_on_knee(measured.metrics)):
            observer.note(f"{trial.trial_id}: {note}")
        return measured


def _server_of(asked: ServingOptions, path: str, bodies: tuple[str, ...], page_cache: PageCache | None) -> OwnServer:
    return OwnServer(
        port=asked.port or 0,
        api=asked.api,
        method=asked.method or ("POST" if any(bodies) else "GET"),
        path=path,
        ready=asked.ready or (MODELS if asked.api == "openai" else path),
        ready_limit_s=asked.ready_limit or READY_WITHIN_S,
        bodies=len(bodies),
        bodies_sha256=digest_of(bodies),
        limit=parse_limit(asked.limit) if asked.limit else None,
        page_cache=page_cache,
        from_snapshot=asked.from_snapshot,
    )


def _check_limit(limit: Limit | None, requests: int) -> None:
    """Raise RequestError for a percentile that so few requests do not have: no rate could keep its limit."""
    if limit is None or requests >= limit.least_requests:
        return
    raise RequestError(
        f"{option('limit')} {limit}: a rate has no {limit.percentile} in {requests} requests",
        remedy=f"use {option('requests')} {limit.least_requests} or more",
    )


@dataclass(frozen=True)
class _ServedTrial:
    """One trial: its instances, the server's first, and its load."""

    trial: Trial
    instances: Sequence[Instance]
    bodies: tuple[str, ...]
    serving: Serving
    server: OwnServer

    @property
    def threads(self) -> list[int]:
        return [share.envelope.threads for share in self.trial.instances]

    def load(self, **changed: object) -> LoadRequest:
        distributed = planned(self.trial.job.distributed, "its instances")
        fields = {
            "address": self.instances[0].address or "",
            "port": self.server.port,
            "bodies": self.bodies,
            **self.serving.model_dump(include={"requests", "rates", "clients"}),
            "seed": self.trial.seed,
            "timeout_s": distributed.comm_timeout_s,
            "patience_s": self.server.ready_limit_s,
            "threads": self.threads[1],
            **self.server.model_dump(include={"api", "method", "path", "ready"}),
        }
        return LoadRequest(**(fields | changed))

    def path_metrics(self) -> dict[str, MetricValue]:
        """Measure a server that answers at once, with one client. Returns its latencies."""
        null = NullServerRequest(api=self.server.api, port=self.server.port, threads=self.threads[0])
        requests = min(PATH_REQUESTS, self.serving.requests)
        load = self.load(requests=requests, rates=(), clients=1, ready=None)
        servers = Launch(null, "--null-server", NULL_PHASES)
        pair = ServedPair.of(self.trial, self.instances, servers, Launch(load, "--load", PATH_PHASES), Silent())
        pair.to_its_end(nullcontext())
        with recordable(pair.client.job.argv):
            metrics = metrics_of(pair.client.job.log.said("metrics", "metrics"))
        return {f"path-{name}": value for name, value in metrics.items()}

    def arrange_page_cache(self, observer: Observer) -> float | None:
        """Bring the page cache of the server into its planned state. Returns the share that a cold one still holds."""
        state = self.server.page_cache
        if state is None or self.server.from_snapshot:
            return None
        observer.phase("page cache", state)
        if state == "cold":
            return empty_page_cache(self.trial, self.instances[0].node, worker_argv)
        client = Launch(self.once, "--load", CLIENT_PHASES)
        started = StartedPair.of(self.trial, self.instances, self.launch(), client, Silent(), tokens=self.tokens)
        started.to_its_end(nullcontext())
        return None

    @property
    def once(self) -> LoadRequest:
        """Return a few requests, after which a server has been in use."""
        return self.load(requests=1, rates=(), clients=1)

    @property
    def tokens(self) -> bool:
        return self.server.api == "openai"

    def pair(self, observer: Observer) -> OwnPair:
        """Attest both instances. Raises MeasurementError for an instance that cannot be saved though it has to be."""
        server = self.launch()
        client = Launch(self.load(), "--load", CLIENT_PHASES)
        if not self.server.from_snapshot:
            return StartedPair.of(self.trial, self.instances, server, client, observer, tokens=self.tokens)
        snapshot = self.instances[0].snapshot
        if snapshot is None:
            raise MeasurementError(f"{self.instances[0].node.name} cannot be saved", kind="snapshot")
        return SavedPair.of(
            self.trial,
            self.instances,
            server,
            client,
            observer,
            waits_at="started",
            snapshot=snapshot,
            once=self.once,
            page_cache=self.server.page_cache,
            tokens=self.tokens,
        )

    def launch(self) -> Launch:
        """Return the launch of the server by its command."""
        command = planned(self.trial.job.command, "its command")
        envelope = self.trial.job.envelope
        node = self.instances[0].node
        request = ServerRequest(
            argv=command.argv,
            threads=self.threads[0],
            directory=node.data,
            tmpfs_bytes=envelope.tmpfs_bytes,
            scratch=TEMPORARY if node.userland else ".",
            port=self.server.port,
        )
        return Launch(request, "--server", SERVER_PHASES)

    def explained(self, error: MeasurementError, log: EventLog) -> MeasurementError:
        """Return the failure, with the addresses at which the server listened if it never got ready."""
        stopping = log.events.get("stopping")
        if error.kind != "network" or stopping is None:
            return error
        addresses = stopping.fields.get("listening")
        if not isinstance(addresses, list):
            return error
        remedy = f"have it listen at {_ANY_ADDRESS}, port {self.server.port}"
        found = ", ".join(map(str, addresses))
        message = f"{error.message}; it listens at {found}" if found else f"{error.message}; it listens at no address"
        if found and not all(str(address).startswith(("127.", "::1")) for address in addresses):
            remedy = f"see that {option('ready')} is a path that it answers, or allow more with {option('ready_limit')}"
        return MeasurementError(
            message, kind=error.kind, command=error.command, output_tail=error.output_tail, remedy=remedy
        )

    def measurement(self, pair: OwnPair, elapsed_s: float, path: Mapping[str, MetricValue]) -> Measurement:
        served = pair.server.job.log
        asked = pair.client.job.log
        launched_s = served.events["launched"].arrived_s
        answered_s = asked.events["answered"].arrived_s
        with recordable(pair.client.job.argv):
            latencies = metrics_of(asked.said("metrics", "metrics"))
            return Measurement(
                elapsed_s=elapsed_s,
                throughput_per_s=throughput_of(asked),
                timeline=Timeline(
                    **served.ends(elapsed_s),
                    # On the host's clock: the worker dates its start before the line that launch_s ends with.
                    imports_s=max(0.0, launched_s - served.events["started"].arrived_s),
                    build_s=max(0.0, answered_s - launched_s),
                    measured_s=asked.between("answered", "metrics"),
                ),
                environment=pair.server.job.environment(),
                metrics={**pair.openings(), **latencies, **path, **self._derived(latencies, path)},
                answers_sha256=_answers_sha256(asked.said("metrics", "details")),
                ranks=[record_of(rank) for rank in (pair.server, pair.client)],
                **asked.clocks("answered", "metrics"),
                usage=pair.usage(),
                details={
                    **asked.said("metrics", "details"),
                    **served.said("done", "details"),
                    **pair.details(),
                    "client_usage": dict(asked.said("done", "usage")),
                },
                substitutes=tuple(
                    ":".join(map(str, pair)) for pair in served.said("environment", "substitutes").items()
                ),
            )

    def notes_on_knee(self, metrics: Mapping[str, MetricValue]) -> Iterator[str]:
        """Yield why there is no knee although a limit is given: the lowest rate exceeds it, or has no such latency."""
        limit = self.server.limit
        if limit is None or "knee" in metrics or not self.serving.rates:
            return
        lowest = min(self.serving.rates)
        latency = metrics.get(latency_name(limit, lowest))
        was = f"is {latency.value:.3g} ms" if latency else "was not measured"
        yield f"no knee: {limit.percentile} at the lowest rate, {lowest:g}/s, {was}, and the limit is {limit}"

    def _derived(self, served: Mapping[str, MetricValue], path: Mapping[str, MetricValue]) -> dict[str, MetricValue]:
        """Return the medians without the path, and the knee; a median that the path explains wholly is left out."""
        derived = {}
        for name in ("latency", "first-token"):
            whole = served.get(f"{name}-p50")
            outside = path.get(f"path-{name}-p50")
            if whole and outside and whole.value > outside.value:
                inside = MetricValue(value=whole.value - outside.value, unit="ms", better="less")
                derived[f"inside-{name}"] = inside
        knee = knee_per_s(self.serving, self.server.limit, served)
        if knee:
            derived["knee"] = MetricValue(value=knee, unit="requests/s", better="more")
        return derived


def latency_name(limit: Limit, rate: float) -> str:
    """Return the metric that a rate must keep below the limit."""
    return f"latency-{limit.percentile}-at-{rate:g}-per-s"


def knee_per_s(serving: Serving, limit: Limit | None, served: Mapping[str, MetricValue]) -> float | None:
    """Return the highest rate up to which every rate keeps the limit; None without a limit, or if none does."""
    if limit is None:
        return None
    kept = None
    for rate in sorted(serving.rates):
        latency = served.get(latency_name(limit, rate))
        if latency is None or latency.value > limit.most_ms:
            break
        kept = rate
    return kept


def _answers_sha256(details: Mapping[str, object]) -> Any:  # noqa: ANN401 (checked by the record)
    """Return the digest of all answers; None if the server did not always give the same to one request."""
    return None if details.get("answers_differ") else details.get("answers_sha256")


def _notes_on(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a trial lacks, or what was wrong with its server although it could be measured."""
    for part, why in details["withheld"].items():
        yield f"figures of {part} are withheld: {why}"
    for why, count in details["failed"].items():
        yield f"{count} of its requests failed: {why}"
    if details["answers_differ"]:
        yield f"the server answered {details['answers_differ']} of its requests in several ways"
    if details["ended_by"] == "KILL":
        yield f"the server was killed {details['ending_s']:.0f} s after SIGTERM, which it ignored"
    if details["processes_left"]:
        yield f"processes that the server left behind, now ended: {', '.join(details['processes_left'])}"
