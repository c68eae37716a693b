"""A guest on a machine of an inventory: which ways the kernel of the machine has for what it sends."""

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator

import pytest

from provisioning.remote.network import DEVICE, peers_only_argvs, route_argv, subnet, tap_argvs
from tests.integration.machine import require_root

pytestmark = pytest.mark.integration
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def machine() -> Iterator[Run]:
    """A network namespace as machine 1 of two: on a LAN, with a default route, forwarding, and a guest's tap."""
    require_root()
    name = f"hostile-{secrets.token_hex(3)}"

    def run(*argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["ip", "netns", "exec", name, *argv], check=check, capture_output=True, text=True)

    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        run("ip", "link", "add", "lan0", "type", "veth", "peer", "name", "far0")
        for device in ("lan0", "far0"):
            run("ip", "link", "set", device, "up")
        run("ip", "address", "add", "10.7.0.1/24", "dev", "lan0")
        run("ip", "route", "add", "default", "via", "10.7.0.254")
        run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for argv in (*tap_argvs(1, 1500), route_argv("add", 2, "10.7.0.2", "lan0")):
            run(*argv)
        yield run
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def way(machine: Run, destination: str) -> str | None:
    """Return the interface by which the machine forwards what its guest sends there; None if it does not."""
    asked = ["ip", "-json", "route", "get", destination, "from", "10.245.1.2", "iif", DEVICE]
    answer = machine(*asked, check=False)
    return None if answer.returncode else str(json.loads(answer.stdout)[0]["dev"])


STRANGERS = ("10.7.0.9", "10.7.0.254", "192.0.2.1", "10.245.3.2")


def test_a_guest_reaches_its_peers_and_nobody_else(machine: Run) -> None:
    assert way(machine, "10.245.2.2") == "lan0"
    assert [way(machine, stranger) for stranger in STRANGERS] == ["lan0"] * 4, "what forwarding alone would do"
    begin, end = peers_only_argvs([subnet(2)])
    for argv in begin:
        machine(*argv)
    assert way(machine, "10.245.2.2") == "lan0"
    assert [way(machine, stranger) for stranger in STRANGERS] == [None] * 4
    own = json.loads(machine("ip", "-json", "route", "get", "10.7.0.9").stdout)
    assert own[0]["dev"] == "lan0", "the machine itself goes where it went"
    for argv in reversed(end):
        machine(*argv)
    assert way(machine, "10.7.0.9") == "lan0"
    assert machine("ip", "route", "show", "table", "10245", check=False).stdout == ""
