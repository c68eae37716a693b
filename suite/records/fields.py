"""The types of the fields of a record's parts, each with its bounds, and how a part is made.

A part is a dataclass of pydantic: whatever the suite makes one of, measurements or a worker's report, is checked.
Records in files are many: msgspec decodes them into the same classes, without pydantic. What must hold between the
fields of a part in a file, too, is checked in its ``__post_init__``; what the audit judges there, by a validator.
"""

from typing import Annotated, TypeVar

from msgspec import Meta
from pydantic import ConfigDict, Field, TypeAdapter

from suite.part import LEAST_MEASURED, MOST_COUNTED, MOST_MEASURED, Seconds

_T = TypeVar("_T")
STRICT = ConfigDict(extra="forbid", defer_build=True)
"""What a part is made of has no other keys. Those of a file may have been added by a later suite."""
LONGEST = 4000
"""The characters of the longest text of a machine, a rank or an aggressor."""

Number = Annotated[float, Field(allow_inf_nan=False), Meta(ge=-MOST_MEASURED, le=MOST_MEASURED)]
Amount = Seconds
"""An amount or a rate, which can be zero."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Meta(ge=LEAST_MEASURED, le=MOST_MEASURED)]
Negative = Annotated[float, Field(lt=0, allow_inf_nan=False), Meta(ge=-MOST_MEASURED, lt=0)]
Share = Annotated[float, Field(ge=0, le=1), Meta(ge=0, le=1)]
WholeNumber = Annotated[int, Meta(gt=-MOST_COUNTED, lt=MOST_COUNTED)]
AtLeastOne = Annotated[int, Field(gt=0), Meta(gt=0, lt=MOST_COUNTED)]
AtLeastTwo = Annotated[int, Field(gt=1), Meta(gt=1, lt=MOST_COUNTED)]
Text = Annotated[str, Meta(max_length=LONGEST)]
ProcessName = Annotated[str, Field(max_length=64), Meta(max_length=64)]


def checked_part(part: type[_T], values: object) -> _T:
    """Return a part of a record from a mapping, such as a worker has reported. Raises ValidationError."""
    return TypeAdapter(part).validate_python(values)
