"""Errors a user can act on. Raised anywhere, caught once, in ``cli``."""

from collections.abc import Sequence


class BenchError(Exception):
    """Base of every error that is shown as a message and not as a traceback.

    ``remedy`` says what to do next. ``exit_code`` is stable: 1 the measurement failed, 2 the request was wrong.
    """

    exit_code = 1
    kind = "error"

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class RequestError(BenchError):
    """The request cannot be served as it was made: a wrong name, number, file, or a host that cannot carry it."""

    exit_code = 2
    kind = "request"


class MeasurementError(BenchError):
    """A trial did not come to its end. ``kind`` classifies it in the record's outcome."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "measurement",
        command: Sequence[str] = (),
        output_tail: str = "",
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.kind = kind
        self.command = tuple(command)
        self.output_tail = output_tail


class CommandError(MeasurementError):
    """A child process ended with a non-zero exit status, or outlived its time limit."""

    def __init__(
        self, command: Sequence[str], returncode: int | None, output_tail: str, *, remedy: str | None = None
    ) -> None:
        how = "outlived its time limit" if returncode is None else f"ended with exit status {returncode}"
        last = output_tail.strip().splitlines()[-1:] or ["no output"]
        super().__init__(
            f"{command[0]} {how}: {last[0][:300]}",
            kind="command",
            command=command,
            output_tail=output_tail,
            remedy=remedy,
        )
        self.returncode = returncode
