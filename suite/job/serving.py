"""A generator behind HTTP as a job: the images or tokens that it makes, and the load that it is given."""

from typing import Annotated

from pydantic import Field

from suite.errors import RequestError
from suite.part import Part

MOST_REQUESTS = 100_000
MOST_CLIENTS = 1000
MOST_RATE_PER_S = 100_000.0
"""The most requests are as many latencies as the worker can say in one line, whose length is bounded."""
Rate = Annotated[float, Field(gt=0, le=MOST_RATE_PER_S, allow_inf_nan=False)]
_Size = Annotated[int, Field(gt=0)] | None


class Load(Part):
    """The requests of a trial: one client in a closed loop, then each rate, then all clients at once."""

    requests: Annotated[int, Field(gt=0, le=MOST_REQUESTS)]
    """The requests of each part. A percentile that so few do not have is left out: the 99th takes 100 of them."""
    rates: tuple[Rate, ...]
    """Requests per second, sent whether those before are answered or not."""
    clients: Annotated[int, Field(gt=0, le=MOST_CLIENTS)]
    """The connections at saturation, and at a rate the most that are open."""


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


class Serving(Load):
    """The load, and the shape of the images or sequences."""

    image_px: _Size = None
    channels: _Size = None
    tokens: _Size = None
    depth: _Size = None


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
