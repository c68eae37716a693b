"""Kills a process that a descriptor holds, on this machine and in programs that run on others (Python 3.9 or newer).

In the source of such a program ``processes.program_argv`` puts this file in the place of its import.
"""

import errno
import os
import signal
from collections.abc import Callable


def kill_held(pid: int, is_meant: Callable[[], bool]) -> None:
    """Kill a process if it is the one that is meant; do nothing if it has ended.

    It is judged while a descriptor holds it (pidfd_open(2)), so that its number cannot become another's before the
    signal. Kernels before 5.3 have no such descriptor: there it is judged right before the signal. Raises
    PermissionError for another user's process.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        if is_meant():
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if is_meant():
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:  # it has ended meanwhile
        pass
    finally:
        os.close(descriptor)
