"""The addresses and interfaces by which the machines of an inventory reach each other."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provisioning.remote.machine import Machine
from suite.errors import RequestError

REMEDY = "write the right interface or address for it in the inventory"


@dataclass(frozen=True)
class Place:
    """The address and interface of one machine."""

    address: str
    interface: str


def places(machines: Sequence[Machine]) -> tuple[Place, ...]:
    """Return the address and the interface of each machine, as the inventory gives them.

    What it leaves out is taken from the route to the first machine, and for the first from that to the second. Raises
    RequestError for an interface or address that a machine does not have.
    """
    planned = machines[0].planned
    given = len(machines) < 2 or planned.interface or planned.address
    first = _place(machines[0], None if given else _known_address(machines[0], machines[1]))
    found = (first, *(_place(machine, first.address) for machine in machines[1:]))
    _check_apart([machine.name for machine in machines], found)
    return found


def _check_apart(names: Sequence[str], found: Sequence[Place]) -> None:
    """Raise RequestError if two machines have one address: each may have it on a bridge of its own, such as docker0."""
    owners: dict[str, str] = {}
    for name, place in zip(names, found, strict=True):
        other = owners.setdefault(place.address, name)
        if other != name:
            raise RequestError(
                f"{other} and {name} have the same address {place.address} (on {place.interface}): they cannot reach "
                "each other there",
                remedy=REMEDY,
            )


def _place(machine: Machine, towards: str | None) -> Place:
    listed = machine.run(["ip", "-json", "-4", "address", "show"]).stdout
    held = addresses(json.loads(listed or "[]"))
    planned = machine.planned
    if planned.interface or planned.address:
        return chosen(machine.name, held, planned.interface, planned.address)
    if towards is None:
        raise RequestError(f"{machine.name} is the only machine: nobody to reach", remedy="list two nodes or more")
    answer = machine.run(["ip", "-json", "-4", "route", "get", towards], check=False)
    route = (json.loads(answer.stdout or "[]") or [{}])[0]
    interface, address = route.get("dev"), route.get("prefsrc")
    if not interface or not address or interface == "lo":
        raise RequestError(
            f"{machine.name} has no route to {towards} ({answer.stderr.strip()[:200] or interface})", remedy=REMEDY
        )
    return Place(str(address), str(interface))


def addresses(links: Sequence[Mapping[str, object]]) -> tuple[Place, ...]:
    """Return every IPv4 address in the output of ``ip -json address show``, without those of loopback."""
    found = []
    for link in links:
        infos = link.get("addr_info")
        for info in infos if isinstance(infos, list) else []:
            if link["ifname"] != "lo" and info.get("local"):
                found.append(Place(str(info["local"]), str(link["ifname"])))
    return tuple(found)


def chosen(name: str, held: Sequence[Place], interface: str | None, address: str | None) -> Place:
    """Return the address that the inventory means. Raises RequestError if the machine does not have it."""
    for place in held:
        if interface in (None, place.interface) and address in (None, place.address):
            return place
    wanted = " with ".join(word for word in (interface, address) if word)
    has = ", ".join(f"{place.interface} {place.address}" for place in held) or "none"
    raise RequestError(f"{name} has no interface {wanted}; it has: {has}", remedy=REMEDY)


def _known_address(asking: Machine, other: Machine) -> str:
    """Return the other machine's address as the asking one knows it: the inventory's, or that of the name in ssh."""
    if other.planned.address:
        return other.planned.address
    name = host_name(other.carrier.run(other.access.query()).stdout)
    answer = asking.run(["getent", "ahostsv4", name], check=False)
    found = next((line.split()[0] for line in answer.stdout.splitlines()), None)
    if found is None or found.startswith("127."):
        raise RequestError(
            f"{asking.name} does not know the address of {other.name} ({name})",
            remedy=f"write address = … or interface = … for {asking.name} in the inventory",
        )
    return found


def host_name(said: str) -> str:
    """Return the host name in the output of ``ssh -G``."""
    return next((line.split()[1] for line in said.splitlines() if line.startswith("hostname ")), "")
