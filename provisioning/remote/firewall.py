"""The firewall of a machine. Docker, where it runs, makes the machine drop what it does not know (chain FORWARD)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from provisioning.nodes import undone
from suite.interfaces import Node

TABLES = ("iptables", "--wait")
NOTHING_DROPPED = ("", "-P FORWARD ACCEPT")


@contextmanager
def forwarded(machine: Node, devices: Sequence[str]) -> Iterator[None]:
    """Make the machine forward what comes from the interfaces or goes to them, if it drops anything at all."""
    listed = machine.run([*TABLES, "--list-rules", "FORWARD"], check=False)
    with ExitStack() as stack:
        if listed.returncode == 0 and listed.stdout.strip() not in NOTHING_DROPPED:
            for words in rules(devices):
                machine.run([*TABLES, "--insert", *words])
                stack.enter_context(undone(machine, [*TABLES, "--delete", *words]))
        yield


def rules(devices: Sequence[str]) -> list[list[str]]:
    return [["FORWARD", way, device, "--jump", "ACCEPT"] for device in devices for way in ("-i", "-o")]
