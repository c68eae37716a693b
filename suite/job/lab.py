"""The lab network as a plan knows it: how many nodes, and the rate and delay of their links.

``provisioning.lab`` makes it.
"""

import re
from typing import Annotated

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Part, checked

MOST_NODES = 64
SLOWEST_BITS_PER_S = 10**6
FASTEST_BITS_PER_S = 400 * 10**9
LONGEST_DELAY_S = 1.0
_UNITS = {
    "": 1,
    **{f"{letter}bit": 1000**power for power, letter in enumerate(("", "k", "m", "g", "t"))},
    **{f"{letter}ibit": 1024**power for power, letter in enumerate(("k", "m", "g", "t"), start=1)},
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_REMEDIES = {
    "nodes": f"write a whole number from 2 to {MOST_NODES}, such as nodes=3",
    "rate": "write it in tc's notation, such as rate=1gbit or rate=100mbit, from 1mbit to 400gbit",
    "delay": "write it as delay=5ms or delay=200us, at most 1s",
}


def bits_per_s(rate: str) -> int:
    """Return the bits per second of a rate in the notation of tc(8), such as ``"1gbit"``. Raises ValueError.

    Its ``mbps`` is refused: tc reads megabytes there, and people who write it mostly mean megabits.
    """
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([a-z]*)", rate)
    if match and match[2].endswith("bps"):
        raise ValueError("tc counts bytes in bps")
    if not match or match[2] not in _UNITS:
        raise ValueError("not a rate")
    value = float(match[1]) * _UNITS[match[2]]
    if not SLOWEST_BITS_PER_S <= value <= FASTEST_BITS_PER_S:
        raise ValueError("not a rate that a link here can be limited to")
    return int(value)


def seconds(delay: str) -> float:
    """Return the seconds of a delay such as ``"5ms"``. Raises ValueError on anything else."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|ms|us)", delay)
    if not match:
        raise ValueError("not a delay")
    value = float(match[1]) * _SECONDS[match[2]]
    if not 1e-6 <= value <= LONGEST_DELAY_S:
        raise ValueError("not a delay that a link here can be given")
    return value


class LabSpec(Part):
    """A lab: virtual nodes on one switch, each on a link of its own that is limited alike in both directions."""

    nodes: Annotated[int, Field(ge=2, le=MOST_NODES)]
    rate: Annotated[str, checked(bits_per_s)] | None = None
    """The rate of a link, Ethernet headers included, in tc's notation; None leaves it as fast as the host is."""
    delay: Annotated[str, checked(seconds)] | None = None
    """The delay from any node to any other, one way."""

    @property
    def rate_bits_per_s(self) -> int | None:
        if self.rate:
            return bits_per_s(self.rate)
        return None

    @property
    def delay_s(self) -> float | None:
        if self.delay:
            return seconds(self.delay)
        return None

    def __str__(self) -> str:
        """Return the lab as it is written after ``--lab``."""
        fields = self.model_dump(exclude_none=True)
        return ",".join(f"{key}={value}" for key, value in fields.items())


def parse_lab(text: str) -> LabSpec:
    """Return the lab of ``"nodes=3,rate=1gbit,delay=1ms"``. Raises RequestError with the key and what to write."""
    values: dict[str, str] = {}
    for part in text.strip().lower().split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in _REMEDIES or not equals or not value:
            raise _refusal(part, "is not KEY=VALUE with a key of a lab", "write nodes=3,rate=1gbit[,delay=5ms]")
        if key in values:
            raise _refusal(part, f"gives {key} a second time", f"give {key} once")
        values[key] = value
    if not values.get("nodes", "").isdigit():
        raise _refusal(f"nodes={values.get('nodes', '')}", "is no number of nodes", _REMEDIES["nodes"])
    try:
        return LabSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        reason = first["msg"].removeprefix("Value error, ")
        raise _refusal(f"{key}={values[key]}", f"is refused: {reason}", _REMEDIES[key]) from None


def _refusal(part: str, why: str, remedy: str) -> RequestError:
    return RequestError(f"{re.sub(r'[^ -~]', '?', part)[:100] or 'nothing'} {why}", remedy=remedy)
