"""What a record tells of the jobs beside a victim."""

from typing import Annotated

from pydantic import Field

from suite.part import Count, Part
from suite.records.environment import Environment
from suite.records.usage import Usage


class Aggression(Part):
    """What an aggressor did. Seconds are on the host's clock, as its lines came in, from the launch of the victim."""

    unit: str
    """Of its work: images, bytes, operations."""
    begun_s: Annotated[float, Field(lt=0, allow_inf_nan=False)]
    """When its measured steps began: before the victim was launched."""
    ended_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """When the last of them had ended: after the victim had."""
    heard_s: list[Annotated[float, Field(allow_inf_nan=False)]]
    """When it told that so many ``steps`` were done, and so much ``work``."""
    steps: list[Count]
    work: list[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None]
    """Null where the place cannot tell."""
    before_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Work per second until the victim was launched."""
    beside_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """While the victim took its measured steps."""
    usage: Usage | None = None
    """By its own accounting, from its start to its end, which the programs that it started are part of."""


class Aggressor(Part):
    """One instance beside the victim's."""

    environment: Environment
    aggression: Aggression | None = None
    """Null where the instance was idle."""
