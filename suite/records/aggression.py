"""The jobs beside a victim, as a record has them."""

from typing import Annotated

from pydantic import Field

from suite.part import Count, Part
from suite.records.environment import Environment
from suite.records.usage import Usage


class Aggression(Part):
    """The work of an aggressor. Seconds count from the victim's launch, on the host's clock, as its lines came in."""

    unit: str
    """The unit of its work: images, bytes, operations."""
    begun_s: Annotated[float, Field(lt=0, allow_inf_nan=False)]
    """The begin of its measured steps: before the victim was launched."""
    ended_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """The end of the last of them: after the victim had ended."""
    heard_s: list[Annotated[float, Field(allow_inf_nan=False)]]
    """The times at which it reported that so many ``steps`` and so much ``work`` were done."""
    steps: list[Count]
    work: list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]
    """Null if it could not be counted."""
    before_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Work per second until the victim was launched."""
    beside_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Work per second while the victim took its measured steps."""
    usage: Usage | None = None
    """Its own accounting, from its start to its end, including the programs that it started."""


class Aggressor(Part):
    """One instance beside the victim's."""

    environment: Environment
    aggression: Aggression | None = None
    """Null where the instance was idle."""
