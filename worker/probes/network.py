"""The network probe: TCP throughput by iperf3 in both directions, and the round trip of 64 bytes.

Both ends are in the target. Run as a program, ``python3 -m worker.probes.network ADDRESS``, it is the far end of the
ping-pong, and prints its port.
"""

import json
import socket
import sys
import time

from worker.probes import tools
from worker.probes.probe import Measured, Probe, ProbeError, Reading, median, quantile
from worker.spec import Request

LOOPBACK = "127.0.0.1"
SECONDS = {"smoke": 1, "quick": 5, "paper": 30}
ROUND_TRIPS = {"smoke": 200, "quick": 2000, "paper": 10_000}
WARM_UP = 50
MESSAGE_BYTES = 64
PATIENCE_S = 60.0
OLDEST_IPERF3 = (3, 2)  # --forceflush: that the server listens is read from its own words
IPERF3_PATIENCE_S = 120.0
"""How long everything but the measuring itself may take on an emulated CPU."""


def measure(request: Request) -> Measured:
    program = tools.find("iperf3")
    version = tools.version_of(program, OLDEST_IPERF3)
    metrics = {}
    retransmits = {}
    for name, reverse in (("tcp-throughput", False), ("tcp-throughput-reverse", True)):
        metrics[name], retransmits[name] = session(program, free_port(), SECONDS[request.size], reverse=reverse)
    trips = round_trips_us(ROUND_TRIPS[request.size])
    metrics["tcp-round-trip-median"] = median(trips, "us", "less")
    metrics["tcp-round-trip-p99"] = Reading(quantile(trips, 0.99), "us", "less")
    return Measured(metrics, {"iperf3": version, "address": LOOPBACK, "retransmits": retransmits})


def session(program: str, port: int, seconds: int, *, reverse: bool) -> tuple[Reading, int | None]:
    """Measure from the client to the server, or with ``reverse`` the other way. Raises ProbeError."""
    at_port = ["--port", str(port)]
    server = [program, "--server", "--one-off", "--forceflush", *at_port, "--bind", LOOPBACK]
    client = [program, "--client", LOOPBACK, *at_port, "--time", str(seconds), "--json"]
    with tools.serving(server, "listening"):
        done = tools.run([*client, *(["--reverse"] if reverse else [])], timeout_s=seconds + IPERF3_PATIENCE_S)
    return parse_session(done.stdout, done.stderr)


def parse_session(written: str, said: str = "") -> tuple[Reading, int | None]:
    """Return the rate in the client's JSON, and the retransmits; None where the sender's kernel does not tell.

    Raises ProbeError. A client that fails can end with status 0: the JSON alone says so.
    """
    try:
        report = json.loads(written)
    except ValueError:
        report = {"error": (said or written).strip()[-200:] or "it says nothing"}
    error = report.get("error")
    if error:
        remedy = "see whether the two ends reach each other by TCP"
        raise ProbeError(f"iperf3 has failed: {str(error)[:300]}", remedy=remedy)
    intervals = report["intervals"]
    rates = [interval["sum"]["bits_per_second"] / 1e9 for interval in intervals if not interval["sum"]["omitted"]]
    received = report["end"]["sum_received"]["bits_per_second"] / 1e9
    if not received > 0:
        raise ProbeError("iperf3 has received nothing", remedy="see whether a firewall cuts TCP between the two ends")
    retransmits = report["end"]["sum_sent"].get("retransmits")
    return Reading(received, "Gbit/s", "more", rates), retransmits if isinstance(retransmits, int) else None


def free_port() -> int:
    """Return a port that is free now, and that the other end reaches. Raises ProbeError: the interface can be down."""
    try:
        with socket.create_server((LOOPBACK, 0)) as listener:
            port = int(listener.getsockname()[1])
            socket.create_connection((LOOPBACK, port), timeout=5.0).close()
            return port
    except OSError as error:
        raise ProbeError(
            f"{LOOPBACK} does not answer here: {error.strerror or error}",
            remedy="see with `ip link` in the target whether its interface is up",
        ) from error


def round_trips_us(count: int) -> list[float]:
    """Return how long each message takes to a process of its own and back, in microseconds."""
    message = bytes(MESSAGE_BYTES)
    trips = []
    # Two threads of one process would wait for the interpreter's lock as well.
    argv = [sys.executable, "-m", "worker.probes.network", LOOPBACK]
    with (
        tools.serving(argv, r"^\d+$") as port,
        socket.create_connection((LOOPBACK, int(port)), timeout=PATIENCE_S) as peer,
    ):
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(WARM_UP + count):
            begin_ns = time.perf_counter_ns()
            peer.sendall(message)
            if len(peer.recv(MESSAGE_BYTES, socket.MSG_WAITALL)) != MESSAGE_BYTES:
                raise ProbeError("the far end of the ping-pong has gone", remedy="see the output for why")
            trips.append((time.perf_counter_ns() - begin_ns) / 1e3)
    return trips[WARM_UP:]


def echo(address: str) -> None:
    """Print a port, and send back what comes there until the peer has gone."""
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(PATIENCE_S)
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(None)  # the accepted socket would have a poll before every call
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while message := peer.recv(MESSAGE_BYTES, socket.MSG_WAITALL):
                peer.sendall(message)


NETWORK = Probe("network", measure)


if __name__ == "__main__":
    echo(sys.argv[1])
