"""Tells a running QEMU one command, by its control socket, and prints the answer: ``python3 - SOCKET COMMAND``.

Runs on the node that QEMU runs on, be it this machine or another, with that node's own Python (3.9 or newer).
"""

import json
import socket
import sys
from typing import Any, TextIO

ANSWERED_WITHIN_S = 45.0


class RefusedError(Exception):
    """QEMU refuses a command, or has ended."""


def ask(qemu: TextIO, command: str, **arguments: object) -> Any:  # noqa: ANN401 (an answer is what the command defines)
    """Send a command and return its answer, passing over events. Raises RefusedError with QEMU's message."""
    qemu.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
    qemu.flush()
    return answer_to(command, qemu)


def answer_to(command: str, qemu: TextIO) -> Any:  # noqa: ANN401 (as there)
    """Return the answer to a command that was sent. Raises RefusedError."""
    for line in qemu:
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            raise RefusedError(f"{command}: {answer['error'].get('desc')}")
    raise RefusedError(f"{command}: QEMU has ended")


def main(path: str, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWERED_WITHIN_S)
        connection.connect(path)
        with connection.makefile("rw", encoding="utf-8") as qemu:
            qemu.readline()  # it greets
            try:
                ask(qemu, "qmp_capabilities")
                print(json.dumps(ask(qemu, command)))
            except RefusedError as error:
                sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
