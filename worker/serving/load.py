"""The load generator: requests in a closed loop, and at fixed rates whether they are answered or not.

At a rate a request is due when the schedule says so. Its latency counts from then on, also where no connection is free
to send it: a server that stalls is charged for all that it kept waiting, not for one request alone (coordinated
omission). The errors of the generator itself are measured by ``benchmarks/serve_error.py``.
"""

import hashlib
import http.client
import itertools
import json
import random
import socket
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from worker.environment import collect, whole_usage
from worker.probes.probe import Reading, quantile
from worker.protocol import Events, JobError
from worker.serving.answers import LEAST_ERROR, READERS, ServerAnswer, broken
from worker.spec import LoadRequest

PERCENTILES = (50, 95, 99)
WARM_UP = 10
"""The first requests, which no figure counts."""
POLL_S = 0.01
"""The pause between two attempts to reach a server that does not listen yet: the error of the cold start."""
FIRST_CONNECT_S = 0.1
"""How long the first attempt to reach a server waits for a connection, each later one that waits in vain twice as long.

The kernel itself repeats a request for a connection that was lost, as on the way to a guest that is still being
loaded, after a whole second.
"""
MOST_FAILED = 0.01
"""The share of the requests of a part that may fail before its figures would be those of another load."""
MOST_BUSY = 0.8
"""The share of a CPU from which on the generator, whose threads share one interpreter, delays what it measures."""
MOST_LATE = 0.1
"""The most by which the generator itself may be late in sending, as a share of the median latency."""
LEAST_LATE_S = 0.001
"""A delay that is never a reason to withhold: that of a sleep which ends late."""
MODELS = "/v1/models"
"""The path at which servers with the interface of OpenAI list their models."""
ALL_CLIENTS = "all clients"
"""The name of the part at saturation."""
_DIGITS = 6


@dataclass(frozen=True)
class Sent:
    """A request: when it was due, when a client was free for it, when it was sent, and its answer."""

    number: int
    due_s: float
    free_s: float
    sent_s: float
    answer: ServerAnswer

    @property
    def latency_s(self) -> float:
        return self.answer.ended_s - self.due_s

    @property
    def late_s(self) -> float:
        """Return by how much the generator itself was late: it was due, and a client was free."""
        return max(0.0, self.sent_s - max(self.due_s, self.free_s))


@dataclass(frozen=True)
class LoadRun:
    """The latencies of requests in the order in which they were due, and the seconds from the first to the last."""

    latencies_s: Sequence[float]
    span_s: float
    first_token_s: Sequence[float] = ()
    """The latencies until the first token; none for answers without tokens."""
    per_token_s: Sequence[float] = ()
    """The mean times of the further tokens of each answer."""
    gaps_s: Sequence[float] = ()
    """The times between one token and the next, of all answers; none where they were not counted one by one."""
    tokens: int = 0
    """The tokens of all answers."""
    sent: Sequence[Sent] = ()
    begun_s: float = 0.0
    cpu_s: float = 0.0
    """The CPU time of the generator."""

    @classmethod
    def of(cls, sent: Sequence[Sent], begun_s: float, span_s: float, cpu_s: float) -> "LoadRun":
        """Return the run of these requests, of which the failed ones have no times."""
        latencies_s: list[float] = []
        first_token_s: list[float] = []
        per_token_s: list[float] = []
        gaps_s: list[float] = []
        tokens = 0
        for request in sent:
            answer = request.answer
            if answer.problem:
                continue
            latencies_s.append(request.latency_s)
            if answer.tokens:
                first_token_s.append(answer.first_s - request.due_s)
            if answer.per_token_s is not None:
                per_token_s.append(answer.per_token_s)
            gaps_s += answer.gaps_s
            tokens += answer.tokens
        return cls(latencies_s, span_s, first_token_s, per_token_s, gaps_s, tokens, sent, begun_s, cpu_s)

    @property
    def per_s(self) -> float:
        """Return the tokens per second or, of answers without any, the requests."""
        return (self.tokens or len(self.latencies_s)) / self.span_s

    @property
    def answered_per_s(self) -> float:
        return len(self.latencies_s) / self.span_s

    @property
    def saturated(self) -> str:
        """Return why the generator, and not the server, decided the times; empty if it did not."""
        share = self.cpu_s / self.span_s
        if share > MOST_BUSY:
            return f"the load generator used {share:.0%} of a CPU, and {MOST_BUSY:.0%} is the most"
        late_s = quantile([request.late_s for request in self.sent], 0.95) if self.sent else 0.0
        most_s = max(LEAST_LATE_S, MOST_LATE * quantile(self.latencies_s, 0.5)) if self.latencies_s else 0.0
        if late_s > most_s:
            return f"the load generator sent 5 % of the requests {late_s * 1e3:.3g} ms late or more"
        return ""

    def readings(self, ending: str = "") -> dict[str, Reading]:
        """Return the percentiles that so many requests can have: beyond the 99th there is one in a hundred.

        The median has every latency as its samples.
        """
        columns = {
            "latency": self.latencies_s,
            "first-token": self.first_token_s,
            "per-token": self.per_token_s,
            "token-gap": self.gaps_s,
        }
        readings = {}
        for name, times_s in columns.items():
            times_ms = [time_s * 1e3 for time_s in times_s]
            for percent in PERCENTILES:
                if len(times_ms) * (100 - percent) >= 100:
                    samples = times_ms if percent == 50 else None
                    value_ms = quantile(times_ms, percent / 100)
                    readings[f"{name}-p{percent}{ending}"] = Reading(value_ms, "ms", "less", samples)
        return readings

    def columns(self) -> dict[str, list[float] | list[int]]:
        """Return a column for each thing that is kept of every request; seconds count from the begin of the run."""

        def since_begin(moments: Iterable[float]) -> list[float]:
            return [round(moment - self.begun_s, _DIGITS) for moment in moments]

        answers = [request.answer for request in self.sent]
        return {
            "due_s": since_begin(request.due_s for request in self.sent),
            "sent_s": since_begin(request.sent_s for request in self.sent),
            "first_s": since_begin(answer.first_s for answer in answers),
            "ended_s": since_begin(answer.ended_s for answer in answers),
            "tokens": [answer.tokens for answer in answers],
            "status": [answer.status for answer in answers],
        }


@dataclass(frozen=True)
class MeasuredLoad:
    """The parts of a measurement: one client alone, each rate, and all clients."""

    alone: LoadRun
    rates: Mapping[float, LoadRun]
    saturated: LoadRun

    @classmethod
    def of(cls, request: LoadRequest) -> "MeasuredLoad":
        closed_loop(request, 1, WARM_UP)
        alone = closed_loop(request, 1, request.requests)
        rates = {rate: open_loop(request, rate) for rate in request.rates}
        return cls(alone, rates, closed_loop(request, request.clients, request.requests))

    @property
    def parts(self) -> dict[str, LoadRun]:
        rates = {f"{rate:g}/s": load_run for rate, load_run in self.rates.items()}
        return {"one client": self.alone, **rates, ALL_CLIENTS: self.saturated}

    def withheld(self) -> dict[str, str]:
        """Return the parts that the generator decided, with the reason.

        One client alone waits most of the time: what it costs is in the path, which is measured for itself.
        """
        reasons = {name: load_run.saturated for name, load_run in self.parts.items() if load_run is not self.alone}
        return {name: reason for name, reason in reasons.items() if reason}

    def metrics(self, withheld: Container[str]) -> dict[str, Reading]:
        metrics = self.alone.readings()
        for rate, load_run in self.rates.items():
            if f"{rate:g}/s" not in withheld:
                metrics |= load_run.readings(f"-at-{rate:g}-per-s")
        return metrics


def run(request: LoadRequest, events: Events) -> None:
    """Wait for the first answer, measure, and emit everything from ``environment`` to ``done``. Raises JobError.

    The throughput is in images, requests or tokens per second.
    """
    events.emit("environment", environment={**collect(), "threads": request.threads})
    if request.ready:
        wait_until_ready(request)
        events.emit("ready")
        request = naming_a_model(request)
    first_s = wait_for_answer(request)
    events.emit("answered", first_token_after_s=first_s)
    load = MeasuredLoad.of(request)
    withheld = {}
    answered_per_s = {f"{rate:g}": load_run.answered_per_s for rate, load_run in load.rates.items()}
    answered = sum(part.tokens or len(part.latencies_s) for part in load.parts.values())
    details: dict[str, object] = {"answered_per_s": answered_per_s, "units_answered": answered}
    if request.ready:
        withheld = load.withheld()
        details |= {"withheld": withheld, "requests": {name: part.columns() for name, part in load.parts.items()}}
        details |= answers_of(load.parts.values(), len(request.bodies))
    events.emit(
        "metrics",
        throughput=None if ALL_CLIENTS in withheld else load.saturated.per_s,
        metrics={name: vars(reading) for name, reading in load.metrics(withheld).items()},
        details=details,
    )
    events.emit("done", usage=whole_usage())


def answers_of(runs: Iterable[LoadRun], bodies: int) -> dict[str, object]:
    """Return how many requests failed, by reason, and what the answers to each body were.

    ``answers_differ`` counts the bodies that were answered in several ways: their server does not always say the same.
    The digest is that of all answers by body, the first of each.
    """
    failed: dict[str, int] = {}
    digests: dict[int, set[str]] = {}
    first: dict[int, str] = {}
    for request in itertools.chain.from_iterable(load_run.sent for load_run in runs):
        answer = request.answer
        if answer.problem:
            failed[answer.problem] = failed.get(answer.problem, 0) + 1
        else:
            body = request.number % bodies
            digests.setdefault(body, set()).add(answer.sha256)
            first.setdefault(body, answer.sha256)
    whole = "\n".join(f"{body} {first[body]}" for body in sorted(first))
    return {
        "failed": failed,
        "answers_sha256": hashlib.sha256(whole.encode()).hexdigest(),
        "answers_differ": sum(len(several) > 1 for several in digests.values()),
    }


def wait_until_ready(request: LoadRequest) -> None:
    """Ask for the path of readiness until it answers without an error. Raises JobError after the request's patience."""
    deadline_s = time.monotonic() + request.patience_s
    last = "nothing listened at its address"
    attempts = Connection(request, FIRST_CONNECT_S)
    while time.monotonic() < deadline_s:
        try:
            with attempts as connection:
                status, _ = connection.get(str(request.ready))
            if status < LEAST_ERROR:
                return
            last = f"{request.ready} answered {status}"
        except OSError as error:
            last = str(error)
        time.sleep(POLL_S)
    raise JobError(f"the server was not ready after {request.patience_s:g} s: {last}", kind="network")


def naming_a_model(request: LoadRequest) -> LoadRequest:
    """Return the request with the first model that the server lists in each body that names none."""
    if request.api != "openai":
        return request
    with Connection(request) as connection:
        _, content = connection.get(MODELS)
    try:
        name = str(json.loads(content)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return request
    bodies = tuple(json.dumps({"model": name, **json.loads(body)}) for body in request.bodies)
    return replace(request, bodies=bodies)


def wait_for_answer(request: LoadRequest) -> float:
    """Try until the server gives an answer. Returns the seconds from sending the request to its first token.

    Raises JobError where it takes longer than the patience of the request, and for the first answer of a server that
    was ready if it is an error.
    """
    deadline_s = time.monotonic() + request.patience_s
    attempts = Connection(request, FIRST_CONNECT_S)
    while time.monotonic() < deadline_s:
        with suppress(OSError), attempts as connection:
            begin_s = time.monotonic()
            answer = connection.send(0)
            if answer.problem:
                raise JobError(f"the server answered {answer.problem}", kind="serve")
            return answer.first_s - begin_s
        time.sleep(POLL_S)
    raise JobError(f"the server had not answered after {request.patience_s:g} s", kind="network")


def closed_loop(request: LoadRequest, clients: int, count: int) -> LoadRun:
    """Send ``count`` requests from so many clients, each its next one when it has the answer to the last."""
    return _driven(request, clients, [None] * count)


def open_loop(request: LoadRequest, rate_per_s: float) -> LoadRun:
    """Send requests at a rate: they come as those of many people who do not know each other (a Poisson process).

    The seed decides when each is due: the same moments on every target.
    """
    draw = random.Random(f"{request.seed}/{rate_per_s:g}")  # noqa: S311 (a schedule, and no secret)
    gaps_s = (draw.expovariate(rate_per_s) for _ in range(request.requests))
    return _driven(request, request.clients, list(itertools.accumulate(gaps_s)))


def _driven(request: LoadRequest, clients: int, due_s: Sequence[float | None]) -> LoadRun:
    """Send a request for each of ``due_s``: at these seconds from the begin, or where it is None as soon as it can.

    Raises JobError where more fail than ``MOST_FAILED``; of a generator, none may.
    """
    numbers = itertools.count()
    sent: dict[int, Sent] = {}
    failed: list[str] = []
    most_failed = MOST_FAILED * len(due_s) if request.ready else 0

    def work(connection: Connection) -> None:
        while (number := next(numbers)) < len(due_s) and len(failed) <= most_failed:
            after_s = due_s[number]
            free_s = time.monotonic()
            due = free_s if after_s is None else begun_s + after_s
            time.sleep(max(0.0, due - time.monotonic()))
            sent_s = time.monotonic()
            answer = connection.send_anyhow(number)
            sent[number] = Sent(number, due, free_s, sent_s, answer)
            if answer.problem:
                failed.append(answer.problem)

    try:
        with ExitStack() as opened, ThreadPoolExecutor(clients) as pool:
            connections = [opened.enter_context(Connection(request)) for _ in range(clients)]
            begun_s = time.monotonic()
            before_s = time.process_time()
            list(pool.map(work, connections))
            span_s = time.monotonic() - begun_s
            cpu_s = time.process_time() - before_s
    except OSError as error:
        raise JobError(f"the server does not answer any more: {error}", kind="network") from error
    if len(failed) > most_failed:
        many = f"{len(failed)} of {len(sent)} requests failed; " if request.ready else ""
        raise JobError(f"{many}the server answered {failed[-1]}", kind="serve")
    return LoadRun.of([sent[number] for number in range(len(due_s))], begun_s, span_s, cpu_s)


class Connection:
    """One connection to the server, which is kept for all requests that are sent over it."""

    def __init__(self, request: LoadRequest, connect_s: float | None = None) -> None:
        """Prepare a connection: it is waited for up to ``connect_s`` seconds, or the timeout of the request.

        After each time in vain it is waited for twice as long.
        """
        self._connect_s = connect_s or request.timeout_s
        self._http = http.client.HTTPConnection(request.address, request.port)
        self._request = request
        self._bodies = [body.encode() for body in request.bodies]
        self._read = READERS[request.api]
        self._answered = False
        """Whether an answer has come over this connection, which the server may have closed since."""

    def __enter__(self) -> "Connection":
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _connect(self) -> None:
        self._http.timeout = min(self._connect_s, self._request.timeout_s)
        try:
            self._http.connect()
        except TimeoutError:
            self._connect_s *= 2
            raise
        self._http.sock.settimeout(self._request.timeout_s)
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, number: int) -> ServerAnswer:
        """Send the request of this number and read all of its answer. Raises OSError where none comes.

        A server may close a connection that has been idle: the request is then sent once more over a new one.
        """
        kept = self._answered
        try:
            return self._exchange(number)
        except ConnectionError:
            if not kept:
                raise
        self._http.close()
        return self._exchange(number)

    def _exchange(self, number: int) -> ServerAnswer:
        body = self._bodies[number % len(self._bodies)]
        self._answered = False
        try:
            if self._http.sock is None:
                self._connect()
            headers = {"Content-Type": "application/json"} if body else {}
            self._http.request(self._request.method, self._request.path, body or None, headers)
            answer = self._read(self._http.getresponse(), self._request.tokens)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        self._answered = True
        return answer

    def send_anyhow(self, number: int) -> ServerAnswer:
        """Send as ``send`` does. Returns a broken answer where none comes from a server that was ready."""
        try:
            return self.send(number)
        except OSError as error:
            self._http.close()
            if not self._request.ready:
                raise
            return broken(f"nothing: {error or type(error).__name__}")

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask for a path. Returns status and content of the answer. Raises OSError where none comes."""
        try:
            self._http.request("GET", path)
            answer = self._http.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        return answer.status, content
