"""The network interface that a rank is bound to: that it is there, and its address."""

import fcntl
import socket
import struct

from worker.errors import JobError

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
