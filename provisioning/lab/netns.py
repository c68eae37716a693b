"""Network namespaces of the lab: their names, the words that enter one, and their removal from the ledger."""

import json
import re
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from provisioning.processes import run_apart
from suite.errors import CommandError

NETNS = Path("/run/netns")
"""The directory in which ip-netns(8) keeps the namespaces that have names."""
FORM = r"vb-[0-9a-f]{6}-(sw|n[0-9]{1,2})"
WITHIN_S = 60.0


def new_token() -> str:
    """Return a prefix for the names of one lab that no other lab on this machine has."""
    while True:
        token = f"vb-{secrets.token_hex(3)}"
        if not any(NETNS.glob(f"{token}-*")):
            return token


def path_of(name: str) -> str:
    return str(NETNS / name)


def enter(path: str) -> list[str]:
    """Return the command prefix that enters the namespace; ``ip netns exec`` would hide the control groups."""
    return ["nsenter", f"--net={path}", "--"]


def remove(name: str) -> None:
    """Remove a namespace of the lab on this machine and what it holds; harmless when it is not there.

    Its interfaces go one by one first: a process that is still in it would keep them, and with them the link. No
    process is ended. Raises CommandError when the kernel does not let the namespace go.
    """
    if not re.fullmatch(FORM, name):
        raise CommandError(["ip", "netns", "delete", name], None, "it is no namespace of the suite's and is left alone")
    if not (NETNS / name).exists():
        return
    # Nothing is listed of a half-made namespace.
    for link in json.loads(_ip(["-n", name, "-json", "link", "show"]).stdout or "[]"):
        if link["ifname"] != "lo":
            _ip(["-n", name, "link", "delete", "dev", link["ifname"]])  # some go with another: the ends of a pair
    answer = _ip(["netns", "delete", name])
    if (NETNS / name).exists():
        raise CommandError(["ip", "netns", "delete", name], answer.returncode, answer.stderr)


def _ip(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return run_apart(["ip", *words], WITHIN_S)
