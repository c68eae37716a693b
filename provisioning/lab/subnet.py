"""Addresses of the lab: a private subnet that this machine routes nowhere yet."""

import json
from collections.abc import Iterable
from ipaddress import IPv4Network

from suite.errors import RequestError
from suite.interfaces import Node

POOL = IPv4Network("10.99.0.0/16")
PREFIX = 24


def free_subnet(routes: Iterable[str]) -> IPv4Network:
    """The first /24 of the pool that overlaps no route. ``routes``: destinations as ``ip route`` writes them."""
    taken = [IPv4Network(route, strict=False) for route in routes if route[:1].isdigit()]
    for subnet in POOL.subnets(new_prefix=PREFIX):
        if not any(subnet.overlaps(other) for other in taken if other.prefixlen):
            return subnet
    raise RequestError(f"this machine routes all of {POOL}", remedy="take away a route to a part of it: ip route")


def routes_of(node: Node) -> list[str]:
    """The destinations of all routes of the node but the default ones."""
    said = node.run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout
    return [route["dst"] for route in json.loads(said or "[]") if route.get("dst", "default") != "default"]
