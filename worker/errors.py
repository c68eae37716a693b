"""Why a job cannot be run or does not count, as an event and an exit status."""

import traceback
from collections.abc import Callable

from worker.protocol import Events

FAILED, REQUEST = 1, 2
"""Exit statuses: the job failed, and it was asked for wrongly."""


class SpecError(Exception):
    """The specification cannot be run as it is written."""


class JobError(Exception):
    """The job failed. ``kind`` classifies it in the record's outcome; ``remedy`` says what to do, if that is known."""

    def __init__(self, message: str, *, kind: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.remedy = remedy


def guarded(events: Events, work: Callable[[], None]) -> int:
    """Do the work and return the exit status; whatever it fails by becomes an event."""
    try:
        work()
    except SpecError as error:
        events.error("request", str(error))
        return REQUEST
    except JobError as error:
        events.error(error.kind, str(error), error.remedy)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must reach the record
        traceback.print_exc()
        events.error(kind_of(error), f"{type(error).__name__}: {error}")
    else:
        return 0
    return FAILED


def kind_of(error: Exception) -> str:
    """Return the kind of an unforeseen error: ``import``, ``out-of-memory`` or ``exception``.

    torch has a type of its own for a full GPU only; it reports a lack of host memory in the message.
    """
    if isinstance(error, ImportError):
        return "import"
    said = str(error).lower()
    full = isinstance(error, MemoryError) or "can't allocate memory" in said or "not enough memory" in said
    return "out-of-memory" if full or type(error).__name__ == "OutOfMemoryError" else "exception"
