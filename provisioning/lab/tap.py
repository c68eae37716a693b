"""A guest on the lab: a tap beside the node's cable, on one bridge.

The guest takes over the node's address, and the node has none until the guest is gone.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from provisioning.lab.containers import changed, made, run_each
from provisioning.lab.lab import BRIDGE_KIND, DEVICE, NO_IPV6, LabNode
from suite.errors import MeasurementError
from suite.interfaces import Node

TAP = "tap0"
BRIDGE = "vmbr0"
VHOST = "/dev/vhost-net"


@dataclass(frozen=True)
class Tap:
    """A tap that a guest's network card is plugged into. ``mac`` and ``cidr`` are those that the guest is to have."""

    ifname: str
    mac: str
    address: str
    cidr: str
    vhost: bool = False
    """Whether the host's kernel moves its packets; otherwise a thread of QEMU does, through one system call each."""


@contextmanager
def tap(lab_node: LabNode, parent: Node) -> Iterator[Tap]:
    """Make it in the node's namespace, which QEMU must be started in; ``parent`` is what the lab node is a node of."""
    node = lab_node.node(parent)
    link = ["ip", "link", "set", "dev"]
    bridge = [
        ["ip", "link", "add", "dev", BRIDGE, *BRIDGE_KIND],
        [*link, DEVICE, "master", BRIDGE],
        [*link, BRIDGE, "up"],
    ]
    card = [
        ["ip", "tuntap", "add", "dev", TAP, "mode", "tap"],
        [*link, TAP, "master", BRIDGE],
        [*link, TAP, "up"],
    ]
    with (
        changed(node, *takeover_argvs(lab_node)),
        made(node, BRIDGE, bridge),
        made(node, TAP, card),
    ):
        yield Tap(TAP, lab_node.mac, lab_node.address, lab_node.cidr, vhost=_has_vhost(parent))


def _has_vhost(node: Node) -> bool:
    """Return whether the node's kernel has vhost-net: the device file exists without its module, too, and must open."""
    words = ["dd", "if=/dev/null", f"of={VHOST}", "count=0", "conv=nocreat,notrunc", "status=none"]
    return node.run(words, check=False).returncode == 0


def takeover_argvs(node: LabNode) -> tuple[list[list[str]], list[list[str]]]:
    """Free the node's address and hardware address, each with what gives it back.

    The guest has both, so that nobody on the switch must learn anything anew; the port of a bridge could not share
    its own.
    """
    give = ["ip", "link", "set", "dev", DEVICE, "address"]
    substitute = f"06{node.mac[2:]}"
    words = [node.cidr, "dev", DEVICE]
    free = [["ip", "address", "delete", *words], [*give, substitute]]
    give_back = [["ip", "address", "add", *words], [*give, node.mac]]
    return free, give_back


def qemu_words(plugged: Tap) -> list[str]:
    """Return the words of QEMU's command line for the card; its user-mode network remains the way in."""
    vhost = ",vhost=on" if plugged.vhost else ""
    backend = f"tap,id=lab,ifname={plugged.ifname},script=no,downscript=no{vhost}"
    return ["-netdev", backend, "-device", f"virtio-net-pci,netdev=lab,mac={plugged.mac},romfile="]


def join_argvs(device: str, cidr: str) -> list[list[str]]:
    return [
        [*NO_IPV6],
        ["ip", "address", "replace", cidr, "dev", device],
        ["ip", "link", "set", "dev", device, "up"],
    ]


def join(guest: Node, plugged: Tap) -> str:
    """Give the booted guest its address on the lab; returns what the guest calls the interface."""
    links = json.loads(guest.run(["ip", "-json", "link", "show"]).stdout or "[]")
    names = (str(link["ifname"]) for link in links if link.get("address") == plugged.mac)
    device = next(names, None)
    if device is None:
        raise MeasurementError(f"{guest.name} has no interface {plugged.mac}", kind="network", remedy="see its console")
    run_each(guest, join_argvs(device, plugged.cidr))
    return device
