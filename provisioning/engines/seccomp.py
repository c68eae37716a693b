"""Docker's default seccomp profile in the words of an OCI bundle.

The profile is the one that Debian's packages of the container engines share (``containers/common``, a descendant of
Docker's own); it lies in the tree. Its rules are conditional on architecture, capabilities and kernel; a bundle has no
conditions, so they are decided here.
"""

import json
from typing import Any

PROFILE = "usr/share/containers/seccomp.json"
ARCHITECTURES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}


def bundle_profile(text: str, machine: str, capabilities: frozenset[str] = frozenset()) -> dict[str, Any]:
    """``linux.seccomp`` of a bundle for a container with the capabilities. ``machine`` as ``uname -m`` gives it.

    Raises KeyError on an architecture that is not listed above, ValueError on a profile that is not JSON.
    """
    profile = json.loads(text)
    short, long = ARCHITECTURES[machine]
    sub = [a["subArchitectures"] or [] for a in profile.get("archMap", []) if a["architecture"] == long]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [long, *(name for names in sub for name in names)],
        "syscalls": [_rule(rule) for rule in profile["syscalls"] if _applies(rule, short, capabilities)],
    }


def _applies(rule: dict[str, Any], architecture: str, capabilities: frozenset[str]) -> bool:
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if (wanted := includes.get("arches")) and architecture not in wanted:
        return False
    if architecture in (excludes.get("arches") or ()):
        return False
    if not capabilities.issuperset(includes.get("caps") or ()):
        return False
    return not capabilities.intersection(excludes.get("caps") or ())


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"names": rule["names"], "action": rule["action"]}
    if rule.get("errnoRet") is not None and rule["action"] == "SCMP_ACT_ERRNO":
        kept["errnoRet"] = rule["errnoRet"]
    if rule.get("args"):
        kept["args"] = [{k: v for k, v in arg.items() if v is not None} for arg in rule["args"]]
    return kept
