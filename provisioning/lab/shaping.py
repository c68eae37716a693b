"""The limits of a link: command lines of tc(8), and whether a kernel has what they name.

Segmentation offload stays on, as a network card has it. The shaping stays honest: the kernel counts the headers of
every segment that a large packet will become. Older kernels (6.1 is one, 6.18 is not) miss the inner headers of a
VXLAN: an overlay would be 5 % too fast, which ``connectivity`` sees (``overlay.MOST_SHARE``).
"""

from dataclasses import dataclass
from typing import Literal

from suite.errors import BenchError, RequestError, option
from suite.interfaces import Node
from suite.job.lab import LabSpec

Limiter = Literal["tbf", "htb"]
LIMITERS: tuple[Limiter, ...] = ("tbf", "htb")
FRAME_BYTES = 1514
LEAST_BURST_BYTES = 128 << 10  # two of the largest packets there are
BURST_S = 1e-3  # what a sleeping CPU may be late; a message of a job is many times that
LEAST_QUEUE_BYTES = 256 << 10
QUEUE_S = 10e-3
LEAST_QUEUE_PACKETS = 1000
UNLIMITED_BITS_PER_S = 40 * 10**9  # more than a link without a limit carries here: what its delay must hold


@dataclass(frozen=True)
class LinkShape:
    """The shape of one end of a link: the rate and the delay of what leaves there."""

    rate_bits_per_s: int | None
    delay_s: float | None = None

    @property
    def burst_bytes(self) -> int:
        """The bytes that may leave at once after a pause: enough for a timer that is late, and no more."""
        return max(LEAST_BURST_BYTES, int((self.rate_bits_per_s or 0) * BURST_S / 8))

    @property
    def queue_bytes(self) -> int:
        """The bytes that wait before any are dropped: a switch's buffer, and no less than what is on the way."""
        wait_s = max(QUEUE_S, 2 * (self.delay_s or 0.0))
        return max(LEAST_QUEUE_BYTES, int((self.rate_bits_per_s or 0) * wait_s / 8))

    @property
    def delayed_packets(self) -> int:
        """Twice the number of packets that are on their way at a time; more would be dropped."""
        on_the_way = (self.rate_bits_per_s or UNLIMITED_BITS_PER_S) / 8 * (self.delay_s or 0.0)
        return max(LEAST_QUEUE_PACKETS, int(2 * on_the_way / FRAME_BYTES))


def shape_argvs(device: str, shape: LinkShape, limiter: Limiter) -> list[list[str]]:
    """Return the commands, in order, that shape an interface. The delay comes first; its packets then queue."""
    add = ["tc", "qdisc", "add", "dev", device]
    argvs = []
    position = ["root"]
    if shape.delay_s is not None:
        delay = f"{shape.delay_s * 1e6:.0f}us"
        argvs.append([*add, *position, "handle", "1:", "netem", "delay", delay, "limit", str(shape.delayed_packets)])
        position = ["parent", "1:1"]
    if shape.rate_bits_per_s is not None:
        argvs += _limit(device, [*add, *position, "handle", "2:"], shape, limiter)
    return argvs


def _limit(device: str, add: list[str], shape: LinkShape, limiter: Limiter) -> list[list[str]]:
    rate = f"{shape.rate_bits_per_s}bit"
    burst = str(shape.burst_bytes)
    queue = str(shape.queue_bytes)
    if limiter == "tbf":
        return [[*add, "tbf", "rate", rate, "burst", burst, "limit", queue]]
    limits = ["rate", rate, "ceil", rate, "burst", burst, "cburst", burst, "quantum", str(FRAME_BYTES)]
    return [
        [*add, "htb", "default", "1"],
        ["tc", "class", "add", "dev", device, "parent", "2:", "classid", "2:1", "htb", *limits],
        ["tc", "qdisc", "add", "dev", device, "parent", "2:1", "handle", "3:", "bfifo", "limit", queue],
    ]


def choose_limiter(node: Node, spec: LabSpec) -> Limiter:
    """Try on the node's kernel what the lab needs, in namespaces that end with the trial; returns what limits rates.

    Raises RequestError that says what is missing.
    """
    refused = _refused(node, ["ip", "link", "add", "dev", "lan", "type", "bridge"])
    if refused:
        raise RequestError(
            f"no lab network on {node.name}: {refused}", remedy="it needs root, iproute2, and a kernel with bridge"
        )
    if spec.delay and (refused := _refused_shape(node, LinkShape(None, spec.delay_s), "tbf")):
        raise RequestError(
            f"{option('lab')} delay={spec.delay}: no netem on {node.name}: {refused}",
            remedy="leave delay out, or use a kernel with CONFIG_NET_SCH_NETEM (Debian: modprobe sch_netem)",
        )
    whys = []
    for limiter in LIMITERS:
        why = _refused_shape(node, LinkShape(spec.rate_bits_per_s), limiter)
        if why is None:
            return limiter
        whys.append(f"{limiter}: {why}")
    raise RequestError(
        f"{option('lab')} rate={spec.rate}: {node.name} can limit no link: {'; '.join(whys)}",
        remedy="use a kernel with CONFIG_NET_SCH_TBF or CONFIG_NET_SCH_HTB, or leave rate out",
    )


def _refused_shape(node: Node, shape: LinkShape, limiter: Limiter) -> str | None:
    """Return why the kernel rejects the shape, or None. The first command names the discipline, so it suffices."""
    argvs = shape_argvs("lo", shape, limiter)
    if argvs:
        return _refused(node, argvs[0])
    return None


def _refused(node: Node, argv: list[str]) -> str | None:
    """Return why the command fails in a namespace of its own, which ends with it; None if it does not."""
    try:
        answer = node.run(["unshare", "--net", "--", *argv], check=False)
    except BenchError as error:
        return error.message
    if answer.returncode:
        return answer.complaint(f"exit status {answer.returncode}")[:200]
    return None
