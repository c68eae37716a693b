"""The lab itself: a switch in its own namespace, and nodes on it, each a namespace behind one limited link."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from provisioning import ledger
from provisioning.lab import netns
from provisioning.lab.shaping import Limiter, LinkShape, choose_limiter, shape_argvs
from provisioning.nodes import WrappedNode, local_node
from suite.errors import RequestError
from suite.interfaces import Node
from suite.job.lab import LabSpec

POOL = IPv4Network("10.99.0.0/16")
PREFIX = 24
DEVICE = "eth0"
SWITCH = "lan"
# No spanning tree, no listening to multicast: a packet is forwarded from the first on.
BRIDGE_KIND = ("type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
SYSCTL = ("sysctl", "-e", "-q", "-w")  # -e: what a kernel does not have, it need not switch off
NO_IPV6 = (*SYSCTL, "net.ipv6.conf.all.disable_ipv6=1")
UNFILTERED = ("net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-arptables=0")
# A namespace begins with what this machine has set for itself. With docker on it: forwarding, and the packet filter
# called for what a bridge carries.
PLAIN = (*NO_IPV6, "net.ipv4.ip_forward=0", *UNFILTERED)


@dataclass(frozen=True)
class LabNode:
    name: str
    """``n1``, which is also the name of its port on the switch."""
    number: int
    address: str
    mac: str
    namespace: str
    """The path of its network namespace."""

    @property
    def cidr(self) -> str:
        return f"{self.address}/{PREFIX}"

    def argv(self, words: Sequence[str]) -> list[str]:
        return [*netns.enter(self.namespace), *words]

    def node(self, parent: Node) -> WrappedNode:
        """Return the node that layers are opened on: all of ``parent``, with the network of this one."""
        return WrappedNode(
            parent=parent,
            wrap=self.argv,
            name=f"{parent.name}/{self.name}",
            userland=parent.userland,
            local=parent.local,
            data=parent.data,
        )


@dataclass(frozen=True)
class Lab:
    nodes: tuple[LabNode, ...]
    switch: str
    """The path of the switch's namespace."""
    limiter: Limiter
    machine: Node


def link_argv(namespace: str, device: str, state: str) -> list[str]:
    return [*netns.enter(namespace), "ip", "link", "set", "dev", device, state]


def _node(token: str, number: int, address: str) -> LabNode:
    name = f"n{number}"
    return LabNode(
        name=name,
        number=number,
        address=address,
        mac=mac_of(token, number),
        namespace=netns.path_of(f"{token}-{name}"),
    )


@contextmanager
def open_lab(spec: LabSpec) -> Iterator[Lab]:
    """Make the lab on this machine; at the end nothing of it is left. Raises RequestError where it cannot be made."""
    with ExitStack() as stack:
        machine = stack.enter_context(local_node((), None))
        limiter = choose_limiter(machine, spec)
        subnet = free_subnet(routes_of(machine))
        token = netns.new_token()
        numbers = range(1, spec.nodes + 1)
        nodes = tuple(_node(token, number, str(subnet[number])) for number in numbers)
        names = [f"{token}-{node.name}" for node in nodes]
        for name in (f"{token}-sw", *names):
            stack.enter_context(ledger.holding("netns", name))
            machine.run(["ip", "netns", "add", name])
        switch = netns.path_of(f"{token}-sw")
        for argv in switch_argvs(switch):
            machine.run(argv)
        for node in nodes:
            for argv in node_argvs(switch, node):
                machine.run(argv)
        for node in nodes:
            for argv in limit_argvs(switch, node, spec, limiter):
                machine.run(argv)
            batch = neighbours_batch(node, nodes)
            machine.run(node.argv(["ip", "-batch", "-"]), stdin=batch)
        yield Lab(nodes, switch, limiter, machine)


def mac_of(token: str, number: int) -> str:
    """Return a locally administered address, unique in its lab."""
    digits = token.rpartition("-")[2]
    pieces = (digits[at : at + 2] for at in (0, 2, 4))
    return ":".join(("02", *pieces, "00", f"{number:02x}"))


def switch_argvs(switch: str) -> list[list[str]]:
    inside = netns.enter(switch)
    return [
        [*inside, *PLAIN],
        [*inside, "ip", "link", "add", "dev", SWITCH, *BRIDGE_KIND],
        link_argv(switch, SWITCH, "up"),
    ]


def node_argvs(switch: str, node: LabNode) -> list[list[str]]:
    """Return the commands for a node's address and cable, which joins a port of the switch to the node's interface."""
    inside = netns.enter(node.namespace)
    port = node.name
    namespace = node.namespace.rpartition("/")[2]
    far = ["peer", "name", DEVICE, "address", node.mac, "netns", namespace]
    return [
        [*inside, *PLAIN],
        link_argv(node.namespace, "lo", "up"),
        [*netns.enter(switch), "ip", "link", "add", "dev", port, "type", "veth", *far],
        [*netns.enter(switch), "ip", "link", "set", "dev", port, "master", SWITCH],
        link_argv(switch, port, "up"),
        [*inside, "ip", "address", "add", node.cidr, "dev", DEVICE],
        link_argv(node.namespace, DEVICE, "up"),
    ]


def neighbours_batch(node: LabNode, nodes: Sequence[LabNode]) -> bytes:
    """Return the input of ``ip -batch`` that tells a node where all others are.

    A kernel keeps 1024 learned neighbours, of all its namespaces together: 33 nodes would have more. These count not.
    """
    lines = []
    for peer in nodes:
        if peer is not node:
            lines.append(f"neighbour add {peer.address} lladdr {peer.mac} dev {DEVICE} nud permanent\n")
    return "".join(lines).encode()


def limit_argvs(switch: str, node: LabNode, spec: LabSpec, limiter: Limiter) -> list[list[str]]:
    """Return the commands that limit both directions of the cable; the delay is on what the node sends."""
    sends = shape_argvs(DEVICE, LinkShape(spec.rate_bits_per_s, spec.delay_s), limiter)
    gets = shape_argvs(node.name, LinkShape(spec.rate_bits_per_s), limiter)
    on_switch = netns.enter(switch)
    argvs = [node.argv(argv) for argv in sends]
    argvs += [[*on_switch, *argv] for argv in gets]
    return argvs


def free_subnet(routes: Iterable[str]) -> IPv4Network:
    """Return the first /24 of the pool that overlaps none of the routes, which are as ``ip route`` writes them."""
    used = []
    for route in routes:
        if route[:1].isdigit():
            used.append(IPv4Network(route, strict=False))
    for subnet in POOL.subnets(new_prefix=PREFIX):
        if not any(subnet.overlaps(network) for network in used if network.prefixlen):
            return subnet
    raise RequestError(f"this machine routes all of {POOL}", remedy="take away a route to a part of it: ip route")


def routes_of(node: Node) -> list[str]:
    """Return the destinations of all routes of the node except the default ones."""
    listed = node.run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout
    routes = json.loads(listed or "[]")
    return [route["dst"] for route in routes if route.get("dst", "default") != "default"]
