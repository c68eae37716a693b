"""The words that take a command to another machine: by OpenSSH, or by srun to whichever node is free."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

ALIVE_S = 15
"""A machine that does not answer for four times as long is lost."""


def ssh_wrap(host: str, *, port: int | None = None, config: Path | None = None) -> Callable[[Sequence[str]], list[str]]:
    """OpenSSH with the user's own configuration, agent and known hosts; it never asks.

    ssh hands the far side one string for its shell, so each word is quoted for that.
    """
    settings = {"BatchMode": "yes", "ServerAliveInterval": ALIVE_S, "ServerAliveCountMax": 4, "ConnectTimeout": 30}
    words = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    words += ["-F", str(config)] if config else []
    words += ["-p", str(port)] if port else []
    return lambda argv: ["ssh", "-T", *words, "--", host, shlex.join(argv)]


def srun_wrap(resources: Sequence[str]) -> Callable[[Sequence[str]], list[str]]:
    """A job of its own for the command, which waits in the queue until a node is free."""
    return lambda argv: ["srun", "--quiet", "--kill-on-bad-exit=1", *resources, *argv]
