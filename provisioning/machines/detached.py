"""Runs a command that outlives the connection which started it: ``python3 -c TEXT start|follow DIRECTORY [COMMAND]``.

It is sent into guests as text. ``start`` hands its input on to the command; the end of that input is not the command's.
"""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ORDERS = "orders"
OUTPUT = "output"
MESSAGES = "messages"
STATUS = "status"
PAUSE_S = 0.05
CHUNK_BYTES = 1 << 16
KEPT_BYTES = 1 << 14
"""The end of the messages is kept: a directory of the guest's memory is not filled by them."""


def start(directory: Path, argv: Sequence[str]) -> None:
    """Start the command and return. Its standard output becomes a file, and its input a pipe that has no end."""
    directory.mkdir(mode=0o700)
    os.mkfifo(directory / ORDERS)
    orders = os.open(directory / ORDERS, os.O_RDWR)
    first = sys.stdin.buffer.read()
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    with (directory / OUTPUT).open("wb") as output:
        command = subprocess.Popen(
            argv,
            stdin=orders,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    os.write(orders, first)
    messages = b""
    assert command.stderr is not None  # noqa: S101 (opened as a pipe)
    while True:
        chunk = os.read(command.stderr.fileno(), CHUNK_BYTES)
        if not chunk:
            break
        messages = (messages + chunk)[-KEPT_BYTES:]
    status = command.wait()
    (directory / MESSAGES).write_bytes(messages)
    written = directory / f"{STATUS}.new"
    written.write_text(str(status))
    written.rename(directory / STATUS)


def follow(directory: Path) -> int:
    """Print the command's output until it has ended, and hand on the input. Returns its exit status, as a shell does.

    At the end of the input the command goes on, and the status is 0.
    """
    orders = os.open(directory / ORDERS, os.O_RDWR)
    with (directory / OUTPUT).open("rb") as output:
        while True:
            ended = (directory / STATUS).exists()
            sys.stdout.buffer.write(output.read())
            sys.stdout.buffer.flush()
            if ended:
                break
            readable = select.select([0], [], [], PAUSE_S)[0]
            if readable:
                order = os.read(0, CHUNK_BYTES)
                if not order:
                    return 0
                os.write(orders, order)
    sys.stderr.buffer.write((directory / MESSAGES).read_bytes())
    status = int((directory / STATUS).read_text())
    if status < 0:
        return 128 - status
    return status


def main(action: str, directory: str, *argv: str) -> int:
    if action == "follow":
        return follow(Path(directory))
    start(Path(directory), argv)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
