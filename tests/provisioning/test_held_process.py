"""What ends processes that it has not started holds each by a descriptor: a number that was given again is spared."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from provisioning.cgroup import removal
from provisioning.engines import clients
from provisioning.processes import TOKEN, end_all
from provisioning.remote import agent

NAME, MARK = "virtbench-0123456789ab", "f" * 32


def by_group() -> None:
    with suppress(OSError):  # the directory that stands for the group holds a file
        removal.remove(NAME)


def by_client() -> None:
    clients.end(NAME, "runc", "--bundle", "stays")


def by_mark() -> None:
    agent.end(MARK)


def by_token() -> None:
    end_all(MARK)


WAYS = pytest.mark.parametrize("end", [by_group, by_client, by_mark, by_token])
End = Callable[[], None]
ENDED = (-9, 0)
"""How it ended: of a process that psutil has waited for, subprocess knows no more than 0."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that each way finds: by its words, its environment, and directories that stand for the kernel's."""
    words = ["runc", "-c", "echo; sleep 60; true", "run", "--bundle", "/x", NAME]
    environment = {**os.environ, TOKEN: MARK}
    with subprocess.Popen(words, executable="/bin/sh", env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        for hierarchy, content in (("", f"{process.pid}\n"), ("memory", "")):
            (tmp_path / "cgroup" / hierarchy / NAME).mkdir(parents=True)
            (tmp_path / "cgroup" / hierarchy / NAME / "cgroup.procs").write_text(content)
        facts = tmp_path / "proc" / str(process.pid)
        facts.mkdir(parents=True)
        (facts / "status").write_text(f"Name:\trunc\nTgid:\t{process.pid}\n")
        (facts / "cgroup").write_text(f"4:memory:/{NAME}/below\n0::/\n")
        monkeypatch.setattr(removal, "ROOT", tmp_path / "cgroup")
        monkeypatch.setattr(removal, "PROCESSES", tmp_path / "proc")
        yield process
        process.kill()


@WAYS
def test_the_process_that_is_meant_is_killed(end: End, client: "subprocess.Popen[bytes]") -> None:
    end()
    assert client.wait(10) in ENDED


@WAYS
def test_a_number_that_was_given_again_is_not_killed(
    end: End, client: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after it was found and before it is held: what is held then is another one."""
    opened, held = os.pidfd_open, []
    with subprocess.Popen(["sleep", "60"]) as another:

        def taken(pid: int, *flags: int) -> int:
            if pid != client.pid:  # its own child carries the mark, too
                return opened(pid, *flags)
            client.kill()
            client.wait()
            (tmp_path / "proc" / str(pid) / "cgroup").write_text("4:memory:/\n0::/\n")
            held.append(pid)
            return opened(another.pid)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", taken)
            end()
        assert (held[0], another.poll()) == (client.pid, None)
        another.kill()


@pytest.mark.parametrize("end", [by_group, by_client, by_mark])
def test_where_the_kernel_has_no_descriptors_of_processes_they_are_ended_all_the_same(
    end: End, client: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", missing)
        end()
    assert client.wait(10) in ENDED


def test_a_process_of_another_namespace_whose_number_cannot_be_seen_is_passed_over(
    client: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """The kernel lists it as 0, and a signal to 0 is one to this process and its group."""
    (tmp_path / "cgroup" / NAME / "cgroup.procs").write_text("0\n")
    by_group()
    assert client.poll() is None
