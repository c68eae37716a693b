"""The base class of the suite's models, and numbers that several of them hold."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A model whose instances are frozen, and that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
