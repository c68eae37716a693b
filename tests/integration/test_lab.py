"""The lab network, for real: namespaces, limited links, VXLAN, address translation, a tap; and that nothing is left.

A process in network namespaces of its own stands in for a container and for a guest: the cables do not know the
difference.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.lab import netns, reachability
from provisioning.lab.connectivity import End, connectivity, rate_bits_per_s
from provisioning.lab.containers import Member, attached
from provisioning.lab.lab import Lab, LabNode, link_argv, open_lab
from provisioning.lab.nat import TOOLS, nat
from provisioning.lab.netns import enter
from provisioning.lab.overlay import overlay
from provisioning.lab.tap import join, tap
from provisioning.nodes import LocalNode, WrappedNode
from provisioning.processes import LocalProcess
from suite.errors import MeasurementError, RequestError
from suite.interfaces import Node
from suite.job.lab import LabSpec, parse_lab
from tests.integration.machine import require_root

pytestmark = pytest.mark.integration

GBIT = 10**9
MSS_IN_FRAME, MSS_IN_VXLAN_FRAME = 1448 / 1514, 1398 / 1514
"""What TCP with time stamps can carry of a frame, and of one that holds another."""
ENOUGH, MOST = 0.93, 1.01
"""Of the rate, and of what TCP can carry of it: what may leave at once comes on top."""
TRIES = 12
SLOWEST_SHARE = 0.01
"""Of the rate, in a second of which a busy machine may take all but some."""
SNIFF = b"""
import socket, struct, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("n2", 0))
wire.settimeout(60)
print("up", flush=True)
while True:
    frame = wire.recv(65535)
    ip = frame[14:]
    if frame[12:14] == b"\\x08\\x00" and ip[9] == 17 and struct.unpack("!H", ip[22:24])[0] == 8472:
        inner = ip[20 + 8 + 8 + 14 :]
        print(*(socket.inet_ntoa(part) for part in (ip[12:16], ip[16:20], inner[12:16], inner[16:20])), flush=True)
        break
"""
ONE_VISITOR = b"""
import socket
with socket.create_server(("0.0.0.0", 29500)) as server:
    print("up", flush=True)
    print(server.accept()[1][0], flush=True)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of the test's own."""
    require_root()
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def _nothing_is_left(home: Path) -> Iterator[None]:
    before = (namespaces(), links())
    yield
    assert (namespaces(), links()) == before
    assert list((home / "ledger").glob("*.json")) == []


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab(parse_lab("nodes=3,rate=1gbit")) as opened:
        yield opened


def namespaces() -> set[str]:
    return {path.name for path in netns.NETNS.glob("*")}


def links() -> set[str]:
    said = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True).stdout
    return {link["ifname"] for link in json.loads(said)}


def ip(node: Node, *words: str) -> list[dict[str, object]]:
    return list(json.loads(node.run(["ip", "-json", *words]).stdout or "[]"))


@contextmanager
def sandbox(machine: Node, on: Node) -> Iterator[tuple[int, WrappedNode]]:
    """What stands in for a container: a process in a network namespace of its own, and the node that it is."""
    assert isinstance(machine, LocalNode)
    process = on.start(["unshare", "--net", "--", "sh", "-c", "echo up; exec sleep 600"])
    assert isinstance(process, LocalProcess)
    assert next(process.lines(60.0)) == "up"
    pid = process.popen.pid
    try:
        yield (
            pid,
            WrappedNode(
                parent=machine,
                wrap=lambda argv: [*enter(f"/proc/{pid}/ns/net"), *argv],
                name=f"container-{pid}",
                userland=None,
                cpus=(),
                local=False,
            ),
        )
    finally:
        process.kill()


def rates_until(enough: float, client: End, server: End, seconds: int = 2) -> list[float]:
    """Sessions until one is fast enough: whoever else uses this machine's CPUs makes single ones slow."""
    rates: list[float] = []
    while len(rates) < TRIES and (not rates or max(rates) < enough):
        rates.append(rate_bits_per_s(client, server, seconds))
    return rates


def carried_bits(node: Node, device: str, way: str) -> int:
    """What an interface has received (rx) or sent (tx) so far, as the kernel counts it."""
    (told,) = json.loads(node.run(["ip", "-json", "-s", "link", "show", "dev", device]).stdout)
    return 8 * int(told["stats64"][way]["bytes"])


def ends(lab: Lab) -> list[End]:
    return [End(node.name, node.node(lab.machine), node.address) for node in lab.nodes]


def say_and_stop(node: Node, words: list[str]) -> str:
    """One line of ``connect`` on a node."""
    source = Path(reachability.__file__).read_bytes()
    return node.run(["/usr/bin/python3", "-I", "-", "connect", "30", *words], stdin=source).stdout


@pytest.mark.parametrize("limiter", ["tbf", pytest.param("htb", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("rate", "bits"), [("1gbit", GBIT), ("100mbit", 10**8)])
def test_a_link_carries_its_rate_both_ways_and_never_more(
    rate: str, bits: int, limiter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.lab.shaping.LIMITERS", (limiter,))
    with open_lab(LabSpec(nodes=2, rate=rate)) as lab:
        assert lab.limiter == limiter
        one, two = ends(lab)
        for client, server in ((one, two), (two, one)):
            rates = rates_until(ENOUGH * bits, client, server)
            assert ENOUGH * bits <= max(rates) <= MOST * MSS_IN_FRAME * bits, rates


def test_the_switch_limits_what_two_nodes_send_to_a_third(lab: Lab) -> None:
    one, two, three = ends(lab)
    rival = three.node.start(["iperf3", "--server", "--one-off", "--forceflush", "--port", "5202"])
    assert any("listening" in line for line in rival.lines(60.0))
    crowd = two.node.start(["iperf3", "--client", three.address, "--port", "5202", "--time", "600"])
    while carried_bits(three.node, "eth0", "rx") < GBIT / 10:
        assert crowd.running()
    # Its clock is looked at before and after the counter: on a busy machine the rate seems lower, and never higher.
    begin_s, before = time.monotonic(), carried_bits(three.node, "eth0", "rx")
    alone = rate_bits_per_s(one, three, 2)
    both = (carried_bits(three.node, "eth0", "rx") - before) / (time.monotonic() - begin_s)
    assert crowd.running()
    crowd.kill()
    assert both < 1.05 * GBIT
    assert 0 < alone < 0.9 * GBIT, "the other has a share"


def switch_port(lab: Lab, node: LabNode, state: str) -> None:
    """Take the node off the switch, as a pulled cable would, or put it back."""
    lab.machine.run(link_argv(lab.switch, node.name, state))


def test_every_pair_is_reached_at_a_rate_that_is_recorded_and_a_cut_link_is_named(lab: Lab) -> None:
    pairs = connectivity(ends(lab), measure_s=1, link_bits_per_s=GBIT)
    names = {(a.name, b.name) for a in lab.nodes for b in lab.nodes if a is not b}
    assert {(pair.source.name, pair.target.name) for pair in pairs} == names
    for pair in pairs:
        assert pair.source_address == pair.source.address
        assert pair.rate_bits_per_s is not None
        assert SLOWEST_SHARE * GBIT < pair.rate_bits_per_s < GBIT
    switch_port(lab, lab.nodes[1], "down")
    with pytest.raises(MeasurementError, match="n1 does not reach n2") as caught:
        connectivity(ends(lab))
    assert caught.value.kind == "network"
    assert caught.value.remedy
    switch_port(lab, lab.nodes[1], "up")
    assert len(connectivity(ends(lab))) == 6


def test_a_node_has_its_link_and_nothing_else(lab: Lab) -> None:
    node = lab.nodes[0].node(lab.machine)
    assert {link["ifname"] for link in ip(node, "link")} == {"lo", "eth0"}
    assert ip(node, "-6", "address") == []
    assert [route["dst"] for route in ip(node, "route")] == ["10.99.0.0/24"]
    assert node.local
    assert node.run(["ls", "/sys/fs/cgroup"]).stdout == lab.machine.run(["ls", "/sys/fs/cgroup"]).stdout


def test_more_nodes_reach_each_other_than_a_kernel_learns_neighbours() -> None:
    with open_lab(LabSpec(nodes=40)) as lab:
        assert len(connectivity(ends(lab))) == 40 * 39


def test_two_labs_stand_side_by_side() -> None:
    spec = LabSpec(nodes=2)
    with open_lab(spec) as one, open_lab(spec) as other:
        for lab in (one, other):
            assert len(connectivity(ends(lab))) == 2
        switch_port(other, other.nodes[0], "down")
        assert len(connectivity(ends(one))) == 2


def test_a_delay_without_netem_is_refused_with_what_to_do(lab: Lab) -> None:
    answer = lab.machine.run(["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem"], check=False)
    if answer.returncode == 0:
        with open_lab(LabSpec(nodes=2, delay="20ms")) as slow:
            assert 0.04 <= min(pair.connect_s for pair in connectivity(ends(slow))) < 0.4
        return
    with pytest.raises(RequestError, match="no netem") as caught, open_lab(LabSpec(nodes=2, delay="20ms")):
        pytest.fail("a delay that is not there was promised")
    assert "CONFIG_NET_SCH_NETEM" in str(caught.value.remedy)


def members(lab: Lab) -> list[Member]:
    return [Member(node.number, node.node(lab.machine), node.address) for node in lab.nodes]


def test_containers_of_different_nodes_meet_on_the_overlay(lab: Lab) -> None:
    nodes = [member.node for member in members(lab)]
    with (
        overlay(members(lab)) as bridges,
        sandbox(lab.machine, nodes[0]) as one,
        sandbox(lab.machine, nodes[1]) as two,
        attached(nodes[0], bridges[0], one[0]),
        attached(nodes[1], bridges[1], two[0]),
    ):
        addresses = [bridge.address for bridge in bridges[:2]]
        assert addresses == ["10.244.1.2", "10.244.2.2"]
        sniffer = lab.machine.start([*enter(lab.switch), "/usr/bin/python3", "-I", "-"], stdin=SNIFF)
        wire = sniffer.lines(60.0)
        assert next(wire) == "up"
        places = [End(f"c{n}", node, at) for n, (node, at) in enumerate(zip((one[1], two[1]), addresses, strict=True))]
        assert [pair.source_address for pair in connectivity(places)] == addresses, "no translation on the way"
        assert next(wire).split() in (
            ["10.99.0.1", "10.99.0.2", *addresses],
            ["10.99.0.2", "10.99.0.1", *reversed(addresses)],
        )
        assert [link["mtu"] for link in ip(one[1], "link", "show", "dev", "eth0")] == [1450]
        assert ip(one[1], "-6", "address") == []
        rates = rates_until(ENOUGH * MSS_IN_VXLAN_FRAME * GBIT, places[0], places[1])
        assert ENOUGH * MSS_IN_VXLAN_FRAME * GBIT <= max(rates) <= MOST * MSS_IN_VXLAN_FRAME * GBIT, rates
        assert carried_bits(nodes[0], "flannel.1", "tx") > 8 * 10**8
        assert json.loads(say_and_stop(one[1], [f"{addresses[1]}:9"])) == {"error": "Connection refused"}
    for node in nodes:
        assert {link["ifname"] for link in ip(node, "link")} == {"lo", "eth0"}
        assert [route["dst"] for route in ip(node, "route")] == ["10.99.0.0/24"]
        assert node.run(["sysctl", "-n", "net.ipv4.ip_forward"]).stdout == "0\n"


def test_an_overlay_that_fails_half_way_is_taken_down(lab: Lab) -> None:
    wrong = [*members(lab)[:2], Member(3, lab.nodes[2].node(lab.machine), "10.99.0.3", device="eth7")]
    with pytest.raises(MeasurementError, match="eth7"), overlay(wrong):
        pytest.fail("an overlay on an interface that is not there")
    one = lab.nodes[0].node(lab.machine)
    one.run(["ip", "link", "add", "dev", "cni0", "type", "bridge"])
    with pytest.raises(MeasurementError, match="File exists"), overlay(members(lab)):
        pytest.fail("somebody else's bridge was taken")
    assert {link["ifname"] for link in ip(one, "link")} == {"lo", "eth0", "cni0"}, "somebody else's bridge stays"


@pytest.mark.parametrize("tool", ["nft", "iptables"])
def test_containers_behind_translation_reach_each_other_by_the_addresses_that_they_tell(
    tool: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioning.lab.nat.TOOLS", [each for each in TOOLS if each[0][0] == tool])
    one, two = (node.node(lab.machine) for node in lab.nodes[:2])
    with (
        nat(members(lab)) as bridges,
        sandbox(lab.machine, one) as (pid1, client),
        sandbox(lab.machine, two) as (pid2, server),
        attached(one, bridges[0], pid1),
        attached(two, bridges[1], pid2),
    ):
        addresses = ["172.30.1.2", "172.30.2.2"]
        places = [End(f"c{n}", node, at) for n, (node, at) in enumerate(zip((client, server), addresses, strict=True))]
        assert [pair.source_address for pair in connectivity(places)] == addresses
        for address in ("172.30.2.2", "10.99.0.2"):
            listener = server.start(["/usr/bin/python3", "-I", "-"], stdin=ONE_VISITOR)
            lines = listener.lines(60.0)
            assert next(lines) == "up"
            assert "connect_s" in say_and_stop(client, [f"{address}:29500"])
            assert next(lines) == "10.99.0.1", "the container leaves under its node's address"
        assert "refused" in say_and_stop(client, ["172.30.2.2:9"]), "what is not published is the node's own"
        rates = rates_until(0.3 * GBIT, places[0], End("c1", server, "172.30.2.2", 29500), 1)
        assert 0.3 * GBIT < max(rates) <= MOST * MSS_IN_FRAME * GBIT
    for node in (one, two):
        assert "172.30" not in node.run(["nft", "list", "ruleset"]).stdout
        assert {link["ifname"] for link in ip(node, "link")} == {"lo", "eth0"}
        assert node.run(["sysctl", "-n", "net.ipv4.ip_forward"]).stdout == "0\n"


def test_what_is_plugged_in_beside_the_tap_has_the_nodes_place_on_the_switch(lab: Lab) -> None:
    before, after = lab.nodes[0], lab.nodes[1]
    assert len(connectivity(ends(lab))) == 6  # so that all know the hardware addresses from before
    node = before.node(lab.machine)
    with tap(before, lab.machine) as plugged:
        with pytest.raises(MeasurementError, match="has no interface"):
            join(after.node(lab.machine), plugged)
        assert plugged.cidr == f"{before.address}/24"
        assert {link["ifname"] for link in ip(node, "link", "show", "master", "vmbr0")} == {"eth0", "tap0"}
        assert "tun type tap" in node.run(["ip", "-details", "link", "show", "dev", "tap0"]).stdout
        assert ip(node, "address", "show", "dev", "eth0")[0]["addr_info"] == []
        with sandbox(lab.machine, node) as (pid, guest):
            far = ["peer", "name", "enp0s3", "address", plugged.mac, "netns", str(pid)]
            node.run(["ip", "link", "add", "dev", "guest0", "type", "veth", *far])
            node.run(["ip", "link", "set", "dev", "guest0", "master", "vmbr0", "up"])
            assert join(guest, plugged) == "enp0s3"
            places = [End("guest", guest, plugged.address), End("n2", after.node(lab.machine), after.address)]
            pairs = connectivity(places)
            assert pairs[0].source_address == before.address
            assert all(pair.connect_s < 1.0 for pair in pairs), "nobody had to learn where the address is now"
            assert rate_bits_per_s(places[0], places[1], 2) < MSS_IN_FRAME * GBIT * MOST
    assert {link["ifname"] for link in ip(node, "link")} == {"lo", "eth0"}
    assert len(connectivity(ends(lab))) == 6


def test_what_a_killed_owner_left_is_removed() -> None:
    program = (
        "from provisioning.lab.lab import open_lab\n"
        "from suite.job.lab import parse_lab\n"
        "with open_lab(parse_lab('nodes=2,rate=100mbit')) as lab:\n"
        "    lab.nodes[0].node(lab.machine).start(['sleep', '600'])\n"
        "    print('up', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        made = {name for name in namespaces() if name.startswith("vb-")}
        assert len(made) >= 3
        assert ledger.clean() == [], "its owner lives"
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    assert len([line for line in ledger.clean() if line.startswith("netns vb-")]) == 3
    assert ledger.clean() == []


def test_a_namespace_goes_although_a_process_is_in_it_and_the_process_stays() -> None:
    with ledger.holding("netns", f"{netns.new_token()}-n1") as name:
        subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(["ip", "-n", name, "link", "add", "dev", "v0", "type", "veth", "peer", "name", "v1"], check=True)
        with subprocess.Popen([*enter(netns.path_of(name)), "sleep", "120"]) as inside:
            while Path(f"/proc/{inside.pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
                time.sleep(0.01)
            netns.remove(name)
            assert name not in namespaces()
            assert inside.poll() is None
            seen = Path(f"/proc/{inside.pid}/net/dev").read_text()
            assert "v0" not in seen
            assert "lo:" in seen
            inside.kill()


def test_a_lab_that_cannot_be_finished_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(switch: str, node: LabNode) -> list[list[str]]:
        return [[*enter(switch), "ip", "link", "set", "dev", node.name, "up"]]  # it was never made

    monkeypatch.setattr("provisioning.lab.lab.node_argvs", fail)
    with pytest.raises(MeasurementError, match="Cannot find device"), open_lab(LabSpec(nodes=2)):
        pytest.fail("a lab without links")
