"""A server as a job: a generator behind HTTP or the user's own, and the load that it is given."""

import re
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError
from suite.job.datasets import PageCache
from suite.part import Part

MOST_REQUESTS = 100_000
MOST_CLIENTS = 1000
MOST_RATE_PER_S = 100_000.0
"""The most requests are as many latencies as the worker can say in one line, whose length is bounded."""
Rate = Annotated[float, Field(gt=0, le=MOST_RATE_PER_S, allow_inf_nan=False)]
_Size = Annotated[int, Field(gt=0)] | None
MOST_PORT = 65535
PUBLISHED_PORTS = (29500, 30011)
"""The ports that a node publishes for its container behind address translation; at the first, ranks meet."""
Api = Literal["http", "openai"]
"""The interface by which a server is asked: any by HTTP, or that of OpenAI, whose answers come as streams of tokens."""
Method = Literal["GET", "POST", "PUT"]
PERCENTILES = ("p50", "p95", "p99")
PATH = r"^/[!-~]*$"
"""The form of a path, with its query: it begins with a slash, and has neither spaces nor control characters."""
_LIMIT = re.compile(r"(p50|p95|p99)=(\d+(?:\.\d+)?)(ms|s)")


class Limit(Part):
    percentile: Literal["p50", "p95", "p99"]
    most_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def __str__(self) -> str:
        return f"{self.percentile}={self.most_ms:g}ms"

    @property
    def least_requests(self) -> int:
        """Return how many requests have the percentile: one of them at least lies beyond it."""
        beyond = 100 - int(self.percentile[1:])
        return -(-100 // beyond)


class Load(Part):
    """The requests of a trial: one client in a closed loop, then each rate, then all clients at once."""

    requests: Annotated[int, Field(gt=0, le=MOST_REQUESTS)]
    """The requests of each part. A percentile that so few do not have is left out: the 99th takes 100 of them."""
    rates: tuple[Rate, ...]
    """Requests per second, sent whether those before are answered or not."""
    clients: Annotated[int, Field(gt=0, le=MOST_CLIENTS)]
    """The connections at saturation, and at a rate the most that are open."""

    @property
    def scheduled_s(self) -> float:
        """Return the seconds over which requests are sent at the rates, however fast they are answered."""
        return sum(self.requests / rate for rate in self.rates)


LOADS = {
    "paper": Load(requests=2000, rates=(10.0, 50.0), clients=16),
    "quick": Load(requests=500, rates=(10.0, 50.0), clients=8),
    "smoke": Load(requests=100, rates=(20.0,), clients=4),
}
"""The load by the name of a profile."""
TOKEN_LOADS = {
    "paper": Load(requests=100, rates=(0.02,), clients=4),
    "quick": Load(requests=100, rates=(1.0,), clients=4),
    "smoke": Load(requests=100, rates=(20.0,), clients=4),
}
"""The same where an answer is a sequence, whose tokens are made one after the other."""


class OwnServer(Part):
    """A server of the user's own, whose command is the job's: where it is asked, and for what."""

    port: Annotated[int, Field(gt=0, le=MOST_PORT)]
    api: Api
    method: Method
    path: Annotated[str, Field(pattern=PATH)]
    ready: Annotated[str, Field(pattern=PATH)]
    """The path that answers without an error once it is ready."""
    ready_limit_s: Annotated[int, Field(gt=0)]
    bodies: Annotated[int, Field(gt=0)]
    """The different requests, which are sent in turn."""
    bodies_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    limit: Limit | None = None
    """The percentile of the latency that a sustained rate must keep; None if no such rate is looked for."""
    page_cache: PageCache | None = None
    """``cold``: neither programs nor files are in memory when it starts. ``warm``: it has run once before. None: as the
    trials before have left it. Of a server from a snapshot it is the state of the snapshot's file."""
    from_snapshot: bool = False
    """Whether its instance was saved when it had answered, and starts from that file in place of its command."""


class Serving(Load):
    """The load, and the shape of the images or sequences; or the server of the user's own."""

    image_px: _Size = None
    channels: _Size = None
    tokens: _Size = None
    depth: _Size = None
    server: OwnServer | None = None
    """None for a generator."""


def parse_limit(text: str) -> Limit:
    """Return the limit that ``"p99=500ms"`` sets. Raises RequestError on anything else."""
    match = _LIMIT.fullmatch(text)
    if not match or not float(match[2]):
        remedy = f"write a percentile ({', '.join(PERCENTILES)}) and a time: p99=500ms"
        raise RequestError(f"{text!r} is not a limit of the latency", remedy=remedy)
    factor = 1.0 if match[3] == "ms" else 1000.0
    return Limit.model_validate({"percentile": match[1], "most_ms": float(match[2]) * factor})


def parse_path(text: str) -> str:
    """Return the path. Raises RequestError for one that no request can have."""
    if not re.fullmatch(PATH, text):
        raise RequestError(f"{text!r} is not a path", remedy="begin it with a slash: /v1/completions")
    return text


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the requests per second of ``"10,50"``, each once. Raises RequestError on anything else."""
    try:
        numbers = (float(word) for word in text.split(","))
        rates = tuple(dict.fromkeys(numbers))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= MOST_RATE_PER_S for rate in rates):
        raise RequestError(f"{text!r} holds no rates", remedy="write requests per second: 10,50")
    return rates
