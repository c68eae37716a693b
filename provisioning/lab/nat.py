"""A bridge with address translation, as docker's default network is: a container leaves under its node's address and
is reached under it at the ports that were published. By nftables, and by iptables where a node has no nft.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

from provisioning.lab.containers import ContainerBridge, bridge_argvs, forwarding, made, mtu_of, undone
from provisioning.lab.lab import DEVICE
from suite.errors import BenchError, RequestError
from suite.interfaces import Node

BRIDGE = "br0"
TABLE = "virtbench"


@contextmanager
def nat(node: Node, number: int, address: str, ports: Iterable[int], device: str = DEVICE) -> Iterator[ContainerBridge]:
    """Make it on node ``number``, which the others reach at ``address`` by ``device``.

    The ports lead to the node's first container. At the end nothing of it is left.
    """
    runs = port_runs(ports)
    bridge = ContainerBridge(BRIDGE, IPv4Network(f"172.30.{number}.0/24"), mtu_of(node, device), hairpin=True)
    rules = nft_argvs if _works(node, "nft") else iptables_argvs
    begin, end = rules(bridge, address, runs)
    with ExitStack() as stack:
        stack.enter_context(forwarding(node))
        stack.enter_context(made(node, BRIDGE, bridge_argvs(bridge)))
        for argv, undo in zip(begin, end, strict=True):
            node.run(argv)
            if undo:
                stack.enter_context(undone(node, undo))
        yield bridge


def port_runs(ports: Iterable[int]) -> list[tuple[int, int]]:
    """``[5, 3, 4, 9]`` to ``[(3, 5), (9, 9)]``: a job of many ranks publishes hundreds."""
    runs: list[tuple[int, int]] = []
    for port in sorted(set(ports)):
        if not 0 < port < 1 << 16:
            raise RequestError(f"{port} is no port", remedy="publish ports from 1 to 65535")
        runs = [*runs[:-1], (runs[-1][0], port)] if runs and runs[-1][1] == port - 1 else [*runs, (port, port)]
    return runs


Rules = tuple[list[list[str]], list[list[str]]]
"""Commands, and for each the one that undoes it (empty where an earlier one's does)."""


def nft_argvs(bridge: ContainerBridge, address: str, runs: Sequence[tuple[int, int]]) -> Rules:
    """A table of our own, which goes as a whole."""
    add, subnet = ["nft", "--", "add"], str(bridge.subnet)
    chains = {"prerouting": "-100", "output": "-100", "postrouting": "100"}
    hooks = {
        name: ["{", "type", "nat", "hook", name, "priority", priority, ";", "}"] for name, priority in chains.items()
    }
    begin = [[*add, "table", "ip", TABLE]]
    begin += [[*add, "chain", "ip", TABLE, name, *hook] for name, hook in hooks.items()]
    for first, last in runs:
        match = ["ip", "daddr", address, "tcp", "dport", f"{first}-{last}" if last > first else str(first)]
        for chain in ("prerouting", "output"):
            begin.append([*add, "rule", "ip", TABLE, chain, *match, "dnat", "to", bridge.address()])
    out = [*add, "rule", "ip", TABLE, "postrouting", "ip", "saddr", subnet, "oifname"]
    begin.append([*out, "!=", bridge.name, "masquerade"])
    begin.append([*out, bridge.name, "ct", "status", "dnat", "masquerade"])
    return begin, [["nft", "--", "delete", "table", "ip", TABLE], *([] for _ in begin[1:])]


def iptables_argvs(bridge: ContainerBridge, address: str, runs: Sequence[tuple[int, int]]) -> Rules:
    rules = []
    for first, last in runs:
        to = ["-d", address, "-p", "tcp", "--dport", f"{first}:{last}", "-j", "DNAT", "--to-destination"]
        rules += [[chain, *to, bridge.address()] for chain in ("PREROUTING", "OUTPUT")]
    own = ["POSTROUTING", "-s", str(bridge.subnet)]
    rules.append([*own, "!", "-o", bridge.name, "-j", "MASQUERADE"])
    # A container that asks for its own node's address: the answer must come back the same way.
    rules.append([*own, "-o", bridge.name, "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE"])
    words = ["iptables", "--wait", "-t", "nat"]
    return [[*words, "-A", *rule] for rule in rules], [[*words, "-D", *rule] for rule in rules]


def _works(node: Node, program: str) -> bool:
    try:
        return node.run([program, "--version"], check=False).returncode == 0
    except BenchError:
        return False
