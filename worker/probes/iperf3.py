"""iperf3: one session of TCP between a server and a client, and its result as a metric."""

import json
from dataclasses import dataclass
from typing import Any

from worker.probes import tools
from worker.probes.reading import ProbeError, Reading

OLDEST = (3, 2)  # --forceflush: that the server listens is read from its own words
PATIENCE_S = 120.0
"""How long everything but the measuring itself may take on an emulated CPU."""


@dataclass(frozen=True)
class Link:
    """The address that the server binds to, the one under which the client finds it, and the port."""

    bind: str
    address: str
    port: int


@dataclass(frozen=True)
class Session:
    """One direction. ``retransmits`` is None where the sender's kernel does not tell."""

    rate: Reading
    retransmits: int | None


def session(program: str, link: Link, seconds: int, *, reverse: bool) -> Session:
    """Measure from the client to the server, or with ``reverse`` the other way. Raises ProbeError."""
    port = ["--port", str(link.port)]
    server = [program, "--server", "--one-off", "--forceflush", *port, "--bind", link.bind]
    client = [program, "--client", link.address, *port, "--time", str(seconds), "--json"]
    with tools.serving(server, "listening"):
        done = tools.run([*client, *(["--reverse"] if reverse else [])], timeout_s=seconds + PATIENCE_S)
    return parse(done.stdout, done.stderr)


def parse(written: str, said: str = "") -> Session:
    """Return the session in the client's JSON. A client that fails can end with status 0: the JSON alone says so."""
    try:
        report = json.loads(written)
    except ValueError:
        report = {"error": (said or written).strip()[-200:] or "it says nothing"}
    if error := report.get("error"):
        remedy = "see whether the two ends reach each other by TCP"
        raise ProbeError(f"iperf3 has failed: {str(error)[:300]}", remedy=remedy)
    rates = [each["sum"]["bits_per_second"] / 1e9 for each in report["intervals"] if not each["sum"]["omitted"]]
    received = report["end"]["sum_received"]["bits_per_second"] / 1e9
    if not received > 0:
        raise ProbeError("iperf3 has received nothing", remedy="see whether a firewall cuts TCP between the two ends")
    return Session(Reading(received, "Gbit/s", "more", rates), _retransmits(report))


def _retransmits(report: dict[str, Any]) -> int | None:
    count = report["end"]["sum_sent"].get("retransmits")
    return count if isinstance(count, int) else None
