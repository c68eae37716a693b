"""Program that makes a machine forward packets for one user more or less; sent to the machine's own Python.

Several jobs may need it at once, of several benches: the last to leave sets it back to what the first has found.
The setting belongs to a network namespace, and so do its users.
"""

import fcntl
import os
import sys
from pathlib import Path

SETTING = Path("/proc/sys/net/ipv4/ip_forward")
NAMESPACE = Path("/proc/self/ns/net")
USERS = Path("/run/virtbench/forwarding")
BEFORE = "before"


def main(verb: str, user: str) -> None:
    """Let a user ``enter`` or ``leave``. Both may be done again."""
    USERS.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = USERS / str(NAMESPACE.stat().st_ino)
    lock = os.open(USERS, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = users / BEFORE
        if verb == "enter":
            users.mkdir(mode=0o700, exist_ok=True)
            if not before.exists():
                before.write_text(SETTING.read_text())
            (users / user).touch()
            SETTING.write_text("1")
        elif (users / user).exists():
            (users / user).unlink()
            if [path.name for path in users.iterdir()] == [BEFORE]:
                SETTING.write_text(before.read_text())
                before.unlink()
                users.rmdir()
    finally:
        os.close(lock)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
