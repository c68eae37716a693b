"""On a made-up profile in the format of ``containers/common``."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import PROFILE, RUNC, bundle_profile
from provisioning.nodes import LocalNode


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


def test_a_profile_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        bundle_profile("# none")


def test_the_digest_of_the_profile_is_known_where_the_suite_gives_it(node: LocalNode, tmp_path: Path) -> None:
    (tmp_path / PROFILE).parent.mkdir(parents=True)
    (tmp_path / PROFILE).write_text(profile(rule("read")))
    wanted = hashlib.sha256((tmp_path / PROFILE).read_bytes()).hexdigest()
    assert RUNC.seccomp_sha256(node, str(tmp_path)) == wanted
    assert PODMAN.seccomp_sha256(node, str(tmp_path)) is None
