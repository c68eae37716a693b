"""Wrap a command so that it runs on another machine: by OpenSSH, or by srun on whichever node is free."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

ALIVE_S = 15
"""Seconds between two keep-alives of ssh; a machine that does not answer four of them is lost."""


def ssh_wrap(host: str, *, port: int | None = None, config: Path | None = None) -> Callable[[Sequence[str]], list[str]]:
    """Return what wraps a command in ssh, with the user's own configuration, agent and known hosts; it never asks.

    ssh hands the far side one string for its shell, so each word is quoted for that.
    """
    settings = {"BatchMode": "yes", "ServerAliveInterval": ALIVE_S, "ServerAliveCountMax": 4, "ConnectTimeout": 30}
    words = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    words += ["-F", str(config)] if config else []
    words += ["-p", str(port)] if port else []
    return lambda argv: ["ssh", "-T", *words, "--", host, shlex.join(argv)]


def srun_wrap(resources: Sequence[str]) -> Callable[[Sequence[str]], list[str]]:
    """Return what wraps a command in srun: a job of its own, which waits in the queue until a node is free."""
    return lambda argv: ["srun", "--quiet", "--kill-on-bad-exit=1", *resources, *argv]
