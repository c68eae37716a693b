"""The network between machines of an inventory: their addresses, and the way between guests of different machines.

Each machine has a subnet for its guest, and a route to those of the others. A guest's card is a tap of its machine,
which forwards what comes from it by its own interface: no tunnel, no address translation, the MTU of the network. The
machines must be neighbours, with no router between them. Nothing is forwarded from a guest except to the other guests.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Network

from provisioning.lab.connectivity import Place, places_of
from provisioning.lab.containers import changed, forwarding, made, mtu_of, run_each
from provisioning.lab.tap import Tap, join
from provisioning.nodes import undone
from provisioning.remote.machine import Machine
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Instance, Node

REMEDY = "write the right interface or address for it in the inventory"
DEVICE = "vbtap0"
TABLES = ("iptables", "--wait")
NOTHING_DROPPED = ("", "-P FORWARD ACCEPT")
NETWORK = IPv4Network("10.245.0.0/16")
TABLE = 10245
PRIORITY = 10245
"""The table of routes for what a guest sends, and the priority of its rule: before that of the main table."""


def places(machines: Sequence[Machine]) -> tuple[Place, ...]:
    """Return the address and the interface of each machine, as the inventory gives them.

    If it gives none, they are taken from the route to the first machine, for the first from that to the second. Raises
    RequestError for an interface or address that a machine does not have, or that two have.
    """
    planned = machines[0].planned
    towards = None
    if len(machines) > 1 and not planned.interface and not planned.address:
        towards = _known_address(machines[0], machines[1])
    first = _place(machines[0], towards)
    others = [_place(machine, first.address) for machine in machines[1:]]
    reached = (first, *others)
    owners: dict[str, str] = {}
    for machine, location in zip(machines, reached, strict=True):
        # Each may have the address on a bridge of its own, such as docker0.
        owner = owners.setdefault(location.address, machine.name)
        if owner != machine.name:
            raise RequestError(
                f"{owner} and {machine.name} have the same address {location.address} (on {location.interface}): they "
                "cannot reach each other there",
                remedy=REMEDY,
            )
    return reached


def _place(machine: Machine, towards: str | None) -> Place:
    available = places_of(machine)
    planned = machine.planned
    if planned.interface or planned.address:
        return chosen(machine.name, available, planned.interface, planned.address)
    if towards is None:
        raise RequestError(f"{machine.name} is the only machine and reaches none", remedy="list two nodes or more")
    answer = machine.run(["ip", "-json", "-4", "route", "get", towards], check=False)
    routes = json.loads(answer.stdout or "[]")
    route = (routes or [{}])[0]
    interface = route.get("dev")
    address = route.get("prefsrc")
    if not interface or not address or interface == "lo":
        why = answer.stderr.strip()[:200] or interface
        raise RequestError(f"{machine.name} has no route to {towards} ({why})", remedy=REMEDY)
    return Place(str(address), str(interface))


def chosen(name: str, available: Sequence[Place], interface: str | None, address: str | None) -> Place:
    """Return the place that the inventory names. Raises RequestError if the machine does not have it."""
    for location in available:
        if interface in (None, location.interface) and address in (None, location.address):
            return location
    wanted = " with ".join(word for word in (interface, address) if word)
    has = ", ".join(f"{location.interface} {location.address}" for location in available) or "none"
    raise RequestError(f"{name} has no interface {wanted}; it has: {has}", remedy=REMEDY)


def _known_address(asking: Machine, target: Machine) -> str:
    """Return the other machine's address: the inventory's, or what the asking one resolves its name in ssh to."""
    if target.planned.address:
        return target.planned.address
    answered = target.carrier.run(["ssh", "-G", *target.access.way])
    queried = answered.stdout.splitlines()
    named = (line.split()[1] for line in queried if line.startswith("hostname "))
    name = next(named, "")
    answer = asking.run(["getent", "ahostsv4", name], check=False)
    addresses = (line.split()[0] for line in answer.stdout.splitlines())
    address = next(addresses, None)
    if address is None or address.startswith("127."):
        remedy = f"write address = … or interface = … for {asking.name} in the inventory"
        raise RequestError(f"{asking.name} cannot resolve the address of {target.name} ({name})", remedy=remedy)
    return address


def subnet(number: int) -> IPv4Network:
    """Return the subnet of machine ``number``, from 1: its own address there is the first, the guest's the second."""
    return IPv4Network(f"10.245.{number}.0/24")


def tap_argvs(number: int, mtu: int) -> list[list[str]]:
    net = subnet(number)
    return [
        ["ip", "tuntap", "add", "dev", DEVICE, "mode", "tap"],
        ["ip", "link", "set", "dev", DEVICE, "mtu", str(mtu), "up"],
        ["ip", "address", "add", f"{net[1]}/{net.prefixlen}", "dev", DEVICE],
    ]


def peers_only_argvs(peers: Sequence[IPv4Network]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the commands that let packets of the guest reach these subnets alone, and what undoes each.

    A table of routes for the tap alone: the peers are left to the other tables, all else is unreachable. No firewall
    is needed or changed.
    """
    table = ["table", str(TABLE)]
    thrown = (["throw", str(peer)] for peer in peers)
    routes = [*thrown, ["unreachable", "default"]]
    rule = ["iif", DEVICE, "lookup", str(TABLE), "priority", str(PRIORITY)]
    return (
        [*(["ip", "route", "add", *route, *table] for route in routes), ["ip", "rule", "add", *rule]],
        [*(["ip", "route", "delete", *route, *table] for route in routes), ["ip", "rule", "delete", *rule]],
    )


def route_argv(verb: str, number: int, address: str, interface: str) -> list[str]:
    return ["ip", "route", verb, str(subnet(number)), "via", address, "dev", interface]


@contextmanager
def routed(machines: Sequence[Instance]) -> Iterator[tuple[Tap, ...]]:
    """Make a tap on each machine, by rank; at the end nothing of it is left.

    Raises MeasurementError of kind ``network``.
    """
    mtus = (mtu_of(machine.node, str(machine.interface)) for machine in machines)
    mtu = min(mtus)
    numbers = range(1, len(machines) + 1)
    subnets = [subnet(number) for number in numbers]
    with ExitStack() as stack:
        for number, machine in enumerate(machines, start=1):
            stack.enter_context(forwarding(machine.node))
            stack.enter_context(forwarded(machine.node, [DEVICE]))
            argvs = tap_argvs(number, mtu)
            stack.enter_context(made(machine.node, DEVICE, argvs))
            peers = [net for net in subnets if net != subnet(number)]
            stack.enter_context(changed(machine.node, *peers_only_argvs(peers)))
            for target, peer in enumerate(machines, start=1):
                if target != number:
                    way = (target, str(peer.address), str(machine.interface))
                    try:
                        machine.node.run(route_argv("add", *way))
                    except CommandError as error:
                        raise MeasurementError(
                            f"{machine.node.name} cannot send to guests by way of {peer.address}: {error.output_tail}",
                            kind="network",
                            remedy="machines of guests must be on one network, with no router between them: "
                            "docs/guide/distributed.md",
                        ) from error
                    stack.enter_context(undone(machine.node, route_argv("delete", *way)))
        taps = []
        for number, net in enumerate(subnets, start=1):
            mac = f"02:42:0a:f5:{number:02x}:02"
            address = str(net[2])
            taps.append(Tap(DEVICE, mac, address, f"{address}/{net.prefixlen}"))
        yield tuple(taps)


@contextmanager
def forwarded(machine: Node, devices: Sequence[str]) -> Iterator[None]:
    """Make the machine forward what comes from the interfaces or goes to them, if it drops anything at all.

    Docker, where it runs, makes it drop what it does not know (chain FORWARD).
    """
    listed = machine.run([*TABLES, "--list-rules", "FORWARD"], check=False)
    rules = []
    if listed.returncode == 0 and listed.stdout.strip() not in NOTHING_DROPPED:
        for device in devices:
            rules.append(["FORWARD", "-i", device, "--jump", "ACCEPT"])
            rules.append(["FORWARD", "-o", device, "--jump", "ACCEPT"])
    inserted = [[*TABLES, "--insert", *rule] for rule in rules]
    deleted = [[*TABLES, "--delete", *rule] for rule in rules]
    with changed(machine, inserted, deleted):
        yield


def joined(machine: Instance, guest: Node, plugged: Tap) -> Instance:
    """Give the booted guest its address and the route to the others; return it as an instance."""
    device = join(guest, plugged)
    mtu = str(mtu_of(machine.node, DEVICE))
    network = IPv4Network(plugged.cidr, strict=False)
    gateway = str(network[1])
    argvs = [
        ["ip", "link", "set", "dev", device, "mtu", mtu],
        ["ip", "route", "replace", str(NETWORK), "via", gateway, "dev", device],
    ]
    run_each(guest, argvs)
    return Instance(guest, plugged.address, device, clock_offset_s=machine.clock_offset_s)
