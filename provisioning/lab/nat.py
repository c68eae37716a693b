"""Bridges with address translation, as docker's default network with published ports is.

A container leaves under its node's address, and is reached under that at the ports which the node publishes. The rules
are made by nftables, and by iptables where a node has no nft.

Ranks tell each other the addresses of their own interfaces (gloo and NCCL can tell no others), and ports that the
kernel has chosen. So a container's kernel chooses among the published ports, and a node leads what its container sends
to the address of a peer's container to the peer's node. What travels between the nodes has nodes' addresses only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

from provisioning.lab.containers import ContainerBridge, Member, bridged, changed, check_members, mtu_of
from provisioning.lab.lab import routes_of
from suite.errors import BenchError, RequestError, option
from suite.interfaces import Node
from suite.job.serving import PUBLISHED_PORTS

BRIDGE = "vbnat0"
TABLE = "virtbench"

Rules = tuple[list[list[str]], list[list[str]]]
"""Commands, and for each the one that undoes it."""


@contextmanager
def nat(members: Sequence[Member]) -> Iterator[tuple[ContainerBridge, ...]]:
    """Make on each node the bridge for its one container; at the end nothing of it is left.

    Raises RequestError for a node that cannot translate, or that uses the addresses.
    """
    check_members(members)
    bridges = []
    with ExitStack() as stack:
        for member in members:
            rules = rules_for(member.node)
            check_free(subnet_of(member), member.node)
            bridges.append(bridge_of(member))
            stack.enter_context(bridged(member.node, bridges[-1]))
            peers = [peer for peer in members if peer is not member]
            commands = rules(bridges[-1], member, peers)
            stack.enter_context(changed(member.node, *commands))
        yield tuple(bridges)


def bridge_of(member: Member) -> ContainerBridge:
    return ContainerBridge(BRIDGE, subnet_of(member), mtu_of(member.node, member.device), PUBLISHED_PORTS)


def subnet_of(member: Member) -> IPv4Network:
    return IPv4Network(f"172.30.{member.number}.0/24")


def container_of(member: Member) -> str:
    """Return the address of the node's container; see ``ContainerBridge.address``."""
    return str(subnet_of(member)[2])


def check_free(subnet: IPv4Network, node: Node) -> None:
    """Raise RequestError if the node has a route into the subnet already, which it would lose."""
    for route in routes_of(node):
        if subnet.overlaps(IPv4Network(route, strict=False)):
            raise RequestError(
                f"{option('network')} bridge: {node.name} has a route to {route}, and its container is to be in "
                f"{subnet}",
                remedy=f"use {option('network')} host or overlay, or take the route away",
            )


def rules_for(node: Node) -> Callable[[ContainerBridge, Member, Sequence[Member]], Rules]:
    """Return what makes the rules on the node, tried in a namespace of its own. Raises RequestError if nothing does."""
    whys = []
    for trial, rules in TOOLS:
        try:
            node.run(["unshare", "--net", "--", *trial])
        except BenchError as error:
            whys.append(error.message)
            continue
        return rules
    raise RequestError(
        f"{option('network')} bridge: {node.name} translates no addresses: {'; '.join(whys)}",
        remedy="there: apt-get install nftables, on a kernel with NAT (nf_nat); or use "
        f"{option('network')} overlay or host",
    )


def nft_argvs(bridge: ContainerBridge, member: Member, peers: Sequence[Member]) -> Rules:
    """Return the commands for a table of our own, made and taken away as a whole."""
    first, last = PUBLISHED_PORTS
    to_peers = "".join(
        f"iifname {bridge.name} ip daddr {container_of(peer)} counter dnat to {peer.address} ; " for peer in peers
    )
    published = f"ip daddr {member.address} tcp dport {first}-{last} counter dnat to {container_of(member)} ; "
    leaving = f"ip saddr {bridge.subnet} oifname != {bridge.name} counter masquerade ; "
    text = (
        # Created first, by itself: nft would add to a table of somebody else's, and creates none with what is in it.
        f"create table ip {TABLE} ; add table ip {TABLE} {{ "
        f"chain prerouting {{ type nat hook prerouting priority -100 ; {to_peers}{published}}} ; "
        f"chain postrouting {{ type nat hook postrouting priority 100 ; {leaving}}} ; }}"
    )
    return [["nft", "--", *text.split()]], [["nft", "--", "delete", "table", "ip", TABLE]]


def iptables_argvs(bridge: ContainerBridge, member: Member, peers: Sequence[Member]) -> Rules:
    """Return the commands for the same rules in the tables of iptables, each taken away by itself."""
    first, last = PUBLISHED_PORTS
    to = ["-j", "DNAT", "--to-destination"]
    rules = [["PREROUTING", "-i", bridge.name, "-d", container_of(peer), *to, peer.address] for peer in peers]
    ports = ["-p", "tcp", "--dport", f"{first}:{last}"]
    container = container_of(member)
    rules.append(["PREROUTING", "-d", member.address, *ports, *to, container])
    subnet = str(bridge.subnet)
    rules.append(["POSTROUTING", "-s", subnet, "!", "-o", bridge.name, "-j", "MASQUERADE"])
    added = [[*IPTABLES, "-A", *rule] for rule in rules]
    deleted = [[*IPTABLES, "-D", *rule] for rule in rules]
    return added, deleted


IPTABLES = ("iptables", "--wait", "-t", "nat")
_MASQUERADES = f"add table ip {TABLE} {{ chain c {{ type nat hook postrouting priority 100 ; masquerade ; }} ; }}"
TOOLS = (
    (["nft", "--", *_MASQUERADES.split()], nft_argvs),
    ([*IPTABLES, "-A", "POSTROUTING", "-j", "MASQUERADE"], iptables_argvs),
)
"""The command that shows whether a node has the tool, and the function that makes the rules by it."""
