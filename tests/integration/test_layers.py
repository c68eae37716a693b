"""The contract of a node, held by every real layer on every real node; and what each layer must enforce."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from provisioning import ledger
from provisioning.cgroup import limits as cgroups
from provisioning.engines.base import get_engine
from provisioning.engines.docker import STORE as DOCKER_STORE
from provisioning.engines.docker import docker_store
from provisioning.engines.runc import RUN
from provisioning.images.image import current
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import UserlandLayer
from provisioning.layers.vm import VmLayer
from provisioning.machines import virtiofs
from provisioning.machines.accelerator import choose
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import HUGE_PAGES, QEMU
from provisioning.machines.qemu_command import topology_on
from provisioning.nodes import LocalNode, WrappedNode, local_node
from provisioning.paths import home
from provisioning.volumes import MOUNT, Volume
from scenarios.job import clean_environment
from suite.errors import CommandError, RequestError
from suite.interfaces import Layer, Node, open_stack
from suite.job.ablations import properties_of
from suite.records.environment import Engine
from suite.records.fields import checked_part
from suite.registries import ENGINES
from tests.integration.machine import ENVELOPE as WHOLE
from tests.integration.machine import check_commands, require, require_root, require_root_and_image, wait_for
from worker.spec import CommandRequest

pytestmark = pytest.mark.integration

# One CPU: fewer than the machine has, and one emulated CPU cannot lock up another while other tests run behind these.
ENVELOPE = WHOLE.model_copy(update={"cpus": WHOLE.cpus[:1]})

# A cluster has tests of its own.
LOCAL_ENGINES = tuple(name for name in ENGINES if not get_engine(name).site)
MOMENTS = 12
OPENS = """
import sys, time, cli
from provisioning.engines.base import get_engine
from provisioning.layers.container import ContainerLayer
from provisioning.nodes import local_node

cli._end_in_order_on_signals()
engine, tree, digest, memory_bytes = sys.argv[1:]
with local_node((0,), tree) as host:
    print("begins", flush=True)
    with ContainerLayer(get_engine(engine), digest, int(memory_bytes)).opened(host):
        print("open", flush=True)
        time.sleep(60)
"""
# A container in a guest is a composition: one engine is tried there by make test, the others by make test-all.
IN_GUEST = (
    pytest.param(f"vm/{name}", marks=() if name == "runc" else pytest.mark.thorough)
    for name in LOCAL_ENGINES
    if get_engine(name).in_guests
)
STACKS = ("bare-metal", *LOCAL_ENGINES, "vm", *IN_GUEST)


@pytest.fixture(scope="module")
def docker_socket(docker_host: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", docker_host)
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guest is given by virtiofs. Its name ends what is no quoted option."""
    place = tmp_path_factory.mktemp("shared") / "a,b"
    place.mkdir()
    (place / "file").write_text("given\n")
    return place


@pytest.fixture(scope="module")
def guest(shared: Path) -> Iterator[Node]:
    """One guest for all that is tested in it: on an emulated CPU a boot takes ten seconds."""
    image = require_root_and_image()
    require("target", "vm")
    docker_store(image, print)
    volume = None if virtiofs.hindrance(image.tree) else Volume(shared)
    properties = properties_of("disk-limit")
    spec = GuestSpec(image, choose("auto")[0], ENVELOPE, store=DOCKER_STORE, volume=volume, properties=properties)
    data = str(shared) if volume else None
    with local_node(ENVELOPE.cpus, str(image.tree), data) as host, VmLayer(QEMU, spec).opened(host) as node:
        yield node


@pytest.fixture(scope="module", params=STACKS)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    where, _, what = str(request.param).rpartition("/")
    with ExitStack() as stack:
        if "vm" in (where, what):
            base: Node = request.getfixturevalue("guest")
        else:
            base = stack.enter_context(local_node(ENVELOPE.cpus, str(require_root_and_image().tree)))
        if what == "vm":
            yield base
        elif what == "bare-metal":
            yield stack.enter_context(UserlandLayer(ENVELOPE).opened(base))
        else:
            yield stack.enter_context(_container(request, base, what))


@contextmanager
def _container(request: pytest.FixtureRequest, base: Node, engine: str, runtime: str | None = None) -> Iterator[Node]:
    image = current()
    if base.local and engine == "docker":
        request.getfixturevalue("docker_socket")
        assert isinstance(base, LocalNode)
        get_engine(engine).load(base, image.digest, image.file("oci.tar"))
    elif base.local:
        require("engine", engine)
    chosen = get_engine(engine).run_by(runtime) if runtime else get_engine(engine)
    with open_stack(base, [ContainerLayer(chosen, image.digest, ENVELOPE.memory_bytes)]) as inside:
        yield inside


def test_a_guest_has_the_huge_pages_and_the_topology_of_its_host(guest: Node) -> None:
    outside, inside = (node.run(["cat", HUGE_PAGES], check=False).stdout for node in (host_of(guest), guest))
    assert inside == outside, "the word in brackets is the mode"
    own = topology_on(host_of(guest), ENVELOPE.cpus)
    seen = topology_on(guest, range(len(ENVELOPE.cpus)))
    assert (seen.sockets, seen.cores, seen.threads) == (own.sockets, own.cores, own.threads)
    assert "transparent_hugepage=" in guest.run(["cat", "/proc/cmdline"]).stdout


def host_of(guest: Node) -> Node:
    assert isinstance(guest, WrappedNode)
    return guest.parent


def test_commands_pass_as_they_are_with_their_output_by_lines_until_their_time_limit(node: Node) -> None:
    check_commands(node)
    with pytest.raises(CommandError, match="time limit"):
        node.run(["sleep", "60"], timeout_s=1.5)
    process = node.start(["sh", "-c", "echo first; sleep 0.2; echo second"])
    assert list(process.lines(60.0)) == ["first", "second"]
    assert process.wait(60.0) == 0


def test_the_tree_is_the_image_and_read_only_and_the_cpus_are_those_of_the_envelope(node: Node) -> None:
    assert node.run(["sha256sum", "/opt/virtbench/manifest.tsv"]).stdout.split()[0] == current().digest
    assert node.run(["touch", "/opt/virtbench/mark"], check=False).returncode != 0
    assert int(node.run(["nproc"]).stdout) == len(ENVELOPE.cpus)


FACTS = """
import getpass, json, os, resource, shutil, socket, subprocess

name = socket.gethostname()
limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE)
os.mkdir("out")
print(json.dumps({
    "user": getpass.getuser(),
    "own name": bool(socket.getaddrinfo(name, None)),
    "interfaces": "lo" in [name for _, name in socket.if_nameindex()],
    "limits": [resource.getrlimit(kind) for kind in limits],
    "shared memory": shutil.disk_usage("/dev/shm").total,
    "temporary": shutil.disk_usage("/tmp").total,
    "python": subprocess.check_output(["sh", "-c", "python -c 'print(6 * 7)'; basename $(which torchrun)"], text=True),
    "umask": os.umask(0o22),
    "home": os.environ["HOME"],
    "variables": sorted(os.environ),
}))
raise SystemExit(9)
"""


def test_a_command_finds_the_same_surroundings_in_every_stack(node: Node) -> None:
    request = CommandRequest(
        argv=("python", "-c", FACTS),
        threads=1,
        directory=None,
        throughput=None,
        tmpfs_bytes=ENVELOPE.tmpfs_bytes,
        scratch="/tmp",
    )
    interpreter, python_path = node.python
    argv = [*clean_environment(1, "reference", PYTHONPATH=python_path), interpreter, "-m", "worker", "--command"]
    ended = node.run(argv, stdin=request.encoded(), check=False)
    events = {event["event"]: event for event in map(json.loads, ended.stdout.splitlines())}
    counted = {"cpu-count": str(os.cpu_count())} if os.cpu_count() != len(ENVELOPE.cpus) else {}
    own_kernel = "vm" in node.name or node.facts.get("seccomp") == "sentry"  # it counts the CPUs that it was given
    assert events["environment"]["substitutes"] == ({} if own_kernel else counted)
    printed = events["error"]["message"].partition("it printed last: ")[2]
    half = ENVELOPE.memory_bytes // 2
    assert json.loads(next(line for line in ended.stderr.splitlines() if line.startswith("{"))) == {
        "user": "virtbench",
        "own name": True,
        "interfaces": True,
        "limits": [[most, most] for most in (16384, 16384, 8 << 20, 0)],
        "shared memory": half,
        "temporary": half,
        "python": "42\ntorchrun\n",
        "umask": 0o22,
        "home": "/tmp",
        "variables": sorted(
            ["PYTHON_CPU_COUNT", *(word.partition("=")[0] for word in argv[2:-4] if not word.startswith("PYTHONPATH"))]
        ),
    }, printed


@pytest.mark.parametrize("what", ["bare-metal", *LOCAL_ENGINES, "vm"])
def test_a_layer_opens_in_a_session_that_hides_its_files_from_others(request: pytest.FixtureRequest, what: str) -> None:
    image, memory_bytes = require_root_and_image(), ENVELOPE.memory_bytes
    mask = os.umask(0o077)
    try:
        with local_node(ENVELOPE.cpus, str(image.tree)) as host, ExitStack() as stack:
            if what == "bare-metal":
                inside = stack.enter_context(UserlandLayer(ENVELOPE).opened(host))
            elif what == "vm":
                require("target", "vm")
                guest = GuestSpec(image, choose("auto")[0], ENVELOPE)
                inside = stack.enter_context(VmLayer(QEMU, guest).opened(host))
            else:
                inside = stack.enter_context(_container(request, host, what))
            if what != "charliecloud":  # it sets no limit
                assert abs(_memory_bytes(inside) - memory_bytes) < memory_bytes / 5
            assert int(inside.run(["nproc"]).stdout) == len(ENVELOPE.cpus)
    finally:
        os.umask(mask)


def test_a_container_has_its_own_processes_and_no_privileges(node: Node) -> None:
    if "container_engine" not in node.facts:
        pytest.skip("no container in this stack")
    # One command: each takes docker five seconds in an emulated guest.
    asked = "cat /proc/self/status; echo --; cat /proc/1/comm; echo --; hostname; echo --; cat /proc/net/dev"
    said = node.run(["sh", "-c", asked]).stdout.split("--\n")
    status = dict(line.split(":\t", 1) for line in said[0].splitlines())
    assert int(status["CapEff"], 16) == 0
    if checked_part(Engine, node.facts["container_engine"]).network == "shared":  # its program makes few namespaces
        assert status["NoNewPrivs"] == "1"
        assert 0 not in map(int, status["Uid"].split())
        assert node.run(["readlink", "/proc/self/ns/user"]).stdout != f"{Path('/proc/self/ns/user').readlink()}\n"
        return
    assert int(status["CapBnd"], 16) == 0
    if "seccomp" not in node.facts:  # gVisor shows neither
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
    assert said[1].strip() == "sleep"
    assert said[2].startswith("virtbench-")
    devices = re.findall(r"^ *(\S+):", said[3], re.MULTILINE)
    assert [name for name in devices if name != "lo" and not name.startswith(("tunl", "sit", "ip6"))] == []


def test_memory_beyond_the_limit_is_not_given(node: Node) -> None:
    if node.name == "vm":
        pytest.skip("of a guest the machine's memory is the limit, and ending its processes could end sshd")
    hungry = f"x = bytearray({ENVELOPE.memory_bytes + (1 << 28)}); print(len(x))"
    assert node.run(["python3", "-c", f"import os; {hungry}"], check=False, timeout_s=240).returncode != 0


@pytest.mark.parametrize("what", ["bare-metal", *LOCAL_ENGINES])
def test_limits_that_are_switched_are_those_of_the_kernel(request: pytest.FixtureRequest, what: str) -> None:
    image = require_root_and_image()
    if what == "docker":
        request.getfixturevalue("docker_socket")
    elif what != "bare-metal":
        require("engine", what)

    def layer(ablation: str) -> Layer:
        if what == "bare-metal":
            return UserlandLayer(ENVELOPE, properties=properties_of(ablation))
        return ContainerLayer(get_engine(what), image.digest, ENVELOPE.memory_bytes, properties=properties_of(ablation))

    with local_node(ENVELOPE.cpus, str(image.tree)) as host:
        if what == "docker":
            get_engine(what).load(host, image.digest, image.file("oci.tar"))
        with layer("memory-limit").opened(host) as inside:
            assert _memory_bytes(inside) > 1.02 * ENVELOPE.memory_bytes
            assert "disk_limit_bytes_per_s" not in inside.facts
        if what != "bare-metal" and get_engine(what).hindrance(properties_of("disk-limit")):
            return
        with layer("disk-limit").opened(host) as inside:
            assert _memory_bytes(inside) == ENVELOPE.memory_bytes
            assert inside.facts["disk_limit_bytes_per_s"] == 32 << 20
            large = inside.run(["find", "/usr", "/opt", "-size", "+90M", "-name", "*.so*"]).stdout.split()[0]
            assert _read_direct_s(inside, large) > 1.0
        with layer("disk-iops").opened(host) as inside:
            assert (inside.facts["disk_limit_bytes_per_s"], inside.facts["disk_limit_iops"]) == (None, 100)
            assert _read_direct_s(inside, large) > 0.3


def _memory_bytes(node: Node) -> int:
    """As the worker's attestation sees it."""
    asked = "from worker.environment import memory; print(memory()[0])"
    python, path = node.python
    return int(node.run(["env", f"PYTHONPATH={path}", python, "-c", asked]).stdout)


def _read_direct_s(node: Node, file: str) -> float:
    """How long it takes to read 64 MiB, past every page cache: twice what the limit lets through in a second."""
    begin_s = time.monotonic()
    node.run(["dd", f"if={file}", "of=/dev/null", "bs=1M", "count=64", "iflag=direct"])
    return time.monotonic() - begin_s


def test_a_guest_has_another_kernel_one_way_in_and_disks_that_qemu_throttles(guest: Node) -> None:
    assert guest.facts["disk_limit_bytes_per_s"] == 32 << 20
    assert _read_direct_s(guest, "/dev/vda") > 1.0
    with local_node((), None) as host:
        assert guest.run(["uname", "-r"]).stdout != host.run(["uname", "-r"]).stdout
    assert guest.facts["accelerator"] in ("kvm", "tcg")
    # restrict=on: the guest reaches neither the host behind its gateway nor anything else.
    assert guest.run(["busybox", "nc", "-w", "2", "10.0.2.2", "22"], check=False).returncode != 0


def test_a_shared_directory_is_read_in_the_guest_and_written_nowhere(guest: Node, shared: Path) -> None:
    if hindrance := virtiofs.hindrance(current().tree):
        pytest.skip(hindrance[0])
    assert guest.run(["cat", f"{MOUNT}/file"]).stdout == "given\n"
    assert f" {MOUNT} ro," in guest.run(["cat", "/proc/self/mountinfo"]).stdout
    (line,) = (line for line in guest.run(["mount"]).stdout.splitlines() if f" {MOUNT} " in line)
    assert f"{virtiofs.TAG} on {MOUNT} type virtiofs" in line
    # Whoever is root in a guest can mount it anew: it is read-only outside too.
    guest.run(["mount", "-o", "remount,rw", MOUNT])
    assert guest.run(["touch", f"{MOUNT}/new"], check=False).returncode != 0
    guest.run(["mount", "-o", "remount,ro", MOUNT])
    assert [path.name for path in shared.iterdir()] == ["file"]
    assert guest.backing is not None
    assert guest.backing.data == str(shared)


def test_a_group_of_another_machine_is_removed_by_a_command_with_all_that_is_in_it() -> None:
    require_root()
    before, name = _groups(), f"virtbench-{os.getpid():012x}"
    with local_node(ENVELOPE.cpus, None) as host:
        member = host.start([*cgroups.create(host, name, ENVELOPE), "sleep", "1000"])
        assert _groups() != before
        host.run(cgroups.remove_argv(name))
        assert _groups() == before
        assert member.wait(5.0) == -signal.SIGKILL


@pytest.mark.parametrize("shared", ["", 'utsns = "host"'])
def test_podman_gives_a_container_its_namespaces_and_limits_whatever_its_configuration_shares(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containers.conf of podman's own image, in which it cannot start a container of the suite by itself."""
    image = require_root_and_image()
    require("engine", "podman")
    names = ("netns", "userns", "ipcns", "cgroupns", "pidns")
    lines = [shared, *(f'{name} = "host"' for name in names), 'cgroups = "disabled"', 'tz = "Asia/Tokyo"']
    lines += ['env = ["OMP_NUM_THREADS=1"]', 'umask = "0077"', "no_hosts = true", 'annotations = ["x=y"]']
    (tmp_path / "containers.conf").write_text("\n".join(["[containers]", *lines, ""]))
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    layer = ContainerLayer(get_engine("podman"), image.digest, ENVELOPE.memory_bytes)
    namespaces = ["readlink", *(f"/proc/self/ns/{name}" for name in ("uts", "ipc", "pid", "cgroup", "net"))]
    with local_node(ENVELOPE.cpus, str(image.tree)) as host, layer.opened(host) as node:
        assert set(node.run(namespaces).stdout.split()).isdisjoint(host.run(namespaces).stdout.split())
        assert _memory_bytes(node) == ENVELOPE.memory_bytes
        assert node.run(["date", "+%Z"]).stdout == "UTC\n", "no file of the image is hidden by one of the zone"


def test_the_groups_of_a_container_that_podman_forgets_are_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    root, number, program = Path("/sys/fs/cgroup"), secrets.token_hex(32), tmp_path / "podman"
    program.write_text(f'#!/bin/sh\n[ "$1" != inspect ] || echo {number}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    group = (root / "pids" if (root / "pids").is_dir() else root) / f"libpod_parent/libpod-{number}"
    (group / "below").mkdir(parents=True)
    get_engine("podman").remove_local("virtbench-0123456789ab")
    assert not group.exists()


@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=() if name in ("podman", "runc") else pytest.mark.thorough) for name in LOCAL_ENGINES],
)
def test_ctrl_c_while_a_container_starts_leaves_nothing(request: pytest.FixtureRequest, engine: str) -> None:
    """A client that is cut short leaves what its engine knows nothing of: the moment decides."""
    image = require_root_and_image()
    with local_node(ENVELOPE.cpus, str(image.tree)) as host, _container(request, host, engine):
        pass
    before = _of_engines()
    words = [sys.executable, "-c", OPENS, engine, str(image.tree), image.digest, str(ENVELOPE.memory_bytes)]
    _, started_s, opened_s = _interrupted(words, None)
    for moment in range(MOMENTS):
        status, _, _ = _interrupted(words, (opened_s - started_s) * moment / MOMENTS)
        assert status == -signal.SIGINT
    _wait_until_only(before)
    assert [entry for entry in ledger.living() if entry.what.startswith(f"{engine}:")] == []


@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("runtime", "program", "kernel"), [("again", "runc", None), ("sandbox", "runsc", "sentry")])
def test_an_engine_runs_a_container_by_the_oci_runtime_that_it_is_given(
    request: pytest.FixtureRequest,
    oci_runtimes: dict[str, str],
    engine: str,
    runtime: str,
    program: str,
    kernel: str | None,
) -> None:
    tree = str(require_root_and_image().tree)
    chosen = runtime if engine == "docker" else oci_runtimes[runtime]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (make setup-test)")
    before = _of_engines()
    with local_node(ENVELOPE.cpus, tree) as host, _container(request, host, engine, chosen) as inside:
        reported = checked_part(Engine, inside.facts["container_engine"])
        assert (reported.runtime, reported.kernel) == (chosen, kernel)
        assert f", {program} version " in reported.version
        assert inside.facts.get("seccomp") == kernel
        assert int(inside.run(["nproc"]).stdout) == len(ENVELOPE.cpus)
        with pytest.raises(RequestError, match=f"the {engine} of localhost has no OCI runtime nosuch"):
            get_engine(engine).run_by("nosuch").version(host)
    _wait_until_only(before)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["bench", "runsc", "runsc-sandbox", "runsc-gofer"])
def test_kill_9_of_bench_or_of_gvisors_processes_leaves_nothing(victim: str) -> None:
    image, before = require_root_and_image(), _of_engines()
    require("engine", "gvisor")
    words = [sys.executable, "-c", OPENS, "gvisor", str(image.tree), image.digest, str(ENVELOPE.memory_bytes)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as opening:
        assert opening.stdout is not None
        assert opening.stdout.readline() + opening.stdout.readline() == b"begins\nopen\n"
        (name,) = [path.name for path in Path(f"{RUN}/bundles").glob("virtbench-*") if f"{path}" not in before]
        # The sandbox is called "exe", and calls itself by its first word.
        lines = [(each, each.info["cmdline"] or [""]) for each in psutil.process_iter(["cmdline"])]
        of_this = [(each, words[0]) for each, words in lines if name in " ".join(words)]
        killed = [each for each, first in of_this if first == victim]
        killed = [psutil.Process(opening.pid)] if victim == "bench" else killed
        assert killed, of_this
        for each in killed:
            each.kill()
        opening.send_signal(signal.SIGINT)
        opening.wait(60)
    with suppress(ledger.LedgerError):  # an entry of others, whose daemon is away
        ledger.clean()
    _wait_until_only(before)
    assert not list(Path(RUN).glob(f"*/*{name}*"))
    assert not [path for path in (home() / "ledger").glob("*.json") if name in path.read_text()]


def _interrupted(words: list[str], after_s: float | None) -> tuple[int, float, float]:
    """Start a container and send Ctrl-C so long after it was begun; None: when it runs.

    Return the exit status, and when it began and was to be interrupted.
    """
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as opening:
        assert opening.stdout is not None
        assert opening.stdout.readline() == b"begins\n"
        began_s = time.monotonic()
        if after_s is None:
            assert opening.stdout.readline() == b"open\n"
        else:
            time.sleep(after_s)
        interrupted_s = time.monotonic()
        opening.send_signal(signal.SIGINT)
        return opening.wait(60), began_s, interrupted_s


def _of_engines() -> set[str]:
    """Return the control groups and the folders of runtimes, and the processes that engines start for them."""
    groups = {place for place, _, _ in os.walk("/sys/fs/cgroup") if re.search("/(virtbench-|libpod-|docker/)", place)}
    programs = {"conmon", "containerd-shim", "runc", "runsc", "runsc-gofer", "runsc-sandbox"}
    found = psutil.process_iter(["name"])
    folders = {str(path) for path in Path(RUN).glob("run[cs]*/*")}
    running = {f"process {each.pid} {each.name()}" for each in found if each.info["name"][:15] in programs}
    return groups | folders | running


def _wait_until_only(before: set[str]) -> None:
    """Docker's shim of a container that is removed ends a little later."""
    wait_for("the end of all", lambda: _of_engines() <= before, lambda: _of_engines() - before, within_s=60)


def _groups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob("*/virtbench-*")}
