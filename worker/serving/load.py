"""The load generator: requests in a closed loop, and at fixed rates whether they are answered or not.

At a rate a request is due when the schedule says so. Its latency counts from then on, also where no connection is free
to send it: a server that stalls is charged for all that it kept waiting, not for one request alone (coordinated
omission). The errors of the generator itself are measured by ``benchmarks/serve_error.py``.
"""

import http.client
import itertools
import random
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from worker.environment import collect, whole_usage
from worker.probes.probe import Reading, quantile
from worker.protocol import Events, JobError
from worker.serving.service import GENERATE
from worker.spec import LoadRequest

PERCENTILES = (50, 95, 99)
WARM_UP = 10
"""The first requests, which no figure counts."""
POLL_S = 0.01
"""The pause between two attempts to reach a server that does not listen yet: the error of the cold start."""
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class LoadRun:
    """The latencies of requests in the order in which they were due, and the seconds from the first to the last."""

    latencies_s: Sequence[float]
    span_s: float
    first_token_s: Sequence[float] = ()
    """The latencies until the first token; none for images."""
    per_token_s: Sequence[float] = ()
    """The mean times of the further tokens of each answer."""

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.span_s

    def readings(self, ending: str = "") -> dict[str, Reading]:
        """Return the percentiles that so many requests can have: beyond the 99th there is one in a hundred.

        The median has every latency as its samples.
        """
        columns = {"latency": self.latencies_s, "first-token": self.first_token_s, "per-token": self.per_token_s}
        return {
            f"{name}-p{percent}{ending}": Reading(
                quantile(times_ms, percent / 100), "ms", "less", times_ms if percent == 50 else None
            )
            for name, times_s in columns.items()
            for percent in PERCENTILES
            if len(times_ms := [each * 1e3 for each in times_s]) * (100 - percent) >= 100
        }


def run(request: LoadRequest, events: Events) -> None:
    """Wait for the first answer, measure, and emit everything from ``environment`` to ``done``. Raises JobError.

    The throughput is in images or tokens per second.
    """
    events.emit("environment", environment={**collect(), "threads": request.threads})
    wait_for_answer(request)
    events.emit("answered")
    closed_loop(request, 1, WARM_UP)
    closed = closed_loop(request, 1, request.requests)
    opened = {rate: open_loop(request, rate) for rate in request.rates}
    saturated = closed_loop(request, request.clients, request.requests)
    metrics = closed.readings()
    for rate, one in opened.items():
        metrics |= one.readings(f"-at-{rate:g}-per-s")
    events.emit(
        "metrics",
        throughput=saturated.per_s * (request.tokens or 1),
        metrics={name: vars(reading) for name, reading in metrics.items()},
        details={"answered_per_s": {f"{rate:g}": one.per_s for rate, one in opened.items()}},
    )
    events.emit("done", usage=whole_usage())


def wait_for_answer(request: LoadRequest) -> None:
    """Try until the server gives an answer. Raises JobError where it takes longer than the patience of the request."""
    deadline_s = time.monotonic() + request.patience_s
    while time.monotonic() < deadline_s:
        with suppress(OSError), Connection(request) as connection:
            connection.generate()
            return
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
    """Send a request for each of ``due_s``: at these seconds from the begin, or where it is None as soon as it can."""
    answers, numbers = [(0.0, 0.0)] * len(due_s), itertools.count()

    def work(connection: Connection) -> None:
        while (number := next(numbers)) < len(due_s):
            after_s = due_s[number]
            due = time.monotonic() if after_s is None else begun_s + after_s
            time.sleep(max(0.0, due - time.monotonic()))
            first_s = connection.generate()
            answers[number] = first_s - due, time.monotonic() - due

    try:
        with ExitStack() as opened, ThreadPoolExecutor(clients) as pool:
            connections = [opened.enter_context(Connection(request)) for _ in range(clients)]
            begun_s = time.monotonic()
            list(pool.map(work, connections))
            span_s = time.monotonic() - begun_s
    except OSError as error:
        raise JobError(f"the server does not answer any more: {error}", kind="network") from error
    firsts_s, latencies_s = zip(*answers, strict=True)
    if not request.tokens:
        return LoadRun(latencies_s, span_s)
    per_token_s = [(last_s - first_s) / (request.tokens - 1) for first_s, last_s in answers]
    return LoadRun(latencies_s, span_s, firsts_s, per_token_s)


class Connection:
    """One connection to the server, which is kept for all requests that are sent over it."""

    def __init__(self, request: LoadRequest) -> None:
        self._http = http.client.HTTPConnection(request.address, request.port, timeout=request.timeout_s)
        self._body, self._tokens = request.body.encode(), request.tokens

    def __enter__(self) -> "Connection":
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def generate(self) -> float:
        """Ask for an image or tokens and read all. Returns when the first token was there, or the whole image.

        Raises OSError where no answer comes, and JobError for one without them.
        """
        try:
            self._http.request("POST", GENERATE, self._body, {"Content-Type": "application/json"})
            answer = self._http.getresponse()
            first = answer.readline() if self._tokens else answer.read()
            first_s = time.monotonic()
            body = first + answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        whole = body.count(b"\n") == self._tokens if self._tokens else body.startswith(_PNG)
        if answer.status != http.client.OK or not whole:
            said = body[:200].decode("utf-8", "replace")
            raise JobError(f"the server answered {answer.status} {answer.reason}: {said}", kind="serve")
        return first_s
