"""Jobs over a real lab network: what is recorded, a lost rank or link, and a generator that is asked over HTTP."""

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from provisioning.lab.netns import NETNS
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
from tests.integration.bench import SMALL, bench, inside, measured, on, run_plan, some
from tests.integration.machine import ENVELOPE, require, require_fast_guests, require_image, wait_for, workers
from tests.jobs import plan_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]

Disturb = Callable[[Sequence[Instance]], None]
CPUS = ENVELOPE.cpus
SMALL_TALK_BYTES = 100_000
"""The heartbeat's and the rendezvous' share of an interface, and that of acknowledgements."""


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
    assert list(NETNS.glob("vb-*")) == []
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
        wait_for("connected ranks", lambda: sum(map(_is_connected, workers())) >= 3, workers, 240)
        act(instances)
        acted.append(time.monotonic())

    outcome = run_distributed(place, "bare-metal", disturb).outcome
    assert acted
    assert time.monotonic() - acted[0] < 60
    assert outcome.status == "failed"
    return outcome


def _is_connected(process: psutil.Process) -> bool:
    """Return whether a process that runs has two established connections in its own namespace."""
    try:
        lines = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        runs = process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False
    return runs and sum(line.split()[3] == "01" for line in lines) >= 2


def test_every_rank_is_recorded_and_the_overlay_carries_what_they_exchange(tmp_path: Path) -> None:
    record, tunnelled = exchanged(tmp_path, "overlay", steps=2)
    assert [(rank.rank, rank.role) for rank in record.ranks] == [(0, "server"), (1, "worker"), (2, "worker")]
    assert [rank.address for rank in record.ranks] == ["10.244.1.2", "10.244.2.2", "10.244.3.2"]
    sent_bytes = some(record.ranks[1].sent_bytes)
    assert sent_bytes > 2 * 25_000_000 * 4, "ResNet-50's gradients, every step"
    assert tunnelled > 0.8 * sent_bytes
    for rank in record.ranks:
        assert [link.rank for link in rank.links] == [other for other in range(3) if other != rank.rank]
        # Of the link's 1 Gbit/s, less what the tunnel's headers take.
        assert all(0 < (link.rate_bits_per_s or 0) < 0.94e9 for link in rank.links)
    rates = [rank.throughput_per_s for rank in record.ranks[1:]]
    assert record.throughput_per_s == pytest.approx(sum(rate or 0.0 for rate in rates))
    assert {rank.environment.userland_sha256 for rank in record.ranks} == {require_image().digest}


@pytest.mark.thorough
def test_ranks_behind_translation_are_recorded_and_nothing_is_tunnelled(tmp_path: Path) -> None:
    record, tunnelled = exchanged(tmp_path, "bridge", steps=1)
    assert [rank.address for rank in record.ranks] == ["172.30.1.2", "172.30.2.2", "172.30.3.2"]
    assert [rank.node_address for rank in record.ranks] == ["10.99.0.1", "10.99.0.2", "10.99.0.3"]
    assert sum(rank.sent_bytes or 0 for rank in record.ranks) > 2 * 2 * 25_000_000 * 4, "of two workers"
    assert tunnelled == 0


def exchanged(place: Path, network: ContainerNetwork, steps: int) -> tuple[TrialRecord, int]:
    """Return the record of a trial in containers, and how many bytes of its first worker the kernel has tunnelled."""
    sent: list[int] = []

    def watch(instances: Sequence[Instance]) -> None:
        wait_for("ranks", workers, workers, 240)
        wait_for("their end", lambda: not workers(), workers, 240)
        # What the kernel has counted of the job is there until the instances are closed.
        listed = lab_node(instances[1]).run(["ip", "-json", "-statistics", "link", "show", "type", "vxlan"]).stdout
        sent.extend(link["stats64"]["tx"]["bytes"] for link in json.loads(listed or "[]") if link)

    record = run_distributed(place, "container", watch, steps=steps, network=network, comm_timeout_s=60)
    assert record.outcome.status == "ok", record.outcome
    return record, sum(sent)


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
        ("split", ("vm", "container-vm")),
        ("all-reduce", ("vm", "container-vm")),
    ],
)
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_gan_is_trained_by_two_instances_whose_interfaces_carry_what_its_shapes_predict(
    strategy: str, targets: Sequence[str], tmp_path: Path
) -> None:
    require("engine", "runc")
    if "vm" in targets:
        require_fast_guests()
    scenario = ("--scenario", "distributed", "--strategy", strategy, "--model", "dcgan", "--lab", "nodes=2,rate=1gbit")
    for record in measured(tmp_path / "run", *scenario, *on(*targets), *SMALL, "--batch", "16", timeout_s=1100):
        # Of a split GAN the first sends gradients of images, the second images.
        for rank in record.ranks:
            sent_bytes = some(rank.sent_bytes)
            assert sent_bytes <= some(rank.interface_sent_bytes) < 1.05 * sent_bytes + SMALL_TALK_BYTES
        assert record.ranks[0].sent_bytes == pytest.approx(record.ranks[1].sent_bytes, rel=0.01)
        single = record.ranks[0].throughput_per_s or 0.0
        assert record.throughput_per_s == pytest.approx(single if strategy == "split" else 2 * single, rel=0.2)
    bench("audit", str(tmp_path / "run"))
    assert list(NETNS.glob("vb-*")) == []


def served(out: Path, *targets: str) -> list[TrialRecord]:
    found = measured(out, "--scenario", "serve", "--profile", "smoke", "--requests", "20", *on(*targets))
    assert list(NETNS.glob("vb-*")) == []
    for record in found:
        latencies = [record.metrics[f"latency-p{percent}"].value for percent in (50, 95)]
        assert 0 < latencies[0] <= latencies[1]
        assert some(record.throughput_per_s) > 0
        opened = record.metrics["cold-start-with-opening"].value - record.metrics["cold-start"].value
        assert 0 < opened < (record.open_s or 0) + 0.001
        assert [rank.role for rank in record.ranks] == ["server", "client"]
        cpus = {len(rank.environment.cpus or []) for rank in record.ranks}
        assert cpus == {max(1, len(record.job.envelope.cpus) // 2)}, "each has its share"
    return found


def test_bare_metal_and_a_container_are_served_over_the_lab(tmp_path: Path) -> None:
    require("engine", "runc")
    found = served(tmp_path / "run", "bare-metal", "container")
    assert {record.target for record in found} == {"bare-metal", "container"}
    addresses = [{rank.address for rank in record.ranks} for record in found]
    assert addresses[0].isdisjoint(addresses[1]), "containers have addresses of their own"


def test_a_server_of_the_users_own_is_asked_on_bare_metal_and_in_a_container(tmp_path: Path) -> None:
    require("engine", "runc")
    (directory := tmp_path / "own").mkdir()
    shutil.copy(Path(__file__).parents[1] / "stand_ins/model_server.py", directory)
    served = ("--scenario", "serve", "--profile", "smoke", "--port", "8000", "--api", "openai", "--max-tokens", "4")
    load = ("--requests", "20", "--rates", "5", "--command", "python model_server.py 8000")
    found = measured(
        tmp_path / "run", *served, *load, "--command-files", str(directory), *on("bare-metal", "container")
    )
    assert list(NETNS.glob("vb-*")) == []
    for record in found:
        assert record.metrics["first-token-p50"].value >= 20
        assert record.metrics["per-token-p50"].value == pytest.approx(20, rel=0.2)
        assert record.metrics["path-first-token-p50"].value < 20
        assert (record.details["ended_by"], record.details["processes_left"]) == ("TERM", [])
    assert len({record.answers_sha256 for record in found} - {None}) == 1, "the same answers"
    bench("audit", str(tmp_path / "run"))


@pytest.mark.parametrize("target", ["vm", "container-vm"])
def test_a_guest_is_served(target: str, tmp_path: Path) -> None:
    require_fast_guests()
    (record,) = served(tmp_path / "run", target)
    assert inside(record)
