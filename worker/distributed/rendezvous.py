"""The ranks' rendezvous: a TCP store of rank 0, where they meet, show that they live, and report why they fail.

A rank that is killed closes its connections, and whoever waits for it mostly notices at once. One that is stopped, or
behind a link that was cut, closes nothing; and how long a step may take is unknown on an emulated CPU. So every rank
counts at the rendezvous, and checks that the others do.

gloo has no way to end a wait that has begun: its ``abort`` does nothing, and its time limits cannot tell a link that
was cut from a slow step. Shutting its connections down ends every wait in them at once, with an error.
"""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in torch's stubs

from worker.protocol import JobError
from worker.spec import Membership

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15  # the kernel's IFNAMSIZ without the closing zero


def address_of(interface: str) -> str:
    """Return the IPv4 address of the interface. Raises JobError with what there is instead."""
    there = [name for _, name in socket.if_nameindex()]
    if interface not in there:
        raise JobError(
            f"there is no network interface {interface!r} in this instance; there are {', '.join(there)}",
            kind="network",
        )
    request = struct.pack("256s", interface.encode()[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise JobError(f"network interface {interface} has no IPv4 address ({error})", kind="network") from None
    # struct ifreq: the name, then a sockaddr_in of family, port and address.
    return socket.inet_ntoa(answer[20:24])


def interface_bytes(interface: str) -> dict[str, int]:
    """Return the bytes that an interface has received and sent, headers included, as fields of ``records.Rank``.

    Nothing if the kernel does not show them.
    """
    try:
        # Not /sys: it shows the network namespace of who mounted it.
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        rows = [line.partition(":") for line in lines]
        counts = {name.strip(): numbers.split() for name, _, numbers in rows}
        received, sent = (int(counts[interface][column]) for column in (0, 8))
    except (OSError, LookupError, ValueError):
        return {}
    return {"interface_received_bytes": received, "interface_sent_bytes": sent}


def listener(address: str, port: int = 0) -> tuple[int, int]:
    """Return the port, any that is free for 0, and the descriptor of a socket that listens there.

    For torch's store, which by itself listens at every address of the machine. Raises OSError.
    """
    with socket.create_server((address, port), backlog=1024) as listening:
        return listening.getsockname()[1], listening.detach()


def open_sockets() -> dict[int, str]:
    """Return the descriptors of this process that are sockets, with what the kernel calls each."""
    sockets = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            target = str(path.readlink())
        except FileNotFoundError:
            continue  # the one that listed the folder
        if target.startswith("socket:"):
            sockets[int(path.name)] = target
    return sockets


def opened_since(before: dict[int, str]) -> dict[int, str]:
    return {number: name for number, name in open_sockets().items() if before.get(number) != name}


def limit_reads(sockets: dict[int, str], timeout_s: float) -> None:
    """Let no read from them wait longer: torch's store obeys its own limit in some of its operations only."""
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    for descriptor in sockets:
        with closing(socket.socket(fileno=os.dup(descriptor))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def shut_down(sockets: dict[int, str]) -> None:
    """End the connections among them. A descriptor that has become another's since is left alone, as are listeners."""
    now = open_sockets()
    for descriptor, identity in sockets.items():
        if now.get(descriptor) != identity:
            continue
        try:
            with closing(socket.socket(fileno=os.dup(descriptor))) as connection:
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # already ended


LEFT = "left"
"""A rank's beat once it needs the others no more."""
_REASON = "reason"
_LOOK_AGAIN_S = 0.05
_LONGEST_BEAT_S = 1.0
_LOST_AFTER = 0.75
"""The share of the timeout after which a rank is lost; the ranks end in what remains."""


class LostError(JobError):
    def __init__(self, message: str) -> None:
        super().__init__(message, kind="network")


def is_network(error: Exception) -> bool:
    """Return whether the error comes from the network. torch has no type for what goes wrong in gloo."""
    message = str(error)
    return isinstance(error, LostError | distributed.DistError) or (
        isinstance(error, RuntimeError) and any(word in message for word in ("gloo/", "Gloo", "NCCL", "ProcessGroup"))
    )


def first_line(error: Exception) -> str:
    """Return the message without the path in torch's build and the advice that gloo adds."""
    line = str(error).partition("\n")[0]
    if line.startswith("["):
        return line.rpartition("] ")[2].partition(". This is typically")[0]
    return line


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
            self.store.set(f"address/{membership.rank}", address)
            while absent := [rank for rank in membership.others if not self.store.check([f"address/{rank}"])]:
                if self.store.check([_REASON]) and (reason := self.store.get(_REASON).decode()):
                    raise JobError(reason, kind="network")
                if time.monotonic() > end_s:
                    late = f"{membership.names(absent)} did not reach the rendezvous within {membership.patience_s:g} s"
                    raise JobError(self.blame(late), kind="network")
                time.sleep(_LOOK_AGAIN_S)
            ranks = range(membership.world)
            return {rank: self.store.get(f"address/{rank}").decode() for rank in ranks}
        except (distributed.DistError, RuntimeError) as error:
            raise self._deserted(error) from error

    def _deserted(self, error: Exception) -> JobError:
        return JobError(
            f"{self._membership.name(0)} left while the ranks gathered: {first_line(error)}", kind="network"
        )

    def beat(self, value: str) -> None:
        self.store.set(f"beat/{self._membership.rank}", value)

    def look(self) -> tuple[str, list[str]]:
        """Why the job has failed, empty as long as it has not; and the last beat of every rank."""
        heartbeats = (f"beat/{rank}" for rank in range(self._membership.world))
        reason, *beats = self.store.multi_get([_REASON, *heartbeats])
        return reason.decode(), [beat.decode() for beat in beats]

    def blame(self, reason: str) -> str:
        """Return the reason of the rank that failed first, which is this one's when none has before."""
        first: bytes = self.store.compare_set(_REASON, "", reason)
        return first.decode()


def open_rendezvous(membership: Membership, address: str) -> Rendezvous:
    """Open the rendezvous on rank 0, at this address of its own alone, or connect to it. Raises JobError."""
    before = open_sockets()
    try:
        store = TCPStore(
            membership.master,
            membership.port,
            membership.world,
            is_master=membership.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=membership.patience_s),
            master_listen_fd=listener(address, membership.port)[1] if membership.rank == 0 else None,
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


class Heartbeat:
    """A thread that beats, and calls ``on_failure`` once, by then knowing the ``reason`` and who is ``lost``."""

    def __init__(self, membership: Membership, rendezvous: Rendezvous, on_failure: Callable[[], None]) -> None:
        self.interval_s = min(_LONGEST_BEAT_S, membership.timeout_s / 20)
        self.reason = ""
        self.lost: list[int] = []
        self._membership = membership
        self._limit_s = membership.timeout_s * _LOST_AFTER
        # torch's store waits for an answer once, and once more for that to its word that it waits no longer.
        self._rendezvous = rendezvous.twin(self._limit_s / 2)
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._left = False
        self._beating = threading.Lock()
        self._beats = [""] * membership.world
        self._heard_s = [time.monotonic()] * membership.world
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def silent(self, since_s: float) -> list[int]:
        """Return the other ranks that have neither beaten since then nor left."""
        others = self._membership.others
        return [rank for rank in others if self._heard_s[rank] < since_s and self._beats[rank] != LEFT]

    def leave(self) -> None:
        """Say that this rank needs the others no more. Only rank 0 goes on to listen to them."""
        with self._beating:
            self._left = True
            self._rendezvous.beat(LEFT)
        if self._membership.rank:
            self._stop.set()

    def wait_until_left(self, limit_s: float) -> None:
        """Wait until all others have left or are lost."""
        end_s = time.monotonic() + limit_s
        while any(self._beats[rank] != LEFT and rank not in self.lost for rank in self._membership.others):
            if time.monotonic() > end_s:
                return
            time.sleep(self.interval_s / 4)

    def stop(self) -> None:
        """End the thread. One that hangs in a connection that was cut is left to the end of the process."""
        self._stop.set()
        self._thread.join(self.interval_s * 2)

    def _run(self) -> None:
        count = 0
        name = self._membership.name(self._membership.rank)
        while not self._stop.wait(self.interval_s):
            count += 1
            try:
                with self._beating:
                    if not self._left:
                        self._rendezvous.beat(str(count))
                reason, beats = self._rendezvous.look()
                self._hear(beats)
                self.lost = self.lost or self.silent(time.monotonic() - self._limit_s)
                if self.lost and not reason:
                    reason = self._rendezvous.blame(f"{name} hears no more of {self._membership.names(self.lost)}")
            except (distributed.DistError, RuntimeError):
                self.lost = [0]
                reason = f"{self._membership.name(0)}, which holds the rendezvous, is gone"
            if reason and not self.reason and not self._stop.is_set():
                self.reason = reason
                self._on_failure()
            if 0 in self.lost:
                return

    def _hear(self, beats: list[str]) -> None:
        now_s = time.monotonic()
        for rank, beat in enumerate(beats):
            if beat != self._beats[rank]:
                self._beats[rank] = beat
                self._heard_s[rank] = now_s
