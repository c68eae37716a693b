"""Docker's default seccomp profile, as an OCI bundle writes it.

The profile is the one that Debian's packages of the container engines share (``containers/common``, a descendant of
Docker's own); it is in the tree. Its rules are conditional on architecture, capabilities and kernel; a bundle has no
conditions, so they are decided here.
"""

import json
from typing import Any

PROFILE = "usr/share/containers/seccomp.json"
ARCHITECTURE, LONG_ARCHITECTURE = "amd64", "SCMP_ARCH_X86_64"


def bundle_profile(text: str) -> dict[str, Any]:
    """Return ``linux.seccomp`` of a bundle for a container without capabilities.

    Raises ValueError for a profile that is not JSON.
    """
    profile = json.loads(text)
    below = [a["subArchitectures"] or [] for a in profile.get("archMap", []) if a["architecture"] == LONG_ARCHITECTURE]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [LONG_ARCHITECTURE, *(name for names in below for name in names)],
        "syscalls": [_rule(rule) for rule in profile["syscalls"] if _applies(rule)],
    }


def _applies(rule: dict[str, Any]) -> bool:
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if (wanted := includes.get("arches")) and ARCHITECTURE not in wanted:
        return False
    # Rules for a capability are for containers that have it.
    return ARCHITECTURE not in (excludes.get("arches") or ()) and not includes.get("caps")


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"names": rule["names"], "action": rule["action"]}
    if rule.get("errnoRet") is not None and rule["action"] == "SCMP_ACT_ERRNO":
        kept["errnoRet"] = rule["errnoRet"]
    if rule.get("args"):
        kept["args"] = [{k: v for k, v in arg.items() if v is not None} for arg in rule["args"]]
    return kept
