"""The base class of the suite's models, types of several, and the message of what they refuse.

A type has its bounds for pydantic, which checks whatever the suite makes, and for msgspec, which decodes records.
"""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from suite.errors import RequestError

LEAST_MEASURED = 1e-15
MOST_MEASURED = 1e15
"""The bounds of what can have been measured: seconds, bytes, and units per second. Beyond them sums and squares of
numbers, which a stranger may have written, would not be finite."""
MOST_COUNTED = 1 << 50
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), Meta(ge=0, le=MOST_MEASURED)]
Count = Annotated[int, Field(ge=0), Meta(ge=0, lt=MOST_COUNTED)]
Words = Annotated[str, Field(max_length=500), Meta(max_length=500)]
_RUN_ID = r"^[0-9a-f]{16}$"
RunId = Annotated[str, Field(pattern=_RUN_ID), Meta(pattern=_RUN_ID)]
"""The identity of a run, drawn when the run is made: copies share it, and directories of one name do not."""
MOST = 1_000_000
"""The most of anything that is counted in a request or a job: more is a slip of the finger, or would be walked for
ever."""


class Part(BaseModel):
    """A model whose instances are frozen, and that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def checked(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that refuses text which ``parse`` refuses, and keeps the text as it is."""

    def check(text: Any) -> Any:  # noqa: ANN401 (of any type; text alone is checked)
        if isinstance(text, str):
            try:
                parse(text)
            except RequestError as error:
                # pydantic adds the place of the field, which the parser does not know.
                raise ValueError(f"{error.message}; {error.remedy}") from error
        return text

    return AfterValidator(check)


def first_problem(error: ValidationError, whole: str = "the value") -> str:
    """Return the first problem of a model with its key; ``whole`` names the model if it concerns no single key."""
    problem = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg']}"
