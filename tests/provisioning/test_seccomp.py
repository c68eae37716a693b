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


def allowed(text: str) -> list[str]:
    return [name for each in bundle_profile(text)["syscalls"] for name in each["names"]]


def test_what_is_not_named_is_refused_with_the_profiles_own_error() -> None:
    assert bundle_profile(profile())["defaultAction"] == "SCMP_ACT_ERRNO"
    assert bundle_profile(profile())["defaultErrnoRet"] == 1
    assert bundle_profile(profile(defaultErrnoRet=38))["defaultErrnoRet"] == 38


def test_the_architectures_are_the_machines_and_those_it_runs_too() -> None:
    architectures = bundle_profile(profile())["architectures"]
    assert architectures == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]


def test_a_rule_without_conditions_is_kept() -> None:
    (kept,) = bundle_profile(profile(rule("read", "write")))["syscalls"]
    assert kept == {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}


def test_absent_and_null_conditions_are_none() -> None:
    bare = {"names": ["read"], "action": "SCMP_ACT_ALLOW"}
    assert allowed(profile(bare, rule("write", includes=None, excludes=None, args=None))) == ["read", "write"]


def test_a_rule_for_a_capability_is_left_out_of_a_container_without_it() -> None:
    text = profile(rule("mount", includes={"caps": ["CAP_SYS_ADMIN"]}), rule("read"))
    assert allowed(text) == ["read"]


def test_a_rule_that_excludes_a_capability_is_kept_in_a_container_without_it() -> None:
    text = profile(rule("clone", excludes={"caps": ["CAP_SYS_ADMIN", "CAP_B"]}))
    assert allowed(text) == ["clone"]


def test_rules_for_architectures_are_decided() -> None:
    text = profile(
        rule("arch_prctl", includes={"arches": ["amd64", "x32"]}),
        rule("clone", excludes={"arches": ["amd64", "s390"]}),
    )
    assert allowed(text) == ["arch_prctl"]


def test_conditions_on_arguments_are_kept_without_their_nulls() -> None:
    argument = {"index": 0, "value": 4, "valueTwo": 0, "op": "SCMP_CMP_EQ", "extra": None}
    (kept,) = bundle_profile(profile(rule("personality", args=[argument])))["syscalls"]
    assert kept["args"] == [{"index": 0, "value": 4, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]


def test_an_error_number_is_kept_where_the_rule_refuses() -> None:
    text = profile(rule("mount", action="SCMP_ACT_ERRNO", errnoRet=1), rule("read", errnoRet=1))
    first, second = bundle_profile(text)["syscalls"]
    assert first["errnoRet"] == 1
    assert "errnoRet" not in second


def test_a_profile_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        bundle_profile("# none")


def test_the_digest_of_the_profile_is_known_where_the_suite_gives_it(node: LocalNode, tmp_path: Path) -> None:
    (tmp_path / PROFILE).parent.mkdir(parents=True)
    (tmp_path / PROFILE).write_text(profile(rule("read")))
    wanted = hashlib.sha256((tmp_path / PROFILE).read_bytes()).hexdigest()
    assert RUNC.seccomp_sha256(node, str(tmp_path)) == wanted
    assert PODMAN.seccomp_sha256(node, str(tmp_path)) is None
