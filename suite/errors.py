"""Errors a user can act on. Raised anywhere, caught once, in ``cli``.

::

    BenchError                  exit code 1, and a remedy
    +- RequestError             exit code 2: the request is wrong
    |  +- NoFilesError          of a command's files (scenarios.command_files)
    |  +- NewerRecordError      written by a later suite (suite.records.reader)
    +- MeasurementError         exit code 1: one trial failed; a run records it and goes on
    |  +- CommandError          a program failed; keeps its argv, output and exit status
    |  +- AwayError             a batch service does not answer (provisioning.batch.patience)
    |  +- ApiError              the Kubernetes server refuses (provisioning.kubernetes.refusals)
    |     +- BusyError          for now
    +- LedgerError              an entry of the ledger cannot be written (provisioning.ledger)
    +- StoreError               a run's directory cannot be written (suite.results.store)
    +- TransferError            a file of another machine is refused (suite.sweep.file_transfer)
    +- CloudError               a cloud does not do what it was asked to (provisioning.clouds.base)
"""

import difflib
import errno
import signal
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


_ELSEWHERE = {
    "runsc": "gvisor",
    "singularity": "apptainer",
    "k8s": "kubernetes",
    "gpt": "transformer",
    "gpt2": "transformer",
    **dict.fromkeys(("host", "native", "metal"), "bare-metal"),
    **dict.fromkeys(("kvm", "qemu"), "vm"),
    **dict.fromkeys(("docker", "podman", "runc"), "container"),
}
"""What people know something as, and its name here."""


def nearest(word: str, names: Sequence[str]) -> str:
    """Return ``"did you mean smoke? choose among paper, quick, smoke"``; without the question if no name is close."""
    synonym = _ELSEWHERE.get(word.lower())
    near = [synonym] if synonym in names else difflib.get_close_matches(word, names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"choose among {', '.join(names)}"


REMEDY_LABEL = "what to do: "
"""Stands before the remedy in the output of ``bench``."""


class BenchError(Exception):
    """Base of every error that is shown as a message and not as a traceback.

    ``remedy`` says what to do next. ``exit_code`` is stable: 1 the measurement failed, 2 the request was wrong.
    """

    exit_code = 1
    kind = "error"
    output_tail = ""
    """The end of the output of a program that has failed."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        self.marked = message, remedy
        """Both with their options as ``option`` has marked them."""
        self.message = spelled(message)
        self.remedy = None if remedy is None else spelled(remedy)
        super().__init__(self.message)

    @property
    def with_remedy(self) -> str:
        return "; ".join(filter(None, (self.message, self.remedy)))


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


def missing_extra(package: str, extra: str) -> RequestError:
    """Return the refusal of what needs a package that is installed by an extra of the suite's only."""
    return RequestError(f"{package} is not installed", remedy=f"pip install 'virtbench[{extra}]'")


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
        self,
        command: Sequence[str],
        returncode: int | None,
        output_tail: str,
        *,
        remedy: str | None = None,
    ) -> None:
        how = "outlived its time limit"
        if returncode is not None:
            how = ending(returncode)
        last = output_tail.strip().splitlines()[-1:] or ["no output"]
        super().__init__(
            f"{command[0]} {how}: {last[0][:300]}",
            kind="command",
            command=command,
            output_tail=output_tail,
            remedy=remedy,
        )
        self.returncode = returncode


def signal_of(status: int) -> int | None:
    """Return the signal that ended a process: a negative status, or over 128 from engines, shells, SSH; else None."""
    number = -status if status < 0 else status - 128
    if 0 < number <= signal.SIGRTMAX:
        return number
    return None


def ending(status: int) -> str:
    """Return how a process ended: ``was ended by SIGKILL``, ``ended with exit status 1``."""
    number = signal_of(status)
    if number is None:
        return f"ended with exit status {status}"
    names = {int(known): known.name for known in signal.Signals}
    beyond = number - signal.SIGRTMIN
    return f"was ended by {names.get(number) or (f'SIGRTMIN+{beyond}' if beyond > 0 else f'signal {number}')}"


_REFUSED = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
_WHAT_TO_DO = {
    errno.EROFS: "name a place that can be written: --out, or VIRTBENCH_HOME for the suite's own folder",
    errno.ENAMETOOLONG: "use shorter names, or a directory nearer to the root",
    errno.ENOSPC: "free some space there",
    **dict.fromkeys(_REFUSED, "see whether it is there, and who may read and write it"),
}


def of_system(error: OSError) -> BenchError:
    """Return an error of the operating system that nothing nearer to it has caught."""
    where = ""
    if error.filename:
        where = f"{error.filename}: "
    kind = RequestError if error.errno in _REFUSED or error.errno in (errno.EROFS, errno.ENAMETOOLONG) else BenchError
    return kind(f"{where}{error.strerror or error}", remedy=_WHAT_TO_DO.get(error.errno or 0))
