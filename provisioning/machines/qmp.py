"""Tells a running QEMU one command, by its control socket, and prints the answer: ``python3 - SOCKET COMMAND``.

Runs on the node that QEMU runs on, be it this machine or another, with that node's own Python (3.9 or newer).
"""

import json
import socket
import sys
from typing import Any, TextIO

ANSWERED_WITHIN_S = 45.0


def ask(qemu: TextIO, command: str) -> Any:  # noqa: ANN401 (an answer is whatever the command defines)
    """Send a command and return its answer, passing over events. Exits with QEMU's message if it refuses."""
    qemu.write(json.dumps({"execute": command}) + "\n")
    qemu.flush()
    for line in qemu:
        answer = json.loads(line)
        if "return" in answer:
            return answer["return"]
        if "error" in answer:
            sys.exit(f"{command}: {answer['error'].get('desc')}")
    sys.exit(f"{command}: QEMU has ended")


def main(path: str, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWERED_WITHIN_S)
        connection.connect(path)
        with connection.makefile("rw", encoding="utf-8") as qemu:
            qemu.readline()  # it greets
            ask(qemu, "qmp_capabilities")
            print(json.dumps(ask(qemu, command)))


if __name__ == "__main__":
    main(*sys.argv[1:])
