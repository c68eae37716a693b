"""Check that all instances of a job reach each other, and measure how fast.

It is checked before a job, because a wrong interface is the commonest fault of a distributed one, and looks like a slow
network.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.lab import reachability
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Node, Process

_Listener = tuple[Process, int]
PORT = 5201
"""The port of iperf3."""
CONNECT_WITHIN_S = 5.0
LOOKED_EVERY_S = 0.2
PATIENCE_S = 60.0
"""The time to start one program where the CPU is emulated."""
REMEDY = "see that the interface is the right one and that no firewall (FORWARD, published ports) is between"
BUSY = "nothing is known about the network: leave the machine more CPU time, or use --wait"


@dataclass(frozen=True)
class End:
    name: str
    node: Node
    address: str
    port: int = 0
    """A published one where only such are reached; 0 lets the kernel choose."""


@dataclass(frozen=True)
class Place:
    address: str
    interface: str


@dataclass(frozen=True)
class Pair:
    """One direction between two ends, as ``records.Link`` has it."""

    source: End
    target: End
    source_address: str
    connect_s: float
    rate_bits_per_s: float | None = None


def connectivity(
    ends: Sequence[End],
    *,
    measure_s: int = 0,
    sample_bytes: int = 0,
    link_bits_per_s: int | None = None,
    most_share: float = 1.0,
) -> tuple[Pair, ...]:
    """Return every pair in both directions, for the record. Raises MeasurementError of kind ``network`` for a pair.

    With ``measure_s`` the rate of each is measured, one after another; see ``rate_bits_per_s``. If that of the link is
    given, none may be above ``most_share`` of it.
    """
    pairs = reach(ends)
    if not measure_s:
        return pairs
    measured = []
    for pair in pairs:
        rate = rate_bits_per_s(pair.source, pair.target, measure_s, sample_bytes)
        check_rate(pair, rate, link_bits_per_s, most_share)
        measured.append(replace(pair, rate_bits_per_s=rate))
    return tuple(measured)


def check_rate(pair: Pair, rate: float, link: int | None, most_share: float = 1.0) -> None:
    """Raise MeasurementError if the pair cannot have used the link."""
    if link is not None and rate > most_share * link:
        excess = f"{rate / 1e6:.0f} Mbit/s on a link of {link / 1e6:.0f}, more than it can carry"
        raise MeasurementError(
            f"{pair.source.name} to {pair.target.name} ({pair.target.address}): {excess}",
            kind="network",
            remedy="see which interface has the address; for an overlay, whether an older kernel runs",
        )


def reach(ends: Sequence[End]) -> tuple[Pair, ...]:
    """Open a TCP connection from each end to each other. Raises MeasurementError for the first pair that fails."""
    with ExitStack() as stack:
        listening = [(end, _listener(stack, end, len(ends) - 1)) for end in ends]
        connecting = []
        for me in ends:
            peers = [(end, listener) for end, listener in listening if end is not me]
            addresses = (f"{end.address}:{port}" for end, (_, port) in peers)
            words = ["connect", str(CONNECT_WITHIN_S), *addresses]
            connecting.append((me, peers, _started(stack, me, words)))
        return tuple(pair for me, peers, process in connecting for pair in _pairs(me, peers, process))


def await_reached(sources: Sequence[End], target: End, way: str) -> None:
    """Return when each source has reached the target by ``way``, ``ADDRESS:PORT``: it leads there by and by.

    Raises MeasurementError of kind ``network`` if it does not within a minute.
    """
    with ExitStack() as stack:
        listener = _listener(stack, target, len(sources))
        for source in sources:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                with ExitStack() as attempt:
                    process = _started(attempt, source, ["connect", str(CONNECT_WITHIN_S), way])
                    try:
                        pairs = [(replace(target, address=way), listener)]
                        list(_pairs(source, pairs, process))
                        break
                    except MeasurementError:
                        if time.monotonic() > deadline:
                            raise
                time.sleep(LOOKED_EVERY_S)


def places_of(node: Node) -> tuple[Place, ...]:
    """Return every IPv4 address of the node with its interface, without those of loopback."""
    return tuple(
        Place(str(info["local"]), str(link["ifname"]))
        for link in json.loads(node.run(["ip", "-json", "-4", "address", "show"]).stdout or "[]")
        for info in link.get("addr_info", ())
        if link["ifname"] != "lo" and info.get("local")
    )


def interface_of(node: Node, address: str) -> str:
    """Return the interface of the node that has the address. Raises MeasurementError if none has."""
    for place in places_of(node):
        if place.address == address:
            return place.interface
    raise MeasurementError(f"no interface of {node.name} has the address {address}", kind="network", remedy=REMEDY)


def free_port(node: Node, address: str) -> int:
    with ExitStack() as stack:
        return _listener(stack, End(node.name, node, address), 0)[1]


def _listener(stack: ExitStack, end: End, visitors: int) -> _Listener:
    # Each of the others may take all its patience to listen itself, and again to connect.
    within_s = 2 * PATIENCE_S * (visitors + 1)
    words = ["listen", end.address, str(end.port), str(visitors), str(within_s)]
    process = _started(stack, end, words)
    port, seen = _answer(process.lines(PATIENCE_S), PATIENCE_S)
    if not port.isdigit():
        raise MeasurementError(
            f"{end.name} cannot listen on {end.address}{seen and f': {seen}'}",
            kind="network",
            output_tail=process.output_tail(),
            remedy=BUSY if seen else "see whether it has that address and the port is free",
        )
    return process, int(port)


def _answer(lines: Iterator[str], within_s: float) -> tuple[str, str]:
    """Return the next line; empty, with the reason, of a program that is late."""
    try:
        return next(lines, ""), ""
    except CommandError:
        return "", f"its program gave no answer within {within_s:.0f} s"


def _started(stack: ExitStack, end: End, words: Sequence[str]) -> Process:
    program = Path(reachability.__file__).read_bytes()
    argv = [end.node.python[0], "-I", "-", *words]
    process = end.node.start(argv, stdin=program)
    stack.callback(process.kill)
    return process


def _pairs(source: End, targets: Sequence[tuple[End, _Listener]], process: Process) -> Iterator[Pair]:
    within_s = (PATIENCE_S + CONNECT_WITHIN_S) * len(targets)
    lines = process.lines(within_s)
    for target, (listening, _) in targets:
        line, late = _answer(lines, within_s)
        result = json.loads(line or "{}")
        if "from" not in result:
            seen = late or result.get("error") or process.output_tail()[-300:] or "no answer"
            ended = not listening.running()
            if ended:
                seen = f"{seen}; the program that listened there had ended"
            raise MeasurementError(
                f"{source.name} does not reach {target.name} ({target.address}): {seen}",
                kind="network",
                remedy=BUSY if late or ended else REMEDY,
            )
        yield Pair(source, target, result["from"], result["connect_s"])


def server_argv(end: End, measure_s: int) -> list[str]:
    """Return the command of a server that serves one client and ends; it also ends if none comes."""
    within = ["timeout", str(int(measure_s + 2 * PATIENCE_S))]
    listen = ["--bind", end.address, "--port", str(end.port or PORT)]
    return [*within, "iperf3", "--server", "--one-off", "--forceflush", *listen]


def rate_bits_per_s(source: End, target: End, measure_s: int, sample_bytes: int = 0) -> float:
    """Return what the target received, per second: in ``measure_s``, or of ``sample_bytes`` however long they take.

    Raises MeasurementError of kind ``network`` if there was no session.
    """
    if sample_bytes:
        much = ["--bytes", str(sample_bytes)]
    else:
        much = ["--time", str(measure_s)]
    client = ["iperf3", "--client", target.address, "--port", str(target.port or PORT), *much, "--json"]
    server = target.node.start(server_argv(target, measure_s))
    try:
        if not any("listening" in line for line in server.lines(PATIENCE_S)):
            raise MeasurementError("iperf3 does not serve", output_tail=server.output_tail(), remedy="install iperf3")
        answer = source.node.run(client, timeout_s=measure_s + PATIENCE_S, check=False)
        return parse(answer.stdout, answer.stderr)
    except MeasurementError as error:
        raise MeasurementError(
            f"{source.name} to {target.name} ({target.address}): {error.message}",
            kind="network",
            command=error.command,
            output_tail=error.output_tail,
            remedy=error.remedy or REMEDY,
        ) from error
    finally:
        server.kill()


def parse(written: str, errors: str = "") -> float:
    """Return the rate in the client's JSON, which also holds the error if there was one."""
    try:
        report = json.loads(written)
        error = report.get("error")
        if error:
            raise MeasurementError(f"iperf3: {str(error)[:300]}")
        rate = float(report["end"]["sum_received"]["bits_per_second"])
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MeasurementError("iperf3 gives no result", output_tail=(errors or written)[-2000:]) from None
    if not rate > 0:
        raise MeasurementError("iperf3 has received nothing")
    return rate
