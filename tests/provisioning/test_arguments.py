"""What is written for other programs: the transcript of it, and what no engine may be told."""

import hashlib
import itertools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provisioning.engines.docker import Docker
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import PROFILE, RUNC, bundle_profile
from provisioning.layers.container import ContainerLayer
from provisioning.machines.ssh import SshAccess
from provisioning.nodes import LocalNode
from suite.errors import CommandError, MeasurementError
from suite.interfaces import Completed
from suite.job.envelope import GIB
from tests.provisioning.conftest import FakeNode, fake_node, make
from tests.rendered import CONTAINER, TRANSCRIPT, rendered


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
    layer = ContainerLayer(PODMAN, "0" * 64, GIB)
    here = layer.specification(node, "/tree")
    assert here.by_affinity is False, "a guest's podman is root's"


words = st.text(st.characters(exclude_characters="\0", codec="utf-8"))


@example(["", " ", "a b", "'", '"', "; exit 3", "$(exit 3)", "`exit 3`", "a\nb", "*", "~", "\\"])
@settings(max_examples=40)
@given(st.lists(words, min_size=1, max_size=5))
def test_words_come_through_a_real_shell_as_they_are(arguments: list[str]) -> None:
    far_side = SshAccess("/r", 1).wrap(["printf", "%s\\0", *arguments])[-1]
    said = subprocess.run(["sh", "-c", far_side], capture_output=True, check=True).stdout
    assert said.decode().split("\0")[:-1] == arguments


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


def rule(*names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "excludes": {}, **more}


def profile(*rules: dict[str, Any], **more: Any) -> str:
    maps = [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": None},
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "archMap": maps, "syscalls": list(rules), **more})


def test_what_is_not_named_is_refused_with_the_profiles_own_error() -> None:
    assert bundle_profile(profile())["defaultAction"] == "SCMP_ACT_ERRNO"
    assert bundle_profile(profile())["defaultErrnoRet"] == 1
    assert bundle_profile(profile(defaultErrnoRet=38))["defaultErrnoRet"] == 38
    assert bundle_profile(profile())["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    with pytest.raises(ValueError, match="Expecting value"):
        bundle_profile("# none")


ARGUMENT = {"index": 0, "value": 4, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
REFUSED = "SCMP_ACT_ERRNO"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (rule("read", "write"), {"names": ["read", "write"]}),
        ({"names": ["read"], "action": "SCMP_ACT_ALLOW"}, {"names": ["read"]}),
        (rule("write", includes=None, excludes=None, args=None), {"names": ["write"]}),
        (rule("mount", includes={"caps": ["CAP_SYS_ADMIN"]}), None),  # for a container that has it
        (rule("clone", excludes={"caps": ["CAP_SYS_ADMIN", "CAP_B"]}), {"names": ["clone"]}),
        (rule("arch_prctl", includes={"arches": ["amd64", "x32"]}), {"names": ["arch_prctl"]}),
        (rule("s390", includes={"arches": ["s390"]}), None),
        (rule("clone", excludes={"arches": ["amd64", "s390"]}), None),
        (rule("personality", args=[{**ARGUMENT, "extra": None}]), {"names": ["personality"], "args": [ARGUMENT]}),
        (rule("mount", action=REFUSED, errnoRet=1), {"names": ["mount"], "action": REFUSED, "errnoRet": 1}),
        (rule("read", errnoRet=1), {"names": ["read"]}),
    ],
)
def test_the_conditions_of_a_rule_are_decided(sent: dict[str, Any], kept: dict[str, Any] | None) -> None:
    decided = bundle_profile(profile(sent))["syscalls"]
    assert decided == ([{"action": "SCMP_ACT_ALLOW", **kept}] if kept else [])


def test_the_digest_of_the_profile_is_known_where_the_suite_gives_it(node: LocalNode, tmp_path: Path) -> None:
    make(tmp_path, {PROFILE: profile(rule("read"))})
    wanted = hashlib.sha256((tmp_path / PROFILE).read_bytes()).hexdigest()
    assert RUNC.seccomp_sha256(node, str(tmp_path)) == wanted
    assert PODMAN.seccomp_sha256(node, str(tmp_path)) is None
