"""The system calls that a filter refuses: a profile that allows everything is a filter, too."""

import ctypes
import errno
import os
import platform

CALLS = {
    "x86_64": {
        "add_key": 248,
        "get_mempolicy": 239,
        "keyctl": 250,
        "move_pages": 279,
        "perf_event_open": 298,
    }
    | {"kcmp": 312, "unshare": 272},
    "aarch64": {
        "add_key": 217,
        "get_mempolicy": 236,
        "keyctl": 219,
        "move_pages": 239,
        "perf_event_open": 241,
    }
    | {"kcmp": 272, "unshare": 97},
}
"""The numbers of system calls that change nothing with the arguments below, which the kernel refuses to no user for
want of a permission, and which profiles of engines refuse."""
_ARGUMENTS = {"keyctl": (0, -1, 0), "kcmp": (-1, -1, 0, 0, 0)}
"""A keyring's number without creating it; processes that cannot be. All others get zeros."""
_NO_ARGUMENTS = (0,) * 6


def refused_calls() -> list[str] | None:
    """Return the calls, of those that are tried, that a filter refuses; None on an unknown machine.

    They are tried in a child: a filter may kill who makes one.
    """
    numbers = CALLS.get(platform.machine())
    if numbers is None:
        return None
    by_name = sorted(numbers.items())
    return [name for name, number in by_name if _refused(number, _ARGUMENTS.get(name, _NO_ARGUMENTS))]


def _refused(number: int, arguments: tuple[int, ...]) -> bool:
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(number, *map(ctypes.c_long, arguments)) < 0
        os._exit(failed and ctypes.get_errno() == errno.EPERM)
    _, status = os.waitpid(child, 0)
    return status != 0
