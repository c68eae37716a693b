"""The cable of a container: from a bridge on its node into its network namespace, for any engine, on any node.

An engine starts the container without a network; the cable is then laid from outside, by the number of the
container's first process. On this machine, in a lab node and in a guest the commands are the same.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from provisioning.lab import forwarding_users
from provisioning.lab.lab import BRIDGE_KIND, DEVICE, NO_IPV6
from provisioning.lab.netns import enter
from provisioning.nodes import undone
from provisioning.processes import program_argv
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node

MOST_MEMBERS = 254


@dataclass(frozen=True)
class Member:
    """One node; its number is also its subnet's."""

    number: int
    """The number, from 1; no two alike."""
    node: Node
    address: str
    """The address at which the other nodes reach it."""
    device: str = DEVICE


def check_members(members: Sequence[Member]) -> None:
    """Raise RequestError if two members have one number, or there are more members than subnets."""
    numbers = [member.number for member in members]
    wrong = [number for number in numbers if not 1 <= number <= MOST_MEMBERS or numbers.count(number) > 1]
    if wrong or not members:
        raise RequestError(
            f"a network of the nodes {numbers}", remedy=f"number them from 1 to {MOST_MEMBERS}, each once"
        )


@dataclass(frozen=True)
class ContainerBridge:
    """The bridge on a node that its containers are plugged into; its own address is their way out."""

    name: str
    subnet: IPv4Network
    mtu: int
    published: tuple[int, int] | None = None
    """The first and the last port of its one container that others reach, where they do not reach every one."""

    @property
    def gateway(self) -> str:
        return str(self.subnet[1])

    @property
    def address(self) -> str:
        return str(self.subnet[2])

    def cidr(self, address: str) -> str:
        return f"{address}/{self.subnet.prefixlen}"


def bridge_argvs(bridge: ContainerBridge) -> list[list[str]]:
    return [
        ["ip", "link", "add", "dev", bridge.name, "mtu", str(bridge.mtu), *BRIDGE_KIND],
        ["ip", "address", "add", bridge.cidr(bridge.gateway), "dev", bridge.name],
        ["ip", "link", "set", "dev", bridge.name, "up"],
    ]


def attach_argvs(bridge: ContainerBridge, pid: int) -> list[list[str]]:
    """Return the commands that connect the bridge to the container whose first process is ``pid``."""
    near = f"veth{pid}"
    mtu = str(bridge.mtu)
    inside = enter(f"/proc/{pid}/ns/net")
    far = ["peer", "name", DEVICE, "mtu", mtu, "netns", str(pid)]
    chosen = []
    if bridge.published:
        # The kernel gives only published ports to programs that leave the choice to it; the first is for one that asks.
        first, last = bridge.published
        chosen = [[*inside, "sysctl", "-q", "-w", f"net.ipv4.ip_local_port_range={first + 1} {last}"]]
    return [
        [*inside, *NO_IPV6],
        ["ip", "link", "add", "dev", near, "mtu", mtu, "type", "veth", *far],
        ["ip", "link", "set", "dev", near, "master", bridge.name],
        ["ip", "link", "set", "dev", near, "up"],
        [*inside, "ip", "link", "set", "dev", "lo", "up"],
        [*inside, "ip", "address", "add", bridge.cidr(bridge.address), "dev", DEVICE],
        [*inside, "ip", "link", "set", "dev", DEVICE, "up"],
        [*inside, "ip", "route", "add", "default", "via", bridge.gateway, "dev", DEVICE],
        *chosen,
    ]


def run_each(node: Node, argvs: Iterable[list[str]]) -> None:
    for argv in argvs:
        node.run(argv)


@contextmanager
def made(node: Node, device: str, argvs: Iterable[list[str]]) -> Iterator[None]:
    """Make an interface by the commands, the first of which creates it; at the end it is deleted."""
    first, *further = argvs
    node.run(first)
    with undone(node, ["ip", "link", "delete", "dev", device]):
        run_each(node, further)
        yield


@contextmanager
def changed(node: Node, argvs: Iterable[list[str]], undos: Iterable[list[str]]) -> Iterator[None]:
    """Run the commands, each of which has one that undoes it; at the end these are run, the last first."""
    with ExitStack() as stack:
        for argv, undo in zip(argvs, undos, strict=True):
            node.run(argv)
            stack.enter_context(undone(node, undo))
        yield


@contextmanager
def bridged(node: Node, bridge: ContainerBridge) -> Iterator[None]:
    """Make the bridge for the containers of a node, which forwards for them; at the end nothing of it is left."""
    with forwarding(node), made(node, bridge.name, bridge_argvs(bridge)):
        yield


@contextmanager
def attached(node: Node, bridge: ContainerBridge, pid: int) -> Iterator[None]:
    """Plug a running container into the bridge.

    The cable is taken away at the end: a namespace whose connections are still closing outlives its container by
    minutes, and would keep it.
    """
    no_ipv6, *cable = attach_argvs(bridge, pid)
    node.run(no_ipv6)
    with made(node, f"veth{pid}", cable):
        yield


@contextmanager
def forwarding(node: Node) -> Iterator[None]:
    """Make the node forward packets; when its last user is gone it does again what it did before the first."""
    user = secrets.token_hex(6)
    # What takes a user away is there first: to enter may fail half way.
    with undone(node, program_argv(forwarding_users, "leave", user)):
        node.run(program_argv(forwarding_users, "enter", user))
        yield


def mtu_of(node: Node, device: str) -> int:
    """Return the MTU that ip tells: /sys would show the namespace that it was mounted in."""
    try:
        answer = node.run(["ip", "-json", "link", "show", "dev", device])
        return int(json.loads(answer.stdout)[0]["mtu"])
    except (ValueError, LookupError):
        raise MeasurementError(f"{node.name} does not tell the MTU of {device}", kind="network") from None
