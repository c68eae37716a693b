"""The nodes whose containers are to reach each other, as every network between them knows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from provisioning.lab.lab import DEVICE
from suite.errors import RequestError
from suite.interfaces import Node

MOST_MEMBERS = 254


@dataclass(frozen=True)
class Member:
    """One node; its number is also its subnet's."""

    number: int
    """From 1; no two alike."""
    node: Node
    address: str
    """Under which the other nodes reach it."""
    device: str = DEVICE
    """The interface that has the address."""


def check_members(members: Sequence[Member]) -> None:
    """Raises RequestError when two are one, or there are more than subnets."""
    numbers = [member.number for member in members]
    wrong = [number for number in numbers if not 1 <= number <= MOST_MEMBERS or numbers.count(number) > 1]
    if wrong or not members:
        raise RequestError(
            f"a network of the nodes {numbers}", remedy=f"number them from 1 to {MOST_MEMBERS}, each once"
        )
