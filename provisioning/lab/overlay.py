"""An overlay network as flannel makes it (its VXLAN backend).

Containers of different nodes reach each other by addresses of their own, and what they send travels between the nodes
in UDP. Nothing is learned from traffic: every node is told the peers once, as flannel's daemon tells it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

from provisioning.lab.containers import ContainerBridge, Member, bridged, check_members, made, mtu_of, run_each

VXLAN = "flannel.1"
BRIDGE = "cni0"
ID = 1
PORT = 8472
OVERHEAD_BYTES = 50
"""Outer Ethernet 14, IP 20, UDP 8, VXLAN 8."""
MOST_SHARE = 0.94
"""The most of the link's rate that TCP can have: 1398 of 1514 bytes, and what leaves at once."""


def subnet_of(member: Member) -> IPv4Network:
    return IPv4Network(f"10.244.{member.number}.0/24")


def vtep_of(member: Member) -> str:
    """Return the overlay's own address on the node: the network's, as flannel takes it."""
    return str(subnet_of(member)[0])


def mac_of(member: Member) -> str:
    return f"02:42:0a:f4:{member.number:02x}:00"


def vxlan_argvs(member: Member, mtu: int) -> list[list[str]]:
    """Return the commands that make the member's end of the tunnels."""
    tunnel = ["type", "vxlan", "id", str(ID), "dstport", str(PORT), "local", member.address, "dev", member.device]
    return [
        ["ip", "link", "add", "dev", VXLAN, "address", mac_of(member), "mtu", str(mtu), *tunnel, "nolearning"],
        ["ip", "address", "add", f"{vtep_of(member)}/32", "dev", VXLAN],
        ["ip", "link", "set", "dev", VXLAN, "up"],
    ]


def peer_argvs(peer: Member) -> list[list[str]]:
    """Return the commands that tell a node of another: its address, its hardware address, and the subnet behind it."""
    return [
        ["bridge", "fdb", "append", mac_of(peer), "dev", VXLAN, "dst", peer.address],
        ["ip", "neighbour", "add", vtep_of(peer), "lladdr", mac_of(peer), "dev", VXLAN, "nud", "permanent"],
        ["ip", "route", "add", str(subnet_of(peer)), "via", vtep_of(peer), "dev", VXLAN, "onlink"],
    ]


@contextmanager
def overlay(members: Sequence[Member]) -> Iterator[tuple[ContainerBridge, ...]]:
    """Join the nodes; gives for each the bridge to attach its containers to. At the end nothing of it is left."""
    check_members(members)
    mtu = min(mtu_of(member.node, member.device) for member in members) - OVERHEAD_BYTES
    bridges = []
    with ExitStack() as stack:
        for member in members:
            stack.enter_context(made(member.node, VXLAN, vxlan_argvs(member, mtu)))
            bridges.append(ContainerBridge(BRIDGE, subnet_of(member), mtu))
            stack.enter_context(bridged(member.node, bridges[-1]))
        for member in members:
            for peer in members:
                if peer is not member:
                    run_each(member.node, peer_argvs(peer))
        yield tuple(bridges)
