"""The network probe: TCP throughput by iperf3 in both directions, and the round trip of 64 bytes.

Both ends are in the target for now; where they are is a parameter.
"""

import socket
import sys
import time

from worker.probes import iperf3, tools
from worker.probes.echo import MESSAGE_BYTES, PATIENCE_S
from worker.probes.probe import Probe
from worker.probes.reading import Measured, ProbeError, Reading, median, quantile
from worker.probes.request import Request

LOOPBACK = "127.0.0.1"
SECONDS = {"smoke": 1, "quick": 5, "paper": 30}
ROUND_TRIPS = {"smoke": 200, "quick": 2000, "paper": 10_000}
WARM_UP = 50


def measure(request: Request, *, bind: str = LOOPBACK, address: str = LOOPBACK) -> Measured:
    """Return throughput and round trips. Servers listen at ``bind``; clients find them at ``address``."""
    program = tools.find("iperf3")
    version = tools.version_of(program, iperf3.OLDEST)
    metrics, retransmits = {}, {}
    for name, reverse in (("tcp-throughput", False), ("tcp-throughput-reverse", True)):
        link = iperf3.Link(bind, address, free_port(bind, address))
        session = iperf3.session(program, link, SECONDS[request.size], reverse=reverse)
        metrics[name], retransmits[name] = session.rate, session.retransmits
    trips = round_trips_us(bind, address, ROUND_TRIPS[request.size])
    metrics["tcp-round-trip-median"] = median(trips, "us", "less")
    metrics["tcp-round-trip-p99"] = Reading(quantile(trips, 0.99), "us", "less")
    return Measured(metrics, {"iperf3": version, "address": address, "retransmits": retransmits})


def free_port(bind: str, address: str) -> int:
    """Return a port that is free now, and that the other end reaches. Raises ProbeError: the interface can be down."""
    try:
        with socket.create_server((bind, 0)) as listener:
            port = int(listener.getsockname()[1])
            socket.create_connection((address, port), timeout=5.0).close()
            return port
    except OSError as error:
        raise ProbeError(
            f"{address} does not answer here: {error.strerror or error}",
            remedy="see with `ip link` in the target whether its interface is up",
        ) from error


def round_trips_us(bind: str, address: str, count: int) -> list[float]:
    """Return how long each message takes to a process of its own and back, in microseconds."""
    message, trips = bytes(MESSAGE_BYTES), []
    # Two threads of one process would wait for the interpreter's lock as well.
    argv = [sys.executable, "-m", "worker.probes.echo", bind]
    with (
        tools.serving(argv, r"^\d+$") as port,
        socket.create_connection((address, int(port)), timeout=PATIENCE_S) as peer,
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


NETWORK = Probe("network", measure)
