"""The ranks' rendezvous: a TCP store of rank 0, where they announce themselves and say why they failed.

Failures between ranks are told from failures in one of them.
"""

import time
from datetime import timedelta

from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in torch's stubs

from worker.distributed.sockets import limit_reads, listener, open_sockets, opened_since
from worker.errors import JobError
from worker.spec import Membership

LEFT = "left"
"""A rank's beat once it needs the others no more."""
_REASON = "reason"
_LOOK_AGAIN_S = 0.05


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


class Rendezvous:
    """One rank's connection to the store. Of use to one thread at a time; ``twin`` makes one for another thread."""

    def __init__(self, membership: Membership, store: TCPStore) -> None:
        self._membership = membership
        self.store = store

    def twin(self, timeout_s: float) -> "Rendezvous":
        before = open_sockets()
        try:
            self.store.set_timeout(timedelta(seconds=timeout_s))
            store = self.store.clone()  # type: ignore[attr-defined]
        except (distributed.DistError, RuntimeError) as error:
            raise self._deserted(error) from error
        limit_reads(opened_since(before), timeout_s)
        return Rendezvous(self._membership, store)

    def announce(self, address: str) -> dict[int, str]:
        """Tell this rank's address, and wait for those of all. Raises JobError that names who has not come."""
        membership = self._membership
        end_s = time.monotonic() + membership.patience_s
        try:
            self.beat("0")
            if membership.rank == 0:
                self.store.set(_REASON, "")
            self.store.set(_address(membership.rank), address)
            while absent := [rank for rank in membership.others if not self.store.check([_address(rank)])]:
                if self.store.check([_REASON]) and (reason := self.store.get(_REASON).decode()):
                    raise JobError(reason, kind="network")
                if time.monotonic() > end_s:
                    late = f"{membership.names(absent)} did not reach the rendezvous within {membership.patience_s:g} s"
                    raise JobError(self.blame(late), kind="network")
                time.sleep(_LOOK_AGAIN_S)
            return {rank: self.store.get(_address(rank)).decode() for rank in range(membership.world)}
        except (distributed.DistError, RuntimeError) as error:
            raise self._deserted(error) from error

    def _deserted(self, error: Exception) -> JobError:
        return JobError(
            f"{self._membership.name(0)} left while the ranks gathered: {first_line(error)}", kind="network"
        )

    def beat(self, value: str) -> None:
        self.store.set(_beat(self._membership.rank), value)

    def look(self) -> tuple[str, list[str]]:
        """Why the job has failed, empty as long as it has not; and the last beat of every rank."""
        reason, *beats = self.store.multi_get([_REASON, *map(_beat, range(self._membership.world))])
        return reason.decode(), [beat.decode() for beat in beats]

    def blame(self, reason: str) -> str:
        """Return the reason of the rank that failed first, which is this one's when none has before."""
        first: bytes = self.store.compare_set(_REASON, "", reason)
        return first.decode()


def open_rendezvous(membership: Membership, address: str) -> Rendezvous:
    """Open the rendezvous on rank 0, at this address of its own alone, or connect to it. Raises JobError."""
    before = open_sockets()
    try:
        listening = listener(address, membership.port)[1] if membership.rank == 0 else None
        store = TCPStore(
            membership.master,
            membership.port,
            membership.world,
            is_master=membership.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=membership.patience_s),
            master_listen_fd=listening,
        )
    except (distributed.DistError, RuntimeError, OSError) as error:
        why = str(error).partition("\n")[0]
        place = f"{membership.master}:{membership.port}"
        if membership.rank == 0:
            raise JobError(f"{membership.name(0)} cannot open port {membership.port}: {why}", kind="network") from error
        message = f"{membership.name(membership.rank)} cannot reach {membership.name(0)} at {place}: {why}"
        raise JobError(message, kind="network") from error
    limit_reads(opened_since(before), membership.patience_s)
    return Rendezvous(membership, store)


def _address(rank: int) -> str:
    return f"address/{rank}"


def _beat(rank: int) -> str:
    return f"beat/{rank}"
