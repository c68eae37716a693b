"""Tells failures between ranks from failures in one of them."""

from torch import distributed

from worker.errors import JobError


class LostError(JobError):
    """Another rank cannot be waited for any longer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="network")


def is_network(error: Exception) -> bool:
    """Return whether the error comes from the network. torch has no type for what goes wrong in gloo."""
    said = str(error)
    return isinstance(error, LostError | distributed.DistError) or (
        isinstance(error, RuntimeError) and any(word in said for word in ("gloo/", "Gloo", "NCCL", "ProcessGroup"))
    )


def first_line(error: Exception) -> str:
    """Return the message without the path in torch's build and the advice that gloo adds."""
    line = str(error).partition("\n")[0]
    return line.rpartition("] ")[2].partition(". This is typically")[0] if line.startswith("[") else line
