"""Distributed jobs over a real lab network: what is recorded, and what happens when a rank or a link is lost."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from provisioning.nodes import WrappedNode
from provisioning.sites.lab import LabSite
from provisioning.targets import Choices
from scenarios.distributed import Distributed
from suite.interfaces import Instance, Node
from suite.job.distributed import ContainerNetwork, DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.records.record import Outcome, TrialRecord
from tests.integration.machine import (
    ENVELOPE,
    require,
    require_fast_guests,
    require_image,
    require_root,
    require_root_and_image,
    workers,
)
from tests.integration.test_run import NOTHING, RUNC, SMALL, measured, ours
from tests.integration.trials import run_plan
from tests.jobs import plan_of

pytestmark = pytest.mark.integration

Disturb = Callable[[Sequence[Instance]], None]
CPUS = ENVELOPE.cpus
SMALL_TALK_BYTES = 100_000
"""The heartbeat's and the rendezvous' share of an interface, and that of acknowledgements."""


def namespaces() -> list[str]:
    listed = json.loads(subprocess.run(["ip", "-json", "netns"], capture_output=True, check=True).stdout or "[]")
    return [each["name"] for each in listed if each["name"].startswith("vb-")]


def run_distributed(
    place: Path,
    target: str,
    disturb: Disturb,
    *,
    steps: int = 100,
    network: ContainerNetwork = "overlay",
    comm_timeout_s: int = 10,
) -> TrialRecord:
    """One trial of a server and two workers; ``disturb`` is called with the opened instances, in another thread."""
    require_root()
    require("engine", "runc")
    choices = Choices(require_image(), "runc", "tcg")
    lab = LabSpec(nodes=3, rate="1gbit")
    distributed = DistributedJob(
        strategy="parameter-server", workers=2, servers=1, network=network, lab=lab, comm_timeout_s=comm_timeout_s
    )
    plan = plan_of(
        scenario="distributed",
        targets=(target,),
        models=("resnet50",),
        profile="smoke",
        sizes=Sizes(batch=2, image_px=32, warmup_steps=1, steps=steps),
        envelope=Envelope(cpus=CPUS, memory_bytes=3 * GIB, threads=len(CPUS)),
        trial_timeout_s=400,
        distributed=distributed,
        **choices.layers().model_dump(),
    )

    @contextmanager
    def opened(trial: Trial) -> Iterator[Sequence[Instance]]:
        with LabSite(choices).opened(trial) as instances:
            thread = threading.Thread(target=disturb, args=(instances,))
            thread.start()
            yield instances
            thread.join()

    (record,) = run_plan(plan, Distributed(), opened, place)
    assert ours() == NOTHING
    assert namespaces() == []
    return record


def lab_node(instance: Instance) -> Node:
    """Where the instance's namespace is entered: right above this machine."""
    node = instance.node
    while isinstance(node, WrappedNode) and isinstance(node.parent, WrappedNode):
        node = node.parent
    return node


def disturbed(place: Path, act: Disturb) -> Outcome:
    """Act on the instances when the three ranks have found each other; the trial has failed within a minute then."""
    acted: list[float] = []

    def disturb(instances: Sequence[Instance]) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if sum(_connections(process) >= 2 for process in _alive(workers())) >= 3:
                act(instances)
                acted.append(time.monotonic())
                return
            time.sleep(0.2)

    outcome = run_distributed(place, "bare-metal", disturb).outcome
    assert acted
    assert time.monotonic() - acted[0] < 60
    assert outcome.status == "failed"
    return outcome


def _connections(process: psutil.Process) -> int:
    """Established ones in the process's own namespace."""
    try:
        lines = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return 0
    return sum(line.split()[3] == "01" for line in lines)


def wait_for_the_end() -> None:
    """Of the job; what the kernel has counted of it is there until the instances are closed."""
    deadline, started = time.monotonic() + 240, False
    while time.monotonic() < deadline and not (started and not workers()):
        started = started or bool(workers())
        time.sleep(0.2)


def _alive(found: list[psutil.Process]) -> Iterator[psutil.Process]:
    for process in found:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            yield process


def test_every_rank_is_recorded_and_the_overlay_carries_what_they_exchange(tmp_path: Path) -> None:
    seen: dict[int, int] = {}

    def watch(instances: Sequence[Instance]) -> None:
        """What VXLAN has carried, as the kernel counts it."""
        wait_for_the_end()
        told = lab_node(instances[1]).run(["ip", "-json", "-statistics", "link", "show", "dev", "flannel.1"])
        seen[0] = json.loads(told.stdout)[0]["stats64"]["tx"]["bytes"]

    record = run_distributed(tmp_path, "container", watch, steps=2, comm_timeout_s=60)
    assert record.outcome.status == "ok", record.outcome
    assert [(rank.rank, rank.role) for rank in record.ranks] == [(0, "server"), (1, "worker"), (2, "worker")]
    assert [rank.address for rank in record.ranks] == ["10.244.1.2", "10.244.2.2", "10.244.3.2"]
    worker = record.ranks[1]
    assert worker.sent_bytes is not None
    assert worker.sent_bytes > 2 * 25_000_000 * 4, "ResNet-50's gradients, every step"
    assert seen[0] > 0.8 * worker.sent_bytes
    for rank in record.ranks:
        assert [link.rank for link in rank.links] == [other for other in range(3) if other != rank.rank]
        # Of the link's 1 Gbit/s, less what the tunnel's headers take.
        assert all(0 < (link.rate_bits_per_s or 0) < 0.94e9 for link in rank.links)
    rates = [rank.throughput_per_s for rank in record.ranks[1:]]
    assert record.throughput_per_s == pytest.approx(sum(rate or 0.0 for rate in rates))
    assert {rank.environment.userland_sha256 for rank in record.ranks} == {require_image().digest}


SWITCH_RULES = (
    "add table bridge watch { chain forward { type filter hook forward priority 0 ; "
    "ip saddr 10.99.0.0/24 ip daddr 10.99.0.0/24 meta l4proto tcp counter ; "
    "udp dport 8472 counter ; ip saddr != 10.99.0.0/24 counter ; } ; }"
)


def counters(listed: str, unit: str) -> list[int]:
    """Of the rules in a table of nftables, in order."""
    rules = [each["rule"]["expr"] for each in json.loads(listed)["nftables"] if "rule" in each]
    return [part["counter"][unit] for rule in rules for part in rule if "counter" in part]


@pytest.mark.thorough
def test_the_bridge_is_translated_at_both_ends_and_carries_no_vxlan(tmp_path: Path) -> None:
    counted: dict[str, list[int]] = {}

    def watch(instances: Sequence[Instance]) -> None:
        """What the switch forwards, by its own packet filter; and whom the first worker's node has translated."""
        (switch,) = [name for name in namespaces() if name.endswith("-sw")]
        on_switch, node = ["nsenter", f"--net=/run/netns/{switch}", "--"], lab_node(instances[1])
        subprocess.run([*on_switch, "nft", SWITCH_RULES], check=True)
        wait_for_the_end()
        listed = [*on_switch, "nft", "-j", "list", "table", "bridge", "watch"]
        told = subprocess.run(listed, check=True, capture_output=True, text=True)
        counted["switch"] = counters(told.stdout, "bytes")
        counted["node"] = counters(node.run(["nft", "-j", "list", "table", "ip", "virtbench"]).stdout, "packets")

    record = run_distributed(tmp_path, "container", watch, steps=1, network="bridge", comm_timeout_s=60)
    assert record.outcome.status == "ok", record.outcome
    assert [rank.address for rank in record.ranks] == ["172.30.1.2", "172.30.2.2", "172.30.3.2"]
    assert [rank.node_address for rank in record.ranks] == ["10.99.0.1", "10.99.0.2", "10.99.0.3"]
    between_nodes, tunnelled, from_elsewhere = counted["switch"]
    exchanged = sum(rank.sent_bytes or 0 for rank in record.ranks)
    assert exchanged > 2 * 2 * 25_000_000 * 4, "gradients and variables of two workers"
    assert between_nodes > 0.8 * exchanged, "under the nodes' addresses, by TCP"
    assert (tunnelled, from_elsewhere) == (0, 0)
    to_server, _to_the_other_worker, published, left = counted["node"]
    assert min(to_server, published, left) > 0, "connections that a rule has translated"


@pytest.mark.parametrize(
    ("rank", "name"), [(0, "server (rank 0)"), pytest.param(2, "worker (rank 2)", marks=pytest.mark.thorough)]
)
def test_a_killed_rank_is_a_failed_record_that_names_it_within_a_minute(rank: int, name: str, tmp_path: Path) -> None:
    def kill(instances: Sequence[Instance]) -> None:
        namespace = lab_node(instances[rank]).run(["readlink", "/proc/self/ns/net"]).stdout.strip()
        (victim,) = [p for p in workers() if str(Path(f"/proc/{p.pid}/ns/net").readlink()) == namespace]
        victim.send_signal(signal.SIGKILL)

    outcome = disturbed(tmp_path, kill)
    assert outcome.kind == "killed"
    assert name in str(outcome.message)


def test_a_link_that_is_cut_is_a_failed_record_of_the_network_within_a_minute(tmp_path: Path) -> None:
    def pull(instances: Sequence[Instance]) -> None:
        lab_node(instances[2]).run(["ip", "link", "set", "dev", "eth0", "down"])

    assert disturbed(tmp_path, pull).kind == "network"


@pytest.mark.parametrize(
    ("strategy", "targets"),
    [
        ("split", ("bare-metal", "container")),
        pytest.param("split", ("vm", "container-vm"), marks=pytest.mark.thorough),
        pytest.param("all-reduce", ("vm", "container-vm"), marks=pytest.mark.thorough),
    ],
)
@pytest.mark.timeout(1200)
def test_a_gan_is_trained_by_two_instances_whose_interfaces_carry_what_its_shapes_predict(
    strategy: str, targets: Sequence[str], tmp_path: Path
) -> None:
    require_root_and_image()
    require("engine", "runc")
    if "vm" in targets:
        require_fast_guests()
    words = [word for target in targets for word in ("--target", target)]
    scenario = ("--scenario", "distributed", "--strategy", strategy, "--model", "dcgan", "--lab", "nodes=2,rate=1gbit")
    for record in measured(tmp_path / "run", *scenario, *words, *RUNC, *SMALL, "--batch", "16", timeout_s=1100):
        # Of a split GAN the first sends gradients of images, the second images.
        for rank in record.ranks:
            assert rank.sent_bytes is not None
            assert rank.sent_bytes <= (rank.interface_sent_bytes or 0) < 1.05 * rank.sent_bytes + SMALL_TALK_BYTES
        assert record.ranks[0].sent_bytes == pytest.approx(record.ranks[1].sent_bytes, rel=0.01)
        single = record.ranks[0].throughput_per_s or 0.0
        assert record.throughput_per_s == pytest.approx(single if strategy == "split" else 2 * single, rel=0.2)
    assert ours() == NOTHING
    assert namespaces() == []
