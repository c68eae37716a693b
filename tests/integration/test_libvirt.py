"""Guests of libvirt, on a daemon of the tests' own in a mount namespace, beside those that the suite boots itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from provisioning import ledger
from provisioning.engines.base import get_engine
from provisioning.engines.docker import STORE as DOCKER_STORE
from provisioning.engines.docker import docker_store
from provisioning.images.image import Image
from provisioning.layers.container import ContainerLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines import virtiofs
from provisioning.machines.accelerator import choose
from provisioning.machines.base import GuestSpec
from provisioning.machines.libvirt import LIBVIRT, URI_VARIABLE, virsh
from provisioning.machines.qemu import HUGE_PAGES
from provisioning.nodes import LocalNode, local_node
from provisioning.processes import carrying
from provisioning.volumes import MOUNT, Volume
from suite.errors import BenchError, MeasurementError
from suite.interfaces import Node
from suite.job.ablations import properties_of
from suite.job.envelope import Envelope
from tests.integration.bench import REPOSITORY, bench
from tests.integration.machine import ENVELOPE as WHOLE
from tests.integration.machine import check_commands, require, require_image, require_root, wait_for

pytestmark = pytest.mark.integration
# One CPU: one emulated CPU cannot lock up another while other tests run behind these.
ENVELOPE = WHOLE.model_copy(update={"cpus": WHOLE.cpus[:1]})
DAEMON = "/usr/sbin/libvirtd"
# The daemon's fixed places are directories of the tests' own, and so are the users: its QEMU driver wants one.
STARTS = """
set -e
cd "$1"
mkdir -p etc run lib log cache /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt
cat > etc/qemu.conf << end
user = "root"
group = "root"
security_driver = "none"
namespaces = []
stdio_handler = "file"
end
printf 'unix_sock_dir = "%s"\\nauth_unix_ro = "none"\\nauth_unix_rw = "none"\\n' "$1" > etc/libvirtd.conf
for file in passwd group; do
    cp "/etc/$file" "$file"
    grep -q ^libvirt-qemu: "$file" || echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >> "$file"
    mount --bind "$file" "/etc/$file"
done
mount --bind etc /etc/libvirt
mount --bind run /run/libvirt
for name in lib log cache; do mount --bind "$name" "/var/$name/libvirt"; done
exec "$2" --config etc/libvirtd.conf --pid-file "$1/pid"
"""
OPENS = """
import sys, time
from provisioning.images.image import current
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import GuestSpec
from provisioning.machines.libvirt import LIBVIRT
from provisioning.nodes import local_node
from suite.job.envelope import Envelope

envelope, image = Envelope.model_validate_json(sys.argv[1]), current()
layer = VmLayer(LIBVIRT, GuestSpec(image, sys.argv[2], envelope))
with local_node(envelope.cpus, str(image.tree)) as host, layer.opened(host):
    print("open", flush=True)
    time.sleep(600)
"""


class Daemon:
    """A libvirtd that can be killed and started again, with what it keeps in ``place``."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.uri = f"qemu+unix:///system?socket={place}/libvirt-sock"

    def start(self) -> None:
        argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", STARTS, "sh", str(self.place), DAEMON]
        said, asked = self.place / "said", [*virsh(self.uri), "version"]
        with said.open("w") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        wait_for("libvirt", lambda: not subprocess.run(asked, capture_output=True).returncode, said.read_text)

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    require_root()
    for program in (DAEMON, "virsh"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (make setup-test)")
    # Not below pytest's own directory: a socket's path has 108 bytes at most.
    running = Daemon(Path(tempfile.mkdtemp(prefix="vb-libvirt-", dir="/var/tmp")))
    running.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(URI_VARIABLE, running.uri)
            yield running
    finally:
        running.end()
        shutil.rmtree(running.place)


@pytest.fixture(scope="module")
def image() -> Image:
    require("target", "vm")
    return require_image()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared")
    (place / "file").write_text("given\n")
    return place


@pytest.fixture(scope="module")
def host(image: Image, shared: Path) -> Iterator[LocalNode]:
    with local_node(ENVELOPE.cpus, str(image.tree), str(shared)) as node:
        yield node


@pytest.fixture(scope="module")
def guest(request: pytest.FixtureRequest, image: Image, host: LocalNode, shared: Path) -> Iterator[Node]:
    """One guest for all that is tested in it, with a disk that forgets, a limit and a shared directory."""
    request.getfixturevalue("daemon")
    docker_store(image, print)
    volume = None if virtiofs.hindrance(image.tree) else Volume(shared)
    properties = properties_of("disk-limit")
    spec = GuestSpec(image, choose("auto")[0], ENVELOPE, store=DOCKER_STORE, volume=volume, properties=properties)
    with VmLayer(LIBVIRT, spec).opened(host) as node:
        yield node


def groups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob("**/machine*/*qemu*") if path.is_dir()}


def domains() -> list[str]:
    listed = subprocess.run([*virsh(), "list", "--all", "--name"], check=True, capture_output=True, text=True).stdout
    return listed.split()


def test_a_guest_keeps_the_contract_of_a_node_and_carries_a_container(guest: Node, image: Image) -> None:
    check_commands(guest)
    assert guest.run(["sha256sum", "/opt/virtbench/manifest.tsv"]).stdout.split()[0] == image.digest
    assert guest.run(["nproc"]).stdout.strip() == str(len(ENVELOPE.cpus))
    assert guest.run(["cat", HUGE_PAGES]).stdout == Path(HUGE_PAGES).read_text()
    # The guest reaches neither the host behind its gateway nor anything else.
    assert guest.run(["busybox", "nc", "-w", "2", "10.0.2.2", "22"], check=False).returncode != 0
    assert guest.facts["disk_limit_bytes_per_s"] == 32 << 20
    assert guest.facts["host_cpus"] == list(ENVELOPE.cpus)
    assert guest.facts["disk"] == "virtio-blk raw cache=none aio=native"
    if not virtiofs.hindrance(image.tree):
        assert guest.run(["cat", f"{MOUNT}/file"]).stdout == "given\n"
    with ContainerLayer(get_engine("runc"), image.digest, ENVELOPE.memory_bytes).opened(guest) as inside:
        assert inside.run(["sha256sum", "/opt/virtbench/manifest.tsv"]).stdout.split()[0] == image.digest


@pytest.mark.usefixtures("guest")
def test_libvirt_keeps_every_thread_of_a_guest_in_the_envelope(host: LocalNode) -> None:
    (process,) = (each for each in carrying(host.token) if each.name().startswith("qemu-system"))
    threads = [Path(f"/proc/{process.pid}/task/{thread.id}") for thread in process.threads()]
    assert {cpu for thread in threads for cpu in os.sched_getaffinity(int(thread.name))} == set(ENVELOPE.cpus)
    assert "/machine" in Path(f"/proc/{process.pid}/cgroup").read_text()
    assert process.uids().real == 0


@pytest.mark.usefixtures("daemon")
def test_a_domain_that_libvirt_refuses_is_reported_in_its_words(image: Image) -> None:
    before, missing = groups(), Envelope(cpus=(8191,), memory_bytes=ENVELOPE.memory_bytes, threads=1)
    with local_node(ENVELOPE.cpus, str(image.tree)) as host:
        layer = VmLayer(LIBVIRT, GuestSpec(image, "tcg", missing))
        with pytest.raises(MeasurementError) as refused, layer.opened(host):
            pass
    assert "virsh ended with exit status 1: error: Unable to write" in refused.value.message
    assert "cpuset" in refused.value.output_tail
    assert groups() == before


def test_a_daemon_that_does_not_run_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("virsh") is None:
        pytest.skip("virsh is not installed (make setup-test)")
    monkeypatch.setenv(URI_VARIABLE, "qemu+unix:///system?socket=/nosuch/libvirt-sock")
    with local_node((), None) as host, pytest.raises(BenchError, match="No such file or directory") as refused:
        LIBVIRT.version(host)
    assert "systemctl start libvirtd" in str(refused.value.remedy)


@pytest.mark.thorough
@pytest.mark.usefixtures("image")
@pytest.mark.parametrize("killed", ["bench", "bench and the daemon"])
def test_kill_9_leaves_no_domain_process_or_control_group(daemon: Daemon, killed: str) -> None:
    before, running = groups(), set(domains())
    accelerator, _ = choose("auto")
    words = [sys.executable, "-c", OPENS, ENVELOPE.model_dump_json(), accelerator]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=REPOSITORY) as opening:
        assert opening.stdout is not None
        assert opening.stdout.readline() == b"open\n"
        (name,) = set(domains()) - running
        opening.kill()
    if killed != "bench":
        daemon.end(signal.SIGKILL)
    assert f"machine libvirt:{name}@{daemon.uri}" in ledger.clean()
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [line for line in lines if name in line] == []
    assert groups() == before
    if killed != "bench":
        daemon.start()
    assert set(domains()) <= running


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("daemon", "image")
def test_libvirts_guests_stand_beside_those_of_qemu_in_the_same_block(tmp_path: Path) -> None:
    words = "run --target bare-metal --target vm --target container-vm --engine runc --ablate libvirt --profile smoke"
    sizes = ("--model", "alexnet", "--cpus", "1", "--out", str(tmp_path / "run"), "--json")
    trials = json.loads(bench(*words.split(), *sizes, timeout_s=1700).stdout)["trials"]
    assert sum("libvirt" in trial for trial in trials) == 2
    bench("audit", str(tmp_path / "run"))
