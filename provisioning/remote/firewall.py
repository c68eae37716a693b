"""What a machine forwards for the suite. Docker, where it runs, has the machine drop all else (its chain FORWARD)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from provisioning.nodes import undone
from suite.interfaces import Node

TABLES = ("iptables", "--wait")
NOTHING_DROPPED = ("", "-P FORWARD ACCEPT")


@contextmanager
def forwarded(machine: Node, devices: Sequence[str]) -> Iterator[None]:
    """What comes from the interfaces, or goes to them, is passed on. Where nothing is dropped, nothing is done."""
    listed = machine.run([*TABLES, "--list-rules", "FORWARD"], check=False)
    with ExitStack() as stack:
        if listed.returncode == 0 and listed.stdout.strip() not in NOTHING_DROPPED:
            for words in rules(devices):
                machine.run([*TABLES, "--insert", *words])
                stack.enter_context(undone(machine, [*TABLES, "--delete", *words]))
        yield


def rules(devices: Sequence[str]) -> list[list[str]]:
    return [["FORWARD", way, device, "--jump", "ACCEPT"] for device in devices for way in ("-i", "-o")]
