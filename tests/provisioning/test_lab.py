"""The lab's command lines and refusals, without a namespace: what they do is in ``tests/integration/test_lab.py``."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import IO, Any

import pytest

from provisioning import ledger
from provisioning.engines.docker import DOCKER
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import RUNC
from provisioning.lab import connectivity, forwarding_users, nat, netns, overlay, reachability
from provisioning.lab.containers import Member, mtu_of
from provisioning.lab.lab import LabNode, routes_of
from provisioning.lab.shaping import LinkShape, choose_limiter, shape_argvs
from provisioning.nodes import LocalNode, undone
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Completed, Process
from suite.job.lab import parse_lab
from tests.provisioning.conftest import FakeNode, fake_node, raises

GBIT = 10**9
NODE = LabNode("n2", 2, "10.99.0.2", "02:ab:cd:ef:00:02", "/run/netns/vb-abcdef-n2")
UNKNOWN = Completed(2, "", "Error: Specified qdisc kind is unknown.\n")
IN_A_NAMESPACE = ("unshare", "--net", "--")
SOURCE, LISTEN = Path(reachability.__file__).read_bytes(), (sys.executable, "-I", "-", "listen", "127.0.0.1")
"""A program that listens on this machine's loopback, as on a node: from standard input."""


def test_a_delay_holds_twice_what_is_on_its_way() -> None:
    assert LinkShape(GBIT, 0.1).delayed_packets == int(2 * GBIT / 8 * 0.1 / 1514)
    assert LinkShape(None, 0.1).delayed_packets > LinkShape(GBIT, 0.1).delayed_packets
    assert LinkShape(GBIT, 0.05).queue_bytes == GBIT // 8 // 10


@pytest.mark.parametrize("rate", [10**6, 10**8, GBIT, 10 * GBIT, 400 * GBIT])
def test_what_leaves_at_once_is_little_and_holds_the_largest_packet(rate: int) -> None:
    shape = LinkShape(rate)
    assert shape.burst_bytes >= 2 << 16
    assert shape.burst_bytes <= max(2 << 16, rate / 8 * 2e-3)
    assert shape.burst_bytes <= shape.queue_bytes < 1 << 32


def test_htb_is_taken_where_tbf_is_missing() -> None:
    node = fake_node({(*IN_A_NAMESPACE, *shape_argvs("lo", LinkShape(GBIT), "tbf")[0]): UNKNOWN})
    assert choose_limiter(node, parse_lab("nodes=2,rate=1gbit")) == "htb"
    assert choose_limiter(fake_node(), parse_lab("nodes=2,rate=1gbit")) == "tbf"


def test_a_kernel_without_either_is_refused_and_an_unlimited_lab_needs_none() -> None:
    node = fake_node({(*IN_A_NAMESPACE, "tc"): UNKNOWN})
    with raises(RequestError, r"can limit no link: tbf: .* htb: .*unknown", "CONFIG_NET_SCH_TBF"):
        choose_limiter(node, parse_lab("nodes=2,rate=1gbit"))
    assert choose_limiter(node, parse_lab("nodes=2")) == "tbf"


def test_without_root_there_is_no_lab() -> None:
    refused = Completed(1, "", "unshare: unshare failed: Operation not permitted\n")
    with raises(RequestError, r"no lab network on fake: .*not permitted", "root"):
        choose_limiter(fake_node({("unshare",): refused}), parse_lab("nodes=2"))


def test_a_new_token_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "NETNS", tmp_path)
    (tmp_path / "vb-aaaaaa-n1").touch()
    tokens = iter(["aaaaaa", "bbbbbb"])
    monkeypatch.setattr("provisioning.lab.netns.secrets.token_hex", lambda _: next(tokens))
    assert netns.new_token() == "vb-bbbbbb"


@pytest.mark.parametrize(
    "name", ["", "cni-1", "vb-abcdef", "vb-abcdef-n1/../../x", "vb-abcdef-n100", "../vb-abcdef-sw"]
)
def test_a_namespace_that_is_not_the_suites_is_left_alone(name: str) -> None:
    with pytest.raises(CommandError, match="left alone"):
        netns.remove(name)


def test_one_that_stays_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vb-abcdef-n1").touch()
    monkeypatch.setattr(netns, "NETNS", tmp_path)
    ledger.KINDS["netns"].remove("vb-abcdef-sw")
    with pytest.raises(CommandError, match="ip ended with"):
        netns.remove("vb-abcdef-n1")


def test_an_engine_is_told_how_to_share_its_nodes_network() -> None:
    assert PODMAN.host_network(NODE.namespace) == "ns:/run/netns/vb-abcdef-n2"
    assert RUNC.host_network(NODE.namespace) == "/run/netns/vb-abcdef-n2"
    assert [each.host_network(None) for each in (DOCKER, PODMAN, RUNC)] == ["host", "host", "/proc/1/ns/net"]
    with raises(RequestError, "docker cannot", "podman"):
        DOCKER.host_network(NODE.namespace)


def test_the_first_failure_is_the_one_that_is_raised() -> None:
    node = fake_node({("undo",): Completed(1, "", "gone")})
    with pytest.raises(KeyError), undone(node, ["undo"]):
        raise KeyError
    with pytest.raises(CommandError, match="gone"), undone(node, ["undo"]):
        pass


@pytest.mark.parametrize("before", ["0\n", "1\n"])
def test_the_last_user_of_forwarding_gives_back_what_the_first_has_found(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = tmp_path / "ip_forward"
    setting.write_text(before)
    monkeypatch.setattr(forwarding_users, "SETTING", setting)
    monkeypatch.setattr(forwarding_users, "USERS", tmp_path / "users")
    said = []
    for verb, user in [("enter", "a"), ("enter", "b"), ("leave", "a"), ("leave", "a"), ("leave", "b")]:
        forwarding_users.main(verb, user)
        said.append(setting.read_text())
    assert said == ["1", "1", "1", "1", before]
    assert list((tmp_path / "users").iterdir()) == []
    forwarding_users.main("leave", "stranger")
    assert setting.read_text() == before


@pytest.mark.parametrize("said", ["", "[]", "[{}]", "not json"])
def test_an_interface_that_tells_no_mtu_is_an_error(said: str) -> None:
    with pytest.raises(MeasurementError, match="MTU of eth0") as caught:
        mtu_of(fake_node({("ip",): Completed(0, said, "")}), "eth0")
    assert caught.value.kind == "network"


@pytest.mark.parametrize("numbers", [[], [1, 1], [0, 1], [1, 255]])
def test_members_that_would_share_a_subnet_are_refused(numbers: list[int]) -> None:
    node = fake_node()
    members = [Member(n, node, "10.99.0.1") for n in numbers]
    with pytest.raises(RequestError, match="a network of the nodes"), overlay.overlay(members):
        pytest.fail("made")
    assert node.ran == []


def test_a_node_that_translates_nothing_is_refused_before_anything_is_made() -> None:
    node = fake_node({("unshare",): Completed(127, "", "unshare: failed to execute: No such file or directory")})
    with raises(RequestError, r"fake translates no addresses: .*No such file", "apt-get install nftables"):
        nat.rules_for(node)
    with pytest.raises(RequestError), nat.nat([Member(1, node, "10.99.0.1")]):
        pytest.fail("made")
    assert {argv[0] for argv in node.ran} == {"unshare"}


def test_addresses_that_a_node_uses_are_refused() -> None:
    routes = Completed(0, json.dumps([{"dst": "default"}, {"dst": "172.30.0.0/16"}]), "")
    node = fake_node({("ip", "-json", "-4", "route"): routes})
    with pytest.raises(RequestError, match=r"a route to 172\.30\.0\.0/16"):
        nat.check_free(IPv4Network("172.30.1.0/24"), node)
    nat.check_free(IPv4Network("172.31.1.0/24"), node)
    assert (routes_of(node), routes_of(fake_node())) == (["172.30.0.0/16"], [])


@dataclass
class Script:
    """A process that says what it was given."""

    said: Sequence[str]
    tail: str = ""
    killed: bool = False

    def lines(self, timeout_s: float) -> Iterator[str]:
        assert timeout_s > 0
        yield from self.said

    def wait(self, timeout_s: float) -> int:
        raise NotImplementedError(timeout_s)

    def running(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True

    def output_tail(self) -> str:
        return self.tail


class Late(Script):
    def lines(self, timeout_s: float) -> Iterator[str]:
        yield from super().lines(timeout_s)
        raise CommandError(["ssh"], None, "")


class Player(FakeNode):
    """A node whose programs play what the test gives them."""

    def __init__(self, plays: Callable[[Sequence[str]], Script], answer: Completed | None = None) -> None:
        super().__init__(name="player")
        self.plays, self.answer = plays, answer or Completed(0, "", "")
        self.started: list[tuple[list[str], bytes, Script]] = []

    def run(self, argv: Sequence[str], **more: Any) -> Completed:
        super().run(argv, **more)
        return self.answer

    def start(self, argv: Sequence[str], *, stdin: bytes | IO[bytes] = b"") -> Process:
        script = self.plays(argv)
        assert isinstance(stdin, bytes)
        self.started.append((list(argv), stdin, script))
        return script


def answering(*errors: str | None) -> Callable[[Sequence[str]], Script]:
    """Listens, and reaches its peers one by one: None, or what hinders it."""

    def plays(argv: Sequence[str]) -> Script:
        if "connect" not in argv:
            return Script(["40001"])
        said = [{"error": error} if error else {"connect_s": 0.001, "from": "10.0.0.9"} for error in errors]
        return Script([json.dumps(line) for line in said])

    return plays


def ends(*nodes: Player) -> list[connectivity.End]:
    return [connectivity.End(f"n{n}", node, f"10.99.0.{n}") for n, node in enumerate(nodes, start=1)]


def test_a_program_that_says_nothing_is_no_connection() -> None:
    with pytest.raises(MeasurementError, match=r"n1 does not reach n2 .*: no answer"):
        connectivity.connectivity(ends(Player(answering()), Player(answering(None))))


def test_a_listener_lives_until_the_last_end_has_started_and_connected() -> None:
    """Beside other work each end may need all of its patience to start, and the first one waits for all others."""
    for count in (2, 5):
        nodes = [Player(answering(*[None] * (count - 1))) for _ in range(count)]
        connectivity.reach(ends(*nodes))
        for node in nodes:
            assert float(node.started[0][0][-1]) >= 2 * count * connectivity.PATIENCE_S


@pytest.mark.parametrize(
    ("slow", "message"),
    [
        ("connect", r"n1 does not reach n2 .*: its program gave no answer within"),
        ("listen", r"n1 cannot listen on 10\.99\.0\.1: its program gave no answer within 60 s"),
        (None, r"n1 does not reach n2 .*: Connection refused; the program that listened there had ended"),
    ],
)
def test_of_a_program_that_is_late_or_has_ended_no_firewall_is_blamed(slow: str | None, message: str) -> None:
    def plays(argv: Sequence[str]) -> Script:
        if slow:
            return Late([]) if slow in argv else Script(["40001"])
        return Script(["40001"], killed=True) if "listen" in argv else answering("Connection refused")(argv)

    with pytest.raises(MeasurementError, match=message) as caught:
        connectivity.reach(ends(Player(plays), Player(plays)))
    assert caught.value.kind == "network"
    assert "firewall" not in str(caught.value.remedy)


def test_one_that_cannot_listen_is_named_and_what_runs_is_ended() -> None:
    fine = Player(answering(None))
    mute = Player(lambda _: Script([], tail="OSError: Address already in use"))
    with pytest.raises(MeasurementError, match=r"n2 cannot listen on 10\.99\.0\.2") as caught:
        connectivity.connectivity(ends(fine, mute))
    assert "already in use" in caught.value.output_tail
    assert fine.started[0][2].killed


def test_rates_are_recorded_and_a_failure_of_iperf3_names_the_pair() -> None:
    report = {"end": {"sum_received": {"bits_per_second": 9.4e8}}}

    def plays(argv: Sequence[str]) -> Script:
        return Script(["Server listening on 5201"]) if "iperf3" in argv else answering(None)(argv)

    good, bad = (Player(plays, Completed(*said)) for said in ((0, json.dumps(report), ""), (1, "", "why")))
    pairs = connectivity.connectivity(ends(good, good), measure_s=1, link_bits_per_s=GBIT)
    assert [each.rate_bits_per_s for each in pairs] == [9.4e8, 9.4e8]
    with pytest.raises(MeasurementError, match=r"n1 to n2 \(10\.99\.0\.2\): iperf3 gives no result") as caught:
        connectivity.connectivity(ends(bad, good), measure_s=1)
    assert (caught.value.kind, caught.value.output_tail) == ("network", "why")


def test_an_overlay_that_is_faster_than_its_frames_allow_is_refused() -> None:
    source, target = ends(Player(answering()), Player(answering()))
    pair = connectivity.Pair(source, target, "10.99.0.1", 0.001)
    connectivity.check_rate(pair, 9.5e8, GBIT)
    connectivity.check_rate(pair, 9e10, None)
    connectivity.check_rate(pair, 1398 / 1514 * GBIT, GBIT, overlay.MOST_SHARE)
    with pytest.raises(MeasurementError, match=r"n1 to n2 \(10\.99\.0\.2\): .* more than it can carry"):
        connectivity.check_rate(pair, 0.955 * GBIT, GBIT, overlay.MOST_SHARE)


def test_a_server_that_does_not_listen_is_an_error() -> None:
    server = Player(lambda _: Script(["iperf3: error - unable to start listener"]))
    end = connectivity.End("n1", server, "a")
    with pytest.raises(MeasurementError, match="does not serve"):
        connectivity.rate_bits_per_s(end, end, 1)
    assert server.started[0][2].killed


def test_a_listener_whom_nobody_visits_ends_and_a_port_that_is_taken_is_said(node: LocalNode) -> None:
    assert node.start([*LISTEN, "0", "1", "0.2"], stdin=SOURCE).wait(60) == 0
    listener = node.start([*LISTEN, "0", "1", "60"], stdin=SOURCE)
    port = next(listener.lines(60))
    with pytest.raises(CommandError, match="in use"):
        node.run([*LISTEN, port, "1", "1"], stdin=SOURCE)
    listener.kill()
