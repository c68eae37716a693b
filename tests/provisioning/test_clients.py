"""Clients of engines that are cut short: whose start is waited for, and whose is ended."""

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioning.engines import clients

NAME = f"virtbench-{secrets.token_hex(6)}"


@contextmanager
def client(lasts_s: float, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has these words and lasts so long."""
    # The sleep is not its last command, so that the shell is not replaced by it.
    with subprocess.Popen([words[0], "-c", f"sleep {lasts_s}; true", *words[1:]], executable="/bin/sh") as process:
        try:
            # The kernel shows the words a moment after the program has replaced this one.
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes() and process.poll() is None:
                time.sleep(0.001)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_client_that_starts_the_container_is_waited_for(engine: str) -> None:
    with client(2, engine, "run", "--detach", "--name", NAME) as starting:
        clients.end(NAME, engine, "--name")
        assert starting.poll() == 0


def test_the_client_of_runc_stays_with_its_container_and_is_killed() -> None:
    with client(60, "runc", "run", "--bundle", f"/run/{NAME}", NAME) as starting:
        clients.end(NAME, "runc", "--bundle", "stays")
        assert starting.wait(5) == -9


@pytest.mark.parametrize(
    "words",
    [
        ("runc", "exec", NAME),
        ("podman", "run", "--name", "virtbench-ba9876543210"),
        ("cat", "run", "--bundle", f"/run/{NAME}", NAME),
    ],
)
def test_other_commands_and_other_containers_are_left_alone(words: tuple[str, ...]) -> None:
    with client(60, *words) as other:
        clients.end(NAME, "runc", "--bundle", "stays")
        clients.end(NAME, "podman", "--name")
        assert other.poll() is None


def test_a_client_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ENDED_WITHIN_S", 0.05)
    with client(60, "podman", "run", "--name", NAME), pytest.raises(TimeoutError, match=f"podman still starts {NAME}"):
        clients.end(NAME, "podman", "--name")
