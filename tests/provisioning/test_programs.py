"""Programs of a node: which words reach modules of the suite, and whether others are those of their names."""

import importlib.util
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.engines.docker import DOCKER
from provisioning.engines.gvisor import GVISOR
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import RUNC
from provisioning.images.tree import BUILDERS
from provisioning.machines.libvirt import LIBVIRT
from provisioning.machines.qemu import QEMU
from provisioning.nodes import LocalNode
from provisioning.processes import PROGRAMS, program_argv
from suite.errors import BenchError
from tests.extensions.conftest import REPOSITORY

Program = Callable[[str, str], Path]


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
    said = subprocess.run(argv, capture_output=True, check=True).stdout
    assert json.loads(said) == [word, "last"]


PODMAN_DOCKER = """case "$1" in
--version) echo 'podman version 4.9.3'; echo 'Emulate Docker CLI using podman.' >&2;;
info) echo '{"runc": {"path": "/usr/bin/runc"}}';;
*) echo 4.9.3;;
esac"""
VIRSH = "Compiled against library: libvirt 9.0.0\nRunning hypervisor: QEMU 7.2.22"


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


def test_a_runtime_is_the_one_of_its_name(program: Program, node: LocalNode) -> None:
    program("crun", "echo runc version 1.1.5")
    runtimes = '{"crun": {"path": "crun"}, "fast": {"path": "crun"}}'
    program("docker", f"[ \"$1\" = info ] && echo '{runtimes}' || echo Docker version 28")
    assert DOCKER.run_by("fast").version(node).endswith(", runc version 1.1.5"), "a name of the configuration"
    with pytest.raises(BenchError, match="crun on localhost is another program, which answers: runc version"):
        DOCKER.run_by("crun").version(node)


def test_an_alias_builds_no_images(program: Program, node: LocalNode) -> None:
    docker = next(builder for builder in BUILDERS if builder.program == "docker")
    program("docker", "echo Docker version 28.2.2, build e6")
    assert docker.works(node)
    program("docker", PODMAN_DOCKER)
    assert not docker.works(node), "images of podman have other names"
