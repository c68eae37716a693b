"""One session of iperf3 between two nodes."""

import json
from dataclasses import dataclass

from suite.errors import MeasurementError
from suite.interfaces import Node

PORT = 5201
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Where:
    """The address and the port of the server."""

    address: str
    port: int = PORT


def server_argv(where: Where, measure_s: int) -> list[str]:
    """It serves one client and ends, and also ends when none comes."""
    within = ["timeout", str(int(measure_s + 2 * PATIENCE_S))]
    listen = ["--bind", where.address, "--port", str(where.port)]
    return [*within, "iperf3", "--server", "--one-off", "--forceflush", *listen]


def client_argv(where: Where, measure_s: int, sample_bytes: int = 0) -> list[str]:
    """``sample_bytes``: so much is sent, however long it takes."""
    much = ["--bytes", str(sample_bytes)] if sample_bytes else ["--time", str(measure_s)]
    return ["iperf3", "--client", where.address, "--port", str(where.port), *much, "--json"]


def rate_bits_per_s(client: Node, server: Node, where: Where, measure_s: int, sample_bytes: int = 0) -> float:
    """What the server received, per second. Raises MeasurementError when there was no session."""
    process = server.start(server_argv(where, measure_s))
    try:
        if not any("listening" in line for line in process.lines(PATIENCE_S)):
            raise MeasurementError("iperf3 does not serve", output_tail=process.output_tail(), remedy="install iperf3")
        answer = client.run(client_argv(where, measure_s, sample_bytes), timeout_s=measure_s + PATIENCE_S, check=False)
        return parse(answer.stdout, answer.stderr)
    finally:
        process.kill()


def parse(written: str, said: str = "") -> float:
    """The rate in the client's JSON, which also holds the error when there was one."""
    try:
        report = json.loads(written)
        if error := report.get("error"):
            raise MeasurementError(f"iperf3: {str(error)[:300]}")
        rate = float(report["end"]["sum_received"]["bits_per_second"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MeasurementError("iperf3 gives no result", output_tail=(said or written)[-2000:]) from None
    if not rate > 0:
        raise MeasurementError("iperf3 has received nothing")
    return rate
