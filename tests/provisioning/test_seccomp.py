"""On a made-up profile in the format of ``containers/common``."""

import json
from typing import Any

import pytest

from provisioning.engines.seccomp import bundle_profile


def rule(*names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "excludes": {}, **more}


def profile(*rules: dict[str, Any], **more: Any) -> str:
    maps = [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": None},
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "archMap": maps, "syscalls": list(rules), **more})


def allowed(text: str, machine: str = "x86_64", capabilities: frozenset[str] = frozenset()) -> list[str]:
    return [name for each in bundle_profile(text, machine, capabilities)["syscalls"] for name in each["names"]]


def test_what_is_not_named_is_refused_with_the_profiles_own_error() -> None:
    assert bundle_profile(profile(), "x86_64")["defaultAction"] == "SCMP_ACT_ERRNO"
    assert bundle_profile(profile(), "x86_64")["defaultErrnoRet"] == 1
    assert bundle_profile(profile(defaultErrnoRet=38), "x86_64")["defaultErrnoRet"] == 38


def test_the_architectures_are_the_machines_and_those_it_runs_too() -> None:
    architectures = bundle_profile(profile(), "x86_64")["architectures"]
    assert architectures == ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    assert bundle_profile(profile(), "aarch64")["architectures"] == ["SCMP_ARCH_AARCH64"]


def test_a_rule_without_conditions_is_kept() -> None:
    (kept,) = bundle_profile(profile(rule("read", "write")), "x86_64")["syscalls"]
    assert kept == {"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"}


def test_absent_and_null_conditions_are_none() -> None:
    bare = {"names": ["read"], "action": "SCMP_ACT_ALLOW"}
    assert allowed(profile(bare, rule("write", includes=None, excludes=None, args=None))) == ["read", "write"]


def test_a_rule_for_a_capability_is_left_out_of_a_container_without_it() -> None:
    text = profile(rule("mount", includes={"caps": ["CAP_SYS_ADMIN"]}), rule("read"))
    assert allowed(text) == ["read"]
    assert allowed(text, capabilities=frozenset({"CAP_SYS_ADMIN"})) == ["mount", "read"]


def test_a_rule_that_includes_two_capabilities_needs_both() -> None:
    text = profile(rule("a", includes={"caps": ["CAP_A", "CAP_B"]}))
    assert allowed(text, capabilities=frozenset({"CAP_A"})) == []
    assert allowed(text, capabilities=frozenset({"CAP_A", "CAP_B"})) == ["a"]


def test_a_rule_that_excludes_a_capability_is_kept_in_a_container_without_it() -> None:
    text = profile(rule("clone", excludes={"caps": ["CAP_SYS_ADMIN", "CAP_B"]}))
    assert allowed(text) == ["clone"]
    assert allowed(text, capabilities=frozenset({"CAP_SYS_ADMIN"})) == []


@pytest.mark.parametrize(("machine", "names"), [("x86_64", ["arch_prctl"]), ("aarch64", ["clone"])])
def test_rules_for_architectures_are_decided(machine: str, names: list[str]) -> None:
    text = profile(
        rule("arch_prctl", includes={"arches": ["amd64", "x32"]}),
        rule("clone", excludes={"arches": ["amd64", "s390"]}),
    )
    assert allowed(text, machine) == names


def test_conditions_on_arguments_are_kept_without_their_nulls() -> None:
    argument = {"index": 0, "value": 4, "valueTwo": 0, "op": "SCMP_CMP_EQ", "extra": None}
    (kept,) = bundle_profile(profile(rule("personality", args=[argument])), "x86_64")["syscalls"]
    assert kept["args"] == [{"index": 0, "value": 4, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]


def test_an_error_number_is_kept_where_the_rule_refuses() -> None:
    text = profile(rule("mount", action="SCMP_ACT_ERRNO", errnoRet=1), rule("read", errnoRet=1))
    first, second = bundle_profile(text, "x86_64")["syscalls"]
    assert first["errnoRet"] == 1
    assert "errnoRet" not in second


def test_an_unknown_architecture_and_a_profile_that_is_none_are_errors() -> None:
    with pytest.raises(KeyError):
        bundle_profile(profile(), "vax")
    with pytest.raises(ValueError, match="Expecting value"):
        bundle_profile("# none", "x86_64")
