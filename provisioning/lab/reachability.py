"""Program that listens for the peers of a node or connects to them all; sent to the node's own Python.

Both end by themselves, whatever becomes of who started them: a command over SSH or in a container outlives its client.
"""

import json
import socket
import sys
import time


def listen(address: str, port: int, visitors: int, within_s: float) -> None:
    """Print the port, then accept so many connections."""
    deadline = time.monotonic() + within_s
    with socket.create_server((address, port), backlog=max(1, visitors)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        for _ in range(visitors):
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                server.accept()[0].close()
            except TimeoutError:
                return


def connect(peers: list[str], within_s: float) -> None:
    """Print one line of JSON for each ``ADDRESS:PORT``, in order, up to the first that does not answer."""
    for peer in peers:
        address, _, port = peer.rpartition(":")
        begun = time.monotonic()
        try:
            with socket.create_connection((address, int(port)), timeout=within_s) as connection:
                connect_s = time.monotonic() - begun
                result = {"connect_s": connect_s, "from": connection.getsockname()[0]}
        except OSError as error:
            result = {"error": error.strerror or str(error)}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        if "error" in result:
            return


def main(words: list[str]) -> None:
    if words[0] == "listen":
        listen(words[1], int(words[2]), int(words[3]), float(words[4]))
    else:
        connect(words[2:], float(words[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
