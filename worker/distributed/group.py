"""The process group of a job: joined, watched, and left, or broken off with the reason."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread

import torch
from torch import distributed
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, and not in torch's stubs

from worker.distributed.rendezvous import (
    Heartbeat,
    LostError,
    Rendezvous,
    address_of,
    first_line,
    is_network,
    open_rendezvous,
    open_sockets,
    opened_since,
    shut_down,
)
from worker.protocol import JobError
from worker.spec import Membership

PATIENCE = timedelta(hours=24)
"""The limit of one operation: a step may take long. A lost rank is noticed by the heartbeat and closed connections."""
_GRACE_BEATS = 7
"""How many beats the main thread has to end by itself after the connections: the roll call and somewhat more."""
_ROLL_CALL_BEATS = 5
"""How many beats a living rank needs to be heard. What is heard in the first may be the last of a dead one."""
_FAREWELL_S = 3.0
"""How long rank 0 holds the rendezvous after a failure, for the others to read why."""

Report = Callable[[JobError], None]


def print_error(error: JobError) -> None:
    print(f"{error.kind}: {error}", file=sys.stderr, flush=True)


class RankGroup:
    """The ranks of a job after the rendezvous, and their connections. ``addresses`` has what each rank is bound to."""

    def __init__(
        self,
        membership: Membership,
        rendezvous: Rendezvous,
        addresses: Mapping[int, str],
        report: Report,
    ) -> None:
        self.membership = membership
        self.addresses = addresses
        self._rendezvous = rendezvous
        self._report = report
        self._ended = Event()
        self._heartbeat = Heartbeat(membership, rendezvous, self._end)
        self._others_sockets = open_sockets()
        self._heartbeat.start()

    def connect(self, device: str) -> None:
        """Form torch's process group. Raises LostError."""
        nccl = not self.membership.servers and device.startswith("cuda")
        try:
            distributed.init_process_group(
                "nccl" if nccl else "gloo",
                store=PrefixStore("group", self._rendezvous.store),
                rank=self.membership.rank,
                world_size=self.membership.world,
                timeout=timedelta(seconds=self.membership.timeout_s),
                device_id=torch.device("cuda", torch.device(device).index or 0) if nccl else None,
            )
            distributed.distributed_c10d._get_default_group().set_timeout(PATIENCE)
        except RuntimeError as error:
            name = self.membership.name(self.membership.rank)
            interface = self.membership.interface
            why = self._heartbeat.reason or first_line(error)
            message = f"the ranks met, but {name} cannot connect to all of them over {interface}: {why}"
            raise LostError(message) from error

    def lost(self, rank: int, error: RuntimeError) -> LostError:
        """Return the error of an operation with one other rank, with the reason if it is known."""
        name = self.membership.name(self.membership.rank)
        peer = self.membership.name(rank)
        return LostError(self._heartbeat.reason or f"{name} lost {peer}: {first_line(error)}")

    def tell(self, error: Exception) -> str:
        """Why the job fails, beginning with the reason of the rank that failed first; then break off.

        The others are told before their connections end: they would take that for the reason.
        """
        reason = self._reason(error)
        try:
            first = self._heartbeat.reason or self._rendezvous.blame(reason)
        except (distributed.DistError, RuntimeError):
            first = f"{self.membership.name(0)}, which holds the rendezvous, is gone"
        self._break_off()
        if first == reason:
            return reason
        return f"{first}; {reason}"

    def leave(self) -> None:
        """Say that this rank needs the others no more; rank 0, at the rendezvous, waits until none needs it."""
        self._heartbeat.leave()
        if self.membership.rank == 0:
            self._heartbeat.wait_until_left(PATIENCE.total_seconds())
            if self._heartbeat.reason:
                raise LostError(self._heartbeat.reason)

    def fail(self, error: Exception) -> Exception:
        """Tell the others, and return what to raise for the error."""
        reason = self.tell(error)
        if 0 not in self._heartbeat.lost:
            with suppress(distributed.DistError, RuntimeError):  # rank 0 has ended in the meantime
                self._heartbeat.leave()
        if self.membership.rank == 0:
            self._heartbeat.wait_until_left(_FAREWELL_S)
        if is_network(error):
            return LostError(reason)
        return error

    def close(self) -> None:
        self._heartbeat.stop()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._ended.set()

    def _end(self) -> None:
        """End here because the job has failed elsewhere: with the main thread if it wakes up, else without it."""
        self._break_off()
        Thread(target=self._end_the_hard_way, daemon=True).start()

    def _end_the_hard_way(self) -> None:
        """End the process: gloo does not wake a thread whose chunk came in part when its connection ended."""
        if not self._ended.wait(_GRACE_BEATS * self._heartbeat.interval_s + _FAREWELL_S):
            self._report(LostError(self._heartbeat.reason))
            os._exit(1)

    def _break_off(self) -> None:
        """End the waits in the group's connections with an error, of whatever thread."""
        shut_down(opened_since(self._others_sockets))

    def _reason(self, error: Exception) -> str:
        name = self.membership.name(self.membership.rank)
        if not is_network(error):
            return f"{name} failed: {type(error).__name__}: {error}"
        if isinstance(error, LostError):
            return str(error)
        # A collective does not say which rank it misses: the one that beats no more.
        beat_s = self._heartbeat.interval_s
        since_s = time.monotonic()
        time.sleep(_ROLL_CALL_BEATS * beat_s)
        silent = self.membership.names(self._heartbeat.silent(since_s + 1.5 * beat_s))
        return self._heartbeat.reason or f"{name} lost {silent or 'a connection'}: {first_line(error)}"


@contextmanager
def joined(membership: Membership, device: str = "cpu", *, report: Report = print_error) -> Iterator[RankGroup]:
    """Meet the other ranks and form the group: NCCL without servers on ``cuda``, else gloo.

    Raises JobError of kind ``network`` when a rank does not come or is lost: within ``timeout_s`` and a few seconds.
    Where gloo does not let the body be interrupted, the error goes to ``report``, from another thread, and the process
    ends with status 1. Any other error of the body passes as it is, after the others have been told.

    To be entered after whatever forks: a copy of a rank's process would keep its connections open beyond its end.
    """
    address = address_of(membership.interface)
    # NCCL takes a name for a prefix, and ranks with one host name for processes that share memory, whatever network
    # namespace they are in: then bare metal would bypass the link that containers use (NCCL's environment variables).
    os.environ["GLOO_SOCKET_IFNAME"] = membership.interface
    os.environ["NCCL_SOCKET_IFNAME"] = f"={membership.interface}"
    os.environ["NCCL_HOSTID"] = f"virtbench-rank-{membership.rank}"
    rendezvous = open_rendezvous(membership, address)
    try:
        group = RankGroup(membership, rendezvous, rendezvous.announce(address), report)
    except JobError:
        if membership.rank == 0:
            time.sleep(min(_FAREWELL_S, membership.patience_s))
        raise
    try:
        group.connect(device)
        yield group
        group.leave()
    except Exception as error:
        raise group.fail(error) from error
    finally:
        group.close()
