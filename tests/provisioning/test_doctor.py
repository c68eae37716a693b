"""The doctor, what other packages add, and whether programs of a node are those of their names."""

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from provisioning import doctor
from provisioning.doctor import Check, diagnose, with_image
from provisioning.engines.base import get_engine
from provisioning.engines.docker import DOCKER
from provisioning.engines.gvisor import GVISOR
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import RUNC
from provisioning.images.tree import BUILDERS
from provisioning.layers.container import ContainerLayer
from provisioning.machines.base import get_provider
from provisioning.machines.libvirt import LIBVIRT
from provisioning.machines.qemu import QEMU
from provisioning.nodes import LocalNode
from provisioning.processes import PROGRAMS, installing, program_argv
from provisioning.sites import here
from provisioning.sites.base import Capacity
from provisioning.sites.here import Here
from provisioning.targets import Choices
from suite.errors import BenchError, CommandError, RequestError
from suite.registries import ENGINES, MACHINES
from suite.request.request import RunRequest
from suite.targets import TARGETS
from tests.extensions.conftest import REPOSITORY
from tests.provisioning.conftest import MakeImage, Program, make, raises
from tests.sites import IMAGE, inputs_of


@pytest.mark.parametrize(("entered", "substitute"), [(True, "memory:not-limited"), (False, "userland:own-environment")])
def test_bare_metal_without_root_names_its_substitute(
    entered: bool, substitute: str, node: LocalNode, make_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "enterable", lambda *_: entered)
    needed = [doctor._check("image", "cpu", "there"), doctor._check("tool", "taskset", "there")]
    check = doctor._target("bare-metal", needed, node, make_image())
    assert (check.usable, check.substitute) == (True, substitute)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine whose parts all break where they are asked; the list holds those that were."""
    seen: list[str] = []

    def broken(name: str) -> Any:
        seen.append(name)
        raise KeyError(name)

    for name in ENGINES:
        monkeypatch.setattr(type(get_engine(name)), "version", lambda self, _: broken(self.name))
    monkeypatch.setattr(doctor, "gpu_checks", lambda: broken("nvml"))
    monkeypatch.setattr(
        "provisioning.machines.accelerator.probe_kvm", lambda **_: SimpleNamespace(usable=True, evidence="", took_s=0)
    )
    return seen


def test_whatever_breaks_is_a_check_of_its_own_and_all_else_is_examined(asked: list[str]) -> None:
    checks = {(check.kind, check.name): check for check in doctor.examine()}
    assert set(asked) == {*ENGINES, "nvml"}
    for kind, name in (*(("engine", name) for name in ENGINES), ("gpu", "nvml")):
        check = checks[kind, name]  # type: ignore[index]
        assert (check.usable, check.reason) == (False, f"KeyError: '{name}'")
        assert check.remedy == doctor.EXTENSION_REMEDY
    assert {name for kind, name in checks if kind == "target"} == set(TARGETS)


@pytest.mark.parametrize("named", [None, "kubernetes", "gvisor", "podman"])
def test_a_run_asks_the_engines_that_it_may_take_and_no_gpu(named: str | None, asked: list[str]) -> None:
    doctor.examine({named})
    usual = {name for name in ENGINES if get_engine(name).by_default}
    assert set(asked) == usual | ({named} if named else set())
    assert "kubernetes" not in usual


def test_the_doctor_answers_where_the_suites_folder_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTBENCH_HOME", "/proc/virtbench")  # nobody can make a folder there
    checks = doctor.examine_as_far_as_possible()
    home = next(check for check in checks if check.name == "home")
    assert not home.usable
    assert "/proc/virtbench" in str(home.reason)
    assert "VIRTBENCH_HOME" in str(home.remedy)
    assert any(check.kind == "tool" for check in checks)
    found = diagnose(checks)
    assert found.absent == TARGETS
    assert "VIRTBENCH_HOME" in found.next_step


def test_the_doctor_answers_while_the_disk_of_the_home_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> IO[bytes]:
        return Path("/dev/full").open("wb")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    home = next(check for check in doctor.examine_as_far_as_possible() if check.name == "home")
    assert "No space left" in str(home.reason)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """A machine that lacks nothing but an image for CPUs."""
    monkeypatch.setattr(doctor, "chroot_argv", lambda tree, **_: ["env", "--chdir", tree])
    needed = {tool for name in MACHINES.own for tool in (*get_provider(name).tools, *get_provider(name).local_tools)}
    tools = sorted({*doctor.TOOLS, *needed})
    names = {"tool": tools, "provider": MACHINES.own, "engine": ("runc",), "accelerator": ("kvm",)}
    whole: list[Any] = [(kind, name) for kind, members in names.items() for name in members]
    image = doctor._image()[1]
    missing: dict[str, Any] = {"usable": False, "evidence": "", "reason": image.reason, "remedy": image.remedy}
    made = [Check(kind=kind, name=name, usable=True, evidence="seen") for kind, name in whole]
    return [image, *made, *(Check(kind="target", name=name, **missing) for name in TARGETS)]


@pytest.mark.parametrize(("variant", "taking"), [("cuda", " --device cuda"), ("own", " --image {}"), ("cpu", "")])
def test_the_only_image_of_a_machine_carries_all_targets_and_is_named_in_the_next_step(
    checks: list[Check], make_image: MakeImage, variant: str, taking: str
) -> None:
    assert diagnose(checks).next_step == "bench image build"
    image = make_image(variant=variant)
    found, check = doctor._image()
    assert (found, check.name, check.usable) == (image, variant, True)
    held = with_image(checks, image)
    assert {check.name: check.usable for check in held if check.kind == "target"} == dict.fromkeys(TARGETS, True)
    step = diagnose(held).next_step
    assert step == f"bench run{taking.format(image.digest[:12])}"


def test_every_missing_program_names_its_package_once(
    node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = [
        *doctor._tools([get_provider(name) for name in MACHINES.own]),
        *(
            doctor._tried("engine", name, lambda name=name: str(get_engine(name).version(node)))  # type: ignore[misc]
            for name in ENGINES.own
            if not get_engine(name).site
        ),
    ]
    assert len(checks) > 10
    texts = {check.name: f"{check.reason}; {check.remedy}" for check in checks if not check.usable}
    assert len(texts) == len(checks)
    assert {name: text for name, text in texts.items() if text.count("package ") != 1} == {}


@pytest.mark.parametrize(
    ("page", "begin", "packages"),
    [
        ("Makefile", "PACKAGES :=", {program.package for program in PROGRAMS if program.purpose}),
        ("docs/guide/distributed.md", "**Requirements**", {each.package for each in PROGRAMS if each.on_machines}),
    ],
)
def test_what_a_machine_needs_is_installed_and_documented(page: str, begin: str, packages: set[str]) -> None:
    paragraph = (REPOSITORY / page).read_text().partition(begin)[2][:600]
    assert packages
    assert packages - set(re.findall(r"[a-z0-9-]+", paragraph)) == set()


@pytest.mark.parametrize("word", ["virtbench-0123456789ab", "--", "-c", "a b", "$(false)"])
def test_the_first_word_is_the_programs_first(word: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    spec: Any = importlib.util.spec_from_file_location("program", tmp_path / "program.py")
    argv = program_argv(importlib.util.module_from_spec(spec), word, "last")
    assert json.loads(subprocess.run(argv, capture_output=True, check=True).stdout) == [word, "last"]


PODMAN_DOCKER = """case "$1" in
--version) echo 'podman version 4.9.3'; echo 'Emulate Docker CLI using podman.' >&2;;
info) echo '{"runc": {"path": "/usr/bin/runc"}}';;
*) echo 4.9.3;;
esac"""
VIRSH = """Compiled against library: libvirt 9.0.0
Using library: libvirt 9.0.0
Using API: QEMU 9.0.0
Running hypervisor: QEMU 7.2.22
Running against daemon: 10.1.0"""


@pytest.mark.parametrize(
    ("name", "script", "version", "message", "remedy"),
    [
        ("docker", PODMAN_DOCKER, DOCKER.version, "docker on localhost is another program", "--engine podman"),
        ("docker", "echo nerdctl version 1.7", DOCKER.version, "answers: nerdctl version 1.7", "first on PATH$"),
        ("podman", "echo Docker version 28.2.2, build e6", PODMAN.version, "answers: Docker version", "podman itself"),
        ("runc", "echo crun version 1.8.1", RUNC.version, "runc on localhost is another", "runc itself first on PATH"),
        ("runsc", "echo runc version 1.1.5", GVISOR.version, "runsc on localhost is another", "--engine runc$"),
        ("virsh", f"echo '{VIRSH}'", LIBVIRT.version, "virsh on localhost is another", "virsh itself"),
        ("qemu-system-x86_64", "echo Bochs x86 2.7", QEMU.version, "answers: Bochs x86", "qemu itself"),
    ],
)
def test_a_program_is_not_taken_for_the_one_of_its_name(
    name: str,
    script: str,
    version: Callable[[LocalNode], str],
    message: str,
    remedy: str,
    program: Program,
    node: LocalNode,
) -> None:
    program(name, script)
    with pytest.raises(BenchError, match=message) as refusal:
        version(node)
    assert re.search(remedy, refusal.value.remedy or "")


def test_the_versions_of_libvirt_are_those_of_the_daemon_and_its_hypervisor(program: Program, node: LocalNode) -> None:
    program("virsh", f"case $* in *--version=long) echo Virsh command line tool;; *) echo '{VIRSH}';; esac")
    assert LIBVIRT.version(node) == "7.2.22, libvirt 10.1.0"
    unknown = VIRSH.replace("Running hypervisor: QEMU 7.2.22\n", "")
    program("virsh", f"echo '{unknown}'")
    with pytest.raises(BenchError, match="libvirt does not answer"):
        LIBVIRT.version(node)


def test_a_runtime_is_the_one_of_its_name(program: Program, node: LocalNode) -> None:
    program("crun", "echo runc version 1.1.5")
    runtimes = '{"crun": {"path": "crun"}, "fast": {"path": "crun"}}'
    program(
        "docker", f"case $1 in info) echo '{runtimes}';; version) echo 28 Engine,;; *) echo Docker version 28;; esac"
    )
    assert DOCKER.run_by("fast").version(node).endswith(", runc version 1.1.5"), "a name of the configuration"
    with pytest.raises(BenchError, match="crun on localhost is another program, which answers: runc version"):
        DOCKER.run_by("crun").version(node)


def test_an_alias_builds_no_images(program: Program, node: LocalNode) -> None:
    docker = next(builder for builder in BUILDERS if builder.program == "docker")
    program("docker", "echo Docker version 28.2.2, build e6")
    assert docker.works(node)
    program("docker", PODMAN_DOCKER)
    assert not docker.works(node), "images of podman have other names"


NO_SLIRP = """case " $* " in
*"-netdev user,"*) echo "qemu: -netdev user,id=net: network backend 'user' is not compiled in" >&2; exit 1;;
*--version*) echo "QEMU emulator version 9.0.0";;
esac"""


def test_a_qemu_that_makes_no_machine_of_a_guest_is_none_that_is_used(program: Program, node: LocalNode) -> None:
    program("qemu-system-x86_64", NO_SLIRP)
    check = doctor._tried("provider", "qemu", lambda: doctor._provider_version(QEMU, node))
    assert "network backend 'user' is not compiled in" in str(check.reason)
    assert "libslirp" in str(check.remedy)


def test_an_engine_whose_configuration_breaks_each_container_is_not_usable(
    make_image: MakeImage, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(ContainerLayer):
        def opened(self, _: Any) -> Any:
            raise CommandError(["podman"], 125, "Error: stat /dev/nosuch: no such file or directory")

    monkeypatch.setattr(doctor, "ContainerLayer", Broken)
    monkeypatch.setattr(type(PODMAN), "version", lambda *_: "4.3.1")
    monkeypatch.setattr(type(PODMAN), "check_machine", lambda *_: None)
    image = make_image()
    with raises(BenchError, "it opens no container: .*/dev/nosuch", "another --engine"):
        doctor._engine_version(PODMAN, node, image)
    assert doctor._engine_version(PODMAN, node, None) == "version 4.3.1", "a run opens it soon enough"


@pytest.mark.parametrize(("count", "refused"), [(255, False), (256, True), (384, True)])
def test_a_guest_of_more_cpus_than_it_can_have_is_refused(
    count: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Here, "places", lambda *_: (Capacity(tuple(range(count)), 1 << 40),))
    request = RunRequest.of({"target": ("bare-metal", "vm")})
    site = Here(Choices(IMAGE, "runc", "tcg"), request.targets.target)
    with raises(RequestError, f"{count} CPUs: a virtual machine of qemu", "--cpus 255") if refused else nullcontext():
        assert len(site.envelopes(inputs_of(request))[0].cpus) == count


@pytest.mark.parametrize(
    ("offline", "isolated", "cpus", "allowed", "refused"),
    [
        ("3\n", "\n", "2-3", (0, 1, 2), r"--cpus 2-3: no CPU 3 \(3 offline\); this host allows CPUs 0-2 \(3\)"),
        ("\n", "2-3\n", "2-3", (0, 1), r"no CPU 2-3 \(2-3 isolated\)"),
        ("\n", "2-3\n", "2-3", (0, 1, 2, 3), r"CPUs 2-3 are isolated \(isolcpus\): the kernel keeps all threads"),
        ("\n", "2-3\n", None, (2, 3), r"--cpus 2-3: CPUs 2-3 are isolated"),
        ("\n", "2-3\n", "0,2", (0, 1, 2, 3), "--cpus 0,2: CPUs 2 are isolated"),
        ("\n", "2-3\n", "2-2", (0, 1, 2, 3), ""),
        ("4-127\n", "(null)\n", None, (0, 1), ""),
    ],
    ids=[
        "offline",
        "isolated, not allowed",
        "isolated",
        "started on isolated ones",
        "mixed",
        "one alone",
        "not plugged in",
    ],
)
def test_offline_and_isolated_cpus_are_named(
    offline: str,
    isolated: str,
    cpus: str | None,
    allowed: tuple[int, ...],
    refused: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(tmp_path, {"offline": offline, "isolated": isolated})
    monkeypatch.setattr(here, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*allowed})
    request = RunRequest.of({"target": ("bare-metal",), "cpus": cpus} if cpus else {"target": ("bare-metal",)})
    site = Here(Choices(IMAGE, "runc", "tcg"), request.targets.target)
    with pytest.raises(RequestError, match=refused) if refused else nullcontext():
        assert site.envelopes(inputs_of(request))[0].cpus == ((2,) if cpus else allowed)


def test_a_program_without_a_package_of_debian_is_given_none() -> None:
    assert "package cpio" in installing("cpio")
    assert "package apptainer" not in installing("apptainer")
