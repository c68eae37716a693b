"""The way between guests of different machines: each machine has a subnet for its guest, and knows the others'.

A guest's card is a tap of its machine, which forwards what comes from it by its own interface: no tunnel, no address
translation, the MTU of the network. The machines must be neighbours, with no router between them. What a guest sends to
anybody but the other guests its machine does not forward.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

from provisioning.lab.containers import forwarding, made, mtu_of, run_each
from provisioning.lab.tap import Tap, join
from provisioning.nodes import undone
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Instance, Node

DEVICE = "vbtap0"
TABLES = ("iptables", "--wait")
NOTHING_DROPPED = ("", "-P FORWARD ACCEPT")
NETWORK = IPv4Network("10.245.0.0/16")
TABLE, PRIORITY = 10245, 10245
"""The table of routes for what a guest sends, and the priority of its rule: before that of the main table."""


def subnet(number: int) -> IPv4Network:
    """Return the subnet of machine ``number``, from 1: its own address there is the first, the guest's the second."""
    return IPv4Network(f"10.245.{number}.0/24")


def tap_argvs(number: int, mtu: int) -> list[list[str]]:
    own = subnet(number)
    return [
        ["ip", "tuntap", "add", "dev", DEVICE, "mode", "tap"],
        ["ip", "link", "set", "dev", DEVICE, "mtu", str(mtu), "up"],
        ["ip", "address", "add", f"{own[1]}/{own.prefixlen}", "dev", DEVICE],
    ]


def peers_only_argvs(peers: Sequence[IPv4Network]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the commands by which what comes from the guest is led to these subnets alone, and what undoes each.

    A table of routes that only the tap is led to: the peers are left to the other tables, all else is unreachable. It
    needs no firewall, and whatever firewall there is stays as it is.
    """
    table = ["table", str(TABLE)]
    routes = [*(["throw", str(peer)] for peer in peers), ["unreachable", "default"]]
    rule = ["iif", DEVICE, "lookup", str(TABLE), "priority", str(PRIORITY)]
    return (
        [*(["ip", "route", "add", *route, *table] for route in routes), ["ip", "rule", "add", *rule]],
        [*(["ip", "route", "delete", *route, *table] for route in routes), ["ip", "rule", "delete", *rule]],
    )


def route_argv(verb: str, number: int, address: str, interface: str) -> list[str]:
    """Return the command for the route to the guest of machine ``number``, which has the address."""
    return ["ip", "route", verb, str(subnet(number)), "via", address, "dev", interface]


@contextmanager
def routed(machines: Sequence[Instance]) -> Iterator[tuple[Tap, ...]]:
    """Make a tap on each machine, by rank; at the end nothing of it is left.

    Raises MeasurementError of kind ``network``.
    """
    mtu = min(mtu_of(each.node, str(each.interface)) for each in machines)
    with ExitStack() as stack:
        for number, each in enumerate(machines, start=1):
            stack.enter_context(forwarding(each.node))
            stack.enter_context(forwarded(each.node, [DEVICE]))
            stack.enter_context(made(each.node, DEVICE, tap_argvs(number, mtu)))
            peers = [subnet(other) for other in range(1, len(machines) + 1) if other != number]
            for argv, undo in zip(*peers_only_argvs(peers), strict=True):
                each.node.run(argv)
                stack.enter_context(undone(each.node, undo))
            for other, peer in enumerate(machines, start=1):
                if other != number:
                    stack.enter_context(_route(each, other, str(peer.address)))
        ours = [subnet(number) for number in range(1, len(machines) + 1)]
        yield tuple(
            Tap(DEVICE, f"02:42:0a:f5:{number:02x}:02", str(own[2]), f"{own[2]}/{own.prefixlen}")
            for number, own in enumerate(ours, start=1)
        )


@contextmanager
def forwarded(machine: Node, devices: Sequence[str]) -> Iterator[None]:
    """Make the machine forward what comes from the interfaces or goes to them, if it drops anything at all.

    Docker, where it runs, makes it drop what it does not know (chain FORWARD).
    """
    listed = machine.run([*TABLES, "--list-rules", "FORWARD"], check=False)
    with ExitStack() as stack:
        if listed.returncode == 0 and listed.stdout.strip() not in NOTHING_DROPPED:
            for words in (["FORWARD", way, each, "--jump", "ACCEPT"] for each in devices for way in ("-i", "-o")):
                machine.run([*TABLES, "--insert", *words])
                stack.enter_context(undone(machine, [*TABLES, "--delete", *words]))
        yield


@contextmanager
def _route(machine: Instance, number: int, address: str) -> Iterator[None]:
    try:
        machine.node.run(route_argv("add", number, address, str(machine.interface)))
    except CommandError as error:
        raise MeasurementError(
            f"{machine.node.name} cannot send to guests by way of {address}: {error.output_tail}",
            kind="network",
            remedy="machines of guests must be on one network, with no router between them: docs/guide/distributed.md",
        ) from error
    with undone(machine.node, route_argv("delete", number, address, str(machine.interface))):
        yield


def joined(machine: Instance, guest: Node, plugged: Tap) -> Instance:
    """Give the booted guest its address and the route to the others; return it as an instance."""
    device = join(guest, plugged)
    gateway = str(IPv4Network(plugged.cidr, strict=False)[1])
    mtu = str(mtu_of(machine.node, DEVICE))
    run_each(
        guest,
        [
            ["ip", "link", "set", "dev", device, "mtu", mtu],
            ["ip", "route", "replace", str(NETWORK), "via", gateway, "dev", device],
        ],
    )
    return Instance(guest, plugged.address, device, clock_offset_s=machine.clock_offset_s)
