"""Engines: what they are told, their runtimes and platforms, what they refuse, their clients, those without root."""

import itertools
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.engines import clients, unprivileged
from provisioning.engines.apptainer import APPTAINER
from provisioning.engines.base import ContainerEngine, default_engine
from provisioning.engines.charliecloud import CHARLIECLOUD
from provisioning.engines.docker import DOCKER, Docker
from provisioning.engines.gvisor import GVISOR
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import PROFILE, RUNC
from provisioning.layers.container import GVISOR_BUILD, ContainerLayer, own_kernel, root_inside
from provisioning.nodes import LocalNode
from suite.errors import BenchError, CommandError, MeasurementError, RequestError
from suite.interfaces import Completed, open_stack
from suite.job.ablations import properties_of
from suite.job.envelope import GIB
from suite.registries import ABLATIONS
from tests.extensions.conftest import REPOSITORY
from tests.provisioning.conftest import FakeNode, Program, fake_node, make, raises
from tests.rendered import CONTAINER, TRANSCRIPT, rendered

CONTAINERD_STORE = '[["driver-type","io.containerd.snapshotter.v1"]]'


def answered(text: str) -> Completed:
    return Completed(0, text + "\n", "")


def test_what_is_written_for_other_programs_is_that_of_the_transcript() -> None:
    assert rendered().splitlines() == TRANSCRIPT.read_text().splitlines(), "python -m tests.rendered"


def values(argv: list[str], option: str) -> list[str]:
    """What follows each occurrence of an option."""
    return [value for word, value in itertools.pairwise(argv) if word == option]


def test_an_engine_that_inherits_from_dockers_uses_its_own_program() -> None:
    class Nerdctl(Docker):
        name, program = "nerdctl", ("nerdctl",)

    node = FakeNode({("nerdctl",): Completed(1, "", "no such image")})
    with pytest.raises(MeasurementError, match="the nerdctl of"):
        Nerdctl().check(node, "a" * 64)
    assert {argv[0] for argv in node.ran} == {"nerdctl"}


@pytest.mark.parametrize(
    ("told", "pins"),
    [
        ("true [cpu memory pids]", True),  # what systemd 252 and 257 delegate to a user
        ("true [cpuset cpu io memory pids]", False),
        ("false [cpuset cpu io memory hugetlb pids rdma misc]", False),
        ("false []", False),
    ],
)
def test_rootless_podman_pins_by_affinity_where_no_cpus_are_delegated_to_the_user(told: str, pins: bool) -> None:
    node = FakeNode({("podman", "info"): Completed(0, f"{told}\n", "")})
    assert PODMAN.pins_by_affinity(node) is pins
    spec = replace(CONTAINER, by_affinity=pins)
    assert values(PODMAN.run_argv(spec), "--cpuset-cpus") == ([] if pins else ["0-1"])
    assert (PODMAN.exec_argv(spec)[-3:] == ["taskset", "--cpu-list", "0-1"]) is pins
    here = ContainerLayer(PODMAN, "0" * 64, GIB).specification(node, "/tree")
    assert here.by_affinity is False, "a guest's podman is root's"


@pytest.mark.parametrize(("cpuset", "pins"), [("false", True), ("true", False)])
def test_a_rootless_docker_pins_by_affinity_where_no_cpus_are_delegated_to_the_user(cpuset: str, pins: bool) -> None:
    asking = ("docker", "info", "--format")
    assert DOCKER.pins_by_affinity(fake_node({(*asking, "{{.CPUSet}}"): answered(f"{cpuset}\n")})) is pins
    assert "--userns=host" in DOCKER.run_argv(CONTAINER), "a remapped root may not write to the user's directories"
    own = Path("/proc/meminfo").read_text().split()[1]
    machine = f"fake 6.1 {int(own) * 1024}\n"
    about = {(*asking, DOCKER.machine_field): answered(machine), ("cat",): answered(f"MemTotal: {own} kB\n")}
    about |= {("uname",): answered("fake 6.1\n"), (*asking, "{{.MemoryLimit}}"): answered("true\n")}
    DOCKER.check_machine(fake_node(about))
    about[*asking, "{{.MemoryLimit}}"] = answered("false\n")
    with raises(
        RequestError, "the docker of fake cannot limit memory", "systemd and control groups of version 2; or use"
    ):
        DOCKER.check_machine(fake_node(about))


def test_a_container_that_is_gone_is_removed_and_any_other_failure_is_raised() -> None:
    gone = {("podman", "rm"): Completed(1, "", "Error: no container with name or ID found: No such container")}
    PODMAN.remove(fake_node(gone), "c1")
    for engine, words in ((PODMAN, ("podman", "rm")), (RUNC, ("runc",))):
        with pytest.raises(CommandError, match="device is busy"):
            engine.remove(fake_node({words: Completed(1, "", "device is busy")}), "c1")
    node = fake_node()
    RUNC.remove(node, "c1")
    assert node.ran == RUNC.removal("c1")
    assert len(node.ran) == 4


def test_the_digest_of_the_profile_is_that_of_the_file_which_is_given(tmp_path: Path) -> None:
    """By the suite, or by the configuration of the engine."""
    digest = ("sha256sum", "--")
    runc = fake_node({(*digest, f"{tmp_path}/{PROFILE}"): answered(f"{'a' * 64}  a file")})
    assert RUNC.seccomp_sha256(runc, str(tmp_path)) == "a" * 64
    podman = {("podman", "info"): answered("/etc/all.json"), (*digest, "/etc/all.json"): answered("b  all.json")}
    assert PODMAN.seccomp_sha256(fake_node(podman, local=True), "/tree") == "b"
    assert PODMAN.seccomp_sha256(fake_node(local=True), "/tree") is None
    for profile, found in (("/etc/all.json", "b"), ("builtin", None)):
        options = json.dumps(["name=apparmor", f"name=seccomp,profile={profile}", "name=cgroupns"])
        docker = {("docker", "info"): answered(options), (*digest, "/etc/all.json"): answered("b  all.json")}
        assert DOCKER.seccomp_sha256(fake_node(docker, local=True), "/tree") == found


@pytest.mark.parametrize(
    ("engine", "answer", "version"),
    [
        (RUNC, "runc version 1.1.12-0ubuntu2~22.04.1\ncommit: x\nspec: 1.0.2-dev", "1.1.12-0ubuntu2~22.04.1"),
        (RUNC, "runc version spec: 1.0.2-dev\ngo: go1.13", "unknown, sha256 0123456789ab"),
        (RUNC, "runc version unknown\nspec: 1.0.1", "unknown, sha256 0123456789ab"),
        (GVISOR, "runsc version release-20240401.0\nspec: 1.1.0-rc.1", "release-20240401.0"),
        (GVISOR, "runsc version VERSION_MISSING\nspec: 1.1.0", "unknown, sha256 0123456789ab"),
        (APPTAINER, "apptainer version 1.3.4-1.el9", "1.3.4-1.el9"),
        (APPTAINER, "apptainer version 1.2.5+118-g1a2b3c4 (setuid)", "1.2.5+118-g1a2b3c4 (setuid)"),
        (APPTAINER, "singularity-ce version 4.1.2-jammy", None),
        (APPTAINER, "singularity version 3.8.7", None),
        (APPTAINER, "0.31", None),
        (CHARLIECLOUD, "0.38~pre+abc", "0.38~pre+abc"),
        (CHARLIECLOUD, "ch-run: 0.40", "0.40"),
        (CHARLIECLOUD, "udocker 1.3", None),
    ],
)
def test_a_version_is_the_programs_own_and_another_program_is_refused(
    engine: ContainerEngine, answer: str, version: str | None
) -> None:
    node = fake_node(
        {
            **dict.fromkeys([(program_of(engine),), ("env",)], answered(answer)),
            ("runsc", "flags"): answered("which platform to use: systrap"),
            ("id",): answered("0"),
            ("which",): answered(f"/usr/bin/{program_of(engine)}"),
            ("sha256sum", "--", f"/usr/bin/{program_of(engine)}"): answered(f"{'0123456789abcdef' * 4}  it"),
        }
    )
    if version:
        assert engine.version(node) == version
    else:
        with pytest.raises(BenchError, match="is another program, which answers"):
            engine.version(node)


def program_of(engine: Any) -> str:
    return str(engine.program)


def test_the_service_behind_dockers_client_is_dockers() -> None:
    components = "Engine,containerd,runc,docker-init,"
    assert DOCKER.version(fake_node({("docker", "version"): answered(f"29.0.1 {components}")})) == "29.0.1"
    podman = answered("4.3.1 Podman Engine,Conmon,OCI Runtime (crun),")
    with raises(RequestError, "the service behind docker on fake is Podman Engine", "--engine podman"):
        DOCKER.version(fake_node({("docker", "version"): podman}))


@pytest.mark.parametrize(
    ("driver", "containerd", "dumped", "layers"),
    [
        ('[["Backing Filesystem","extfs"]]', "null", "", "/srv/docker"),
        (CONTAINERD_STORE, '{"Address":"/run/docker/containerd/containerd.sock"}', "", "/srv/docker/containerd/daemon"),
        (CONTAINERD_STORE, '{"Address":"/run/containerd/containerd.sock"}', "", "/var/lib/containerd"),
        (CONTAINERD_STORE, "null", "version = 3\nroot = '/data/containerd'\n", "/data/containerd"),
    ],
)
def test_layers_are_where_the_store_of_docker_is(driver: str, containerd: str, dumped: str, layers: str) -> None:
    asked = ("docker", "info", "--format")
    node = fake_node(
        {
            (*asked, "{{.DockerRootDir}}"): answered("/srv/docker"),
            (*asked, "{{json .DriverStatus}}"): answered(driver),
            (*asked, "{{json .Containerd}}"): answered(containerd),
            ("containerd", "config", "dump"): answered(dumped),
        }
    )
    assert DOCKER.layers_at(node) == layers


@pytest.mark.parametrize(
    ("kind", "root"),
    [
        ("overlay overlay rw", "overlay"),
        ("fuse.fuse-overlayfs fuse-overlayfs rw", "fuse-overlayfs"),
        ("ext4 /dev/vda rw", "ext4"),
        ("zfs pool/docker/1 rw", "zfs"),
    ],
)
def test_the_kind_of_the_root_is_read_inside(kind: str, root: str) -> None:
    others = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    table = f"{others}73 48 0:40 / / rw,nodev shared:1 - {kind}\n{others}"
    assert root_inside(fake_node({("enter", "cat"): answered(table)}), ["enter"]) == root
    assert root_inside(fake_node(), ["enter"]) is None


def test_kvm_is_used_only_if_a_container_starts_on_it() -> None:
    kvm = GVISOR.configured({"gvisor_platform": "kvm"})
    answers = {
        ("runsc", "--version"): Completed(0, "runsc version 0.0~2022\nspec: 1.0\n", ""),
        ("runsc", "flags"): Completed(0, "", "specifies which platform to use: systrap (default), ptrace, kvm."),
        ("id",): Completed(0, "0", ""),
    }
    assert kvm.version(node := fake_node(answers)) == "0.0~2022"
    assert kvm.starting(node, CONTAINER)[3:] == ["--platform", "kvm", "--network", "none", "run"]
    probe = tuple(kvm.command("--platform", "kvm", "--network", "none", "do", "true"))
    with pytest.raises(BenchError, match="does not start on platform kvm on fake"):
        kvm.version(fake_node({**answers, probe: Completed(128, "", "cannot create vCPU")}))


BOOT = "9ad39d4c-8b15-4a0d-b99d-1a5a3a0c5f0a"
RUNTIMES = json.dumps({"runc": {"path": "runc"}, "crun": {"path": "/opt/crun"}, "kata": {"runtimeType": "kata.v2"}})


def test_a_runtime_that_an_engine_does_not_have_is_refused() -> None:
    docker = fake_node({("docker", "version"): answered("28.0"), ("docker", "info"): answered(RUNTIMES)})
    assert DOCKER.run_by("kata").version(docker) == "28.0, kata", "found by its type, it has no program to ask"
    with pytest.raises(RequestError, match="the docker of fake has no OCI runtime youki"):
        DOCKER.run_by("youki").version(docker)
    crun, asks = PODMAN.run_by("crun"), ("podman", "--runtime", "crun")
    podman = {("podman", "version"): answered("4.3.1"), asks: answered("crun version 1.8\ncommit: 0")}
    assert crun.version(fake_node(podman)) == "4.3.1, crun version 1.8"
    assert values(crun.run_argv(CONTAINER), "--runtime") == ["crun"]
    with pytest.raises(RequestError, match="no OCI runtime crun that works"):
        crun.version(fake_node({**podman, asks: Completed(125, "", "not found")}))


DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get ..."
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


@pytest.mark.parametrize(("said", "remedy"), [(DENIED, "add the user to the group docker"), (DOWN, "start the daemon")])
def test_a_docker_that_does_not_serve_this_user_is_not_to_be_started(said: str, remedy: str) -> None:
    with raises(BenchError, "docker does not work on fake", remedy):
        DOCKER.version(fake_node({("docker", "version"): Completed(1, "", f"{said}\n")}))


@pytest.mark.parametrize(
    ("inside", "kernel"),
    [
        (f"Linux version 6.1\n{BOOT}", None),
        ("Linux version 6.1\n00000000-8b15-4a0d-b99d-1a5a3a0c5f0a", "virtual machine"),
        (f"Linux version 4.4.0 {GVISOR_BUILD}", "sentry"),
        ("Linux version 6.1", None),
    ],
)
def test_a_kernel_of_its_own_is_seen_by_its_boot(inside: str, kernel: str | None) -> None:
    node = fake_node({("enter", "cat"): answered(inside), ("cat",): answered(BOOT)}, local=True)
    assert own_kernel(node, node, ["enter"]) == kernel
    pod = fake_node({("cat",): answered(inside)}, facts={"pod": {"boot_id": BOOT}})
    assert own_kernel(fake_node(local=True), pod, []) == kernel, "of a pod the node of the cluster is below"


ENGINES_WITHOUT_ROOT = (CHARLIECLOUD, APPTAINER)
FOUND = {("find",): Completed(0, "/i/tree/etc/covered\n", "")}
USER, ROOT = (
    {("id",): Completed(0, f"{number}\n", ""), ("pwd",): Completed(0, "/r", ""), **FOUND} for number in (1000, 0)
)


@pytest.mark.parametrize("engine", ENGINES_WITHOUT_ROOT)
def test_what_is_not_limited_without_root_is_a_substitute_here_and_refused_elsewhere(engine: ContainerEngine) -> None:
    with pytest.raises(RequestError, match="containers on fake need root there"):
        engine.entered(fake_node(USER), CONTAINER)
    assert engine.host_network(None) == "host"
    with pytest.raises(RequestError, match="--network host"):
        engine.host_network("/run/netns/n1")
    assert engine.entered(fake_node(USER, local=True), CONTAINER).substitutes == ("memory:not-limited",)
    assert engine.entered(fake_node(ROOT, local=True), CONTAINER).substitutes == ()


@pytest.mark.parametrize(
    ("engine", "refused"),
    [
        (CHARLIECLOUD, {"seccomp", "data-layer", "network"}),
        (APPTAINER, {"seccomp", "data-layer"}),
        (GVISOR, {"seccomp", "huge-pages", "disk-limit", "disk-iops", "data-layer"}),
    ],
)
def test_only_what_the_program_has_can_be_switched(engine: ContainerEngine, refused: set[str]) -> None:
    own = [name for name in ABLATIONS.own if name != "oci-runtime"]
    assert {name for name in own if engine.hindrance(properties_of(name))} == refused
    assert not any((engine.by_default, engine.takes_gpus, engine.in_guests, engine.update_argv("c", "0", -1, None)))
    assert [default_engine([engine.name, *others]) for others in ([], ["podman"])] == ["runc", "podman"]


@pytest.mark.parametrize("engine", [*ENGINES_WITHOUT_ROOT, GVISOR])
def test_instances_are_joined_by_the_network_of_their_machines_alone(engine: ContainerEngine) -> None:
    engine.check_network("host", in_lab=False)
    for network, in_lab in (("host", True), ("overlay", True), ("overlay", False), ("bridge", False)):
        with pytest.raises(RequestError, match=f"--network {network}: {engine.name} {engine.late_networks}"):
            engine.check_network(network, in_lab=in_lab)


def test_charliecloud_needs_user_namespaces() -> None:
    runs = {("env",): Completed(0, "", "0.31\n")}
    assert CHARLIECLOUD.version(fake_node(runs)) == "0.31"
    with pytest.raises(BenchError, match="charliecloud needs user namespaces, which fake does not give"):
        CHARLIECLOUD.version(fake_node({**runs, ("unshare",): Completed(1, "", "Operation not permitted")}))


def test_a_stand_in_for_apptainer_runs_the_commands_of_a_container(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    tree, data = tmp_path / "tree", tmp_path / "a,b"
    program("apptainer", f'exec {sys.executable} {REPOSITORY}/tests/stand_ins/apptainer.py "$@"')
    make(tree, {"etc/passwd": "", "usr/file": ""})
    data.mkdir()
    monkeypatch.setattr(unprivileged, "is_root", lambda _: False)
    node.userland, node.data = str(tree), str(data)
    with open_stack(node, [ContainerLayer(APPTAINER, "0123456789abcdef", GIB)]) as inside:
        reported = inside.facts["container_engine"]
        assert isinstance(reported, dict)
        assert (reported["name"], reported["version"], reported["network"]) == ("apptainer", "1.4.0", "none")
        assert inside.run(["nproc"]).stdout.strip() == str(len(node.cpus))
        assert set(inside.run(["env"]).stdout.split()) == {f"PATH={os.environ['PATH']}", f"APPTAINER_CONTAINER={tree}"}
        assert inside.run(["sh", "-c", "exit 7"], check=False).returncode == 7
        assert inside.substitutes == ("memory:not-limited",)
    assert node.opening.parts["container"] > 0
    node.userland = str(data)
    with pytest.raises(BenchError), open_stack(node, [ContainerLayer(APPTAINER, "0123456789abcdef", GIB)]):
        pass


NAME = f"virtbench-{secrets.token_hex(6)}"


@contextmanager
def client(lasts_s: float, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has these words and lasts so long."""
    # The sleep is not its last command, so that the shell is not replaced by it.
    with subprocess.Popen([words[0], "-c", f"sleep {lasts_s}; true", *words[1:]], executable="/bin/sh") as process:
        try:
            # The kernel shows the words a moment after the program has replaced this one.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes() and process.poll() is None:
                time.sleep(0.001)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "words",
    [
        ("runc", "exec", NAME),
        ("podman", "run", "--name", "virtbench-ba9876543210"),
        ("cat", "run", "--bundle", f"/run/{NAME}", NAME),
    ],
)
def test_other_commands_and_other_containers_are_left_alone(words: tuple[str, ...]) -> None:
    with client(60, *words) as other:
        clients.end(NAME, "runc", "--bundle", "stays")
        clients.end(NAME, "podman", "--name")
        assert other.poll() is None


def test_a_client_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ENDED_WITHIN_S", 0.05)
    with client(60, "podman", "run", "--name", NAME), pytest.raises(TimeoutError, match=f"podman still starts {NAME}"):
        clients.end(NAME, "podman", "--name")
