"""The nodes' network: a bridge in a namespace of its own, a namespace a node, and one link to this host."""

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.kubernetes_cluster.layout import HOST_ADDRESS, HOST_LINK, NODES, SERVICES, SWITCH

NAMESPACES = (SWITCH, *(node.namespace for node in NODES))


def connect() -> None:
    """Join this host and the nodes; pods and services are reached from here through the nodes."""
    _ip("netns", "add", SWITCH)
    _in(SWITCH, "link set lo up")
    _in(SWITCH, "link add br0 type bridge")
    _in(SWITCH, "link set br0 up")
    _ip("link", "add", HOST_LINK, "type", "veth", "peer", "name", "h0", "netns", SWITCH)
    _in(SWITCH, "link set h0 master br0 up")
    _ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", HOST_LINK)
    _ip("link", "set", HOST_LINK, "up")
    for node in NODES:
        _ip("netns", "add", node.namespace)
        _in(SWITCH, f"link add {node.name} type veth peer name eth0 netns {node.namespace}")
        _in(SWITCH, f"link set {node.name} master br0 up")
        _in(node.namespace, "link set lo up")
        _in(node.namespace, f"addr add {node.address}/24 dev eth0")
        _in(node.namespace, "link set eth0 up")
        _in(node.namespace, f"route add default via {HOST_ADDRESS}")
        _ip("route", "add", node.pods, "via", node.address)
    for node in NODES:
        for other in NODES:
            if other is not node:
                _in(node.namespace, f"route add {other.pods} via {other.address}")
    _ip("route", "add", SERVICES, "via", NODES[0].address)


def disconnect() -> None:
    """Remove what ``connect`` made, and nothing else; routes go with their link."""
    for name in NAMESPACES:
        if Path("/run/netns", name).exists():
            _ip("netns", "del", name)
    with suppress(subprocess.CalledProcessError):  # it goes with the other end, which may take a moment
        _ip("link", "del", HOST_LINK)


def left() -> list[str]:
    links = [name for name in (HOST_LINK,) if Path("/sys/class/net", name).exists()]
    return links + [name for name in NAMESPACES if Path("/run/netns", name).exists()]


def _in(namespace: str, words: str) -> None:
    _ip("-n", namespace, *words.split())


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
