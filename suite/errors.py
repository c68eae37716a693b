"""Errors a user can act on. Raised anywhere, caught once, in ``cli``."""

from collections.abc import Callable, Sequence

_MARK = "\0"
"""Encloses the name of an option in a message: no word of a command line can hold it."""


def option(name: str) -> str:
    """Return what stands for an option of ``bench run`` in a message; the message is spelled where it is shown.

    On the command line ``memory`` is ``--memory``, in a plan file ``envelope.memory``: see ``RequestError.spelled``.
    """
    return f"{_MARK}{name}{_MARK}"


def flag(name: str) -> str:
    """Return how the command line spells an option: ``image_px`` is ``--image-px``."""
    return f"--{name.replace('_', '-')}"


def spelled(text: str, spelling: Callable[[str], str] = flag) -> str:
    """Return the text with its options, as ``option`` has marked them, spelled by ``spelling``."""
    pieces = text.split(_MARK)
    pieces[1::2] = map(spelling, pieces[1::2])
    return "".join(pieces)


class BenchError(Exception):
    """Base of every error that is shown as a message and not as a traceback.

    ``remedy`` says what to do next. ``exit_code`` is stable: 1 the measurement failed, 2 the request was wrong.
    """

    exit_code = 1
    kind = "error"

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        self.marked = message, remedy
        """Both with their options as ``option`` has marked them."""
        self.message = spelled(message)
        self.remedy = None if remedy is None else spelled(remedy)
        super().__init__(self.message)


class RequestError(BenchError):
    """The request cannot be served as it was made: a wrong name, number, file, or a host that cannot carry it."""

    exit_code = 2
    kind = "request"

    def spelled(self, spelling: Callable[[str], str]) -> "RequestError":
        """Return the same error with its options spelled by ``spelling``."""
        message, remedy = self.marked
        return RequestError(spelled(message, spelling), remedy=None if remedy is None else spelled(remedy, spelling))

    def within(self, where: str) -> "RequestError":
        """Return the same error with ``where`` it was found: ``on n2: --cpus 3: this host allows CPUs 4-5``."""
        return RequestError(f"{where}: {self.marked[0]}", remedy=self.marked[1])


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
