"""A rank's interface, and the process group's connections, which gloo does not let go of while it waits in them.

gloo has no way to end a wait that has begun: its ``abort`` does nothing, and its time limits cannot tell a link that
was cut from a slow step. Shutting its connections down ends every wait in them at once, with an error.
"""

import fcntl
import os
import socket
import struct
from contextlib import closing
from pathlib import Path

from worker.protocol import JobError

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15  # the kernel's IFNAMSIZ without the closing zero


def address_of(interface: str) -> str:
    """Return the IPv4 address of the interface. Raises JobError that says what there is instead."""
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
