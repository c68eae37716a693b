"""The outcome of a trial that failed, whatever it failed by."""

import traceback

from pydantic import ValidationError

from suite.errors import BenchError, MeasurementError
from suite.records.record import Outcome

_MOST_MESSAGE, _MOST_TAIL = 4000, 64_000
"""The most characters of a message, and of the end of an output, in a record: a worker's are as long as it likes."""


def failed(error: Exception) -> Outcome:
    """Return the failed outcome. Its texts may come from the job: they are cut, and what is not Unicode is replaced."""
    if not isinstance(error, BenchError):
        error = _unforeseen(error)
    return Outcome(
        status="failed",
        kind=_text(error.kind, _MOST_MESSAGE) or "unnamed",
        message=_text(error.message, _MOST_MESSAGE) or "it says nothing",
        command=[_text(word, _MOST_MESSAGE) for word in getattr(error, "command", ())],
        output_tail=_text(getattr(error, "output_tail", "")[-_MOST_TAIL:], _MOST_TAIL),
        remedy=None if error.remedy is None else _text(error.remedy, _MOST_MESSAGE),
    )


def _unforeseen(error: Exception) -> MeasurementError:
    """Return the error of a trial that met what nobody has foreseen, with its traceback as the end of the output."""
    said = "".join(traceback.format_exception(error))
    if isinstance(error, OSError):
        return MeasurementError(f"the system says: {error}", kind="system", output_tail=said)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the record"
        return MeasurementError(f"{where} cannot be recorded: {first['msg']}", kind="protocol", output_tail=said)
    return MeasurementError(
        f"{type(error).__name__}: {error}",
        kind="mistake",
        output_tail=said,
        remedy="this is a mistake of the suite's: please report it with this record",
    )


def _text(text: str, most: int) -> str:
    return text[:most].encode(errors="replace").decode()
