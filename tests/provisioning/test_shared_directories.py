"""Machines that share a directory: nothing of a living bench is touched, and what a dead one left goes.

Names decide nothing: machines are renamed, and two can have one name.
"""

import itertools
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.paths import state
from suite import process_identity
from suite.errors import RequestError
from suite.process_identity import ProcessIdentity, boot_id, started_ticks
from suite.results.files import remove_temporaries, temporary_name
from suite.results.store import LOCKS
from suite.sweep.locks import WHOLE, LockHolder, holders, locked, remove_stale
from tests.suite.sweep.conftest import REPOSITORY

pytestmark = pytest.mark.usefixtures("home")
MACHINE, BOOT, NAME = "a" * 16, "0b231a9e-7832-4959-8c6a-3f6553d84f72", "node1"
OTHER_BOOT = BOOT[::-1]
NO_PROCESS = 2**22 + 1


@dataclass(frozen=True)
class Owner:
    """A process as a machine has written it down, seen from the machine ``MACHINE`` in its boot ``BOOT``."""

    machine_id: str | None
    boot_id: str | None
    name: str
    lives: bool

    @property
    def identity(self) -> ProcessIdentity:
        pid = os.getpid() if self.lives else NO_PROCESS
        return ProcessIdentity.own().model_copy(
            update={"host": self.name, "machine_id": self.machine_id, "boot_id": self.boot_id, "pid": pid}
        )

    @property
    def known_to_have_ended(self) -> bool:
        """Return whether the kernel that runs here shows it, or this machine has booted since."""
        if self.boot_id == BOOT:
            return not self.lives
        return self.machine_id == MACHINE and self.boot_id is not None


OWNERS = [
    Owner(*values)
    for values in itertools.product(
        (MACHINE, "b" * 16, None), (BOOT, OTHER_BOOT, None), (NAME, "renamed"), (True, False)
    )
]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on ``MACHINE`` in its boot ``BOOT``."""
    monkeypatch.setattr(process_identity, "machine_id", lambda: MACHINE)
    monkeypatch.setattr(process_identity, "known_boot_id", lambda: BOOT)
    monkeypatch.setattr(socket, "gethostname", lambda: NAME)


@pytest.mark.usefixtures("here")
def test_a_lock_is_taken_from_those_alone_that_have_ended(tmp_path: Path) -> None:
    for number, owner in enumerate(OWNERS):
        sweep = tmp_path / str(number)
        (sweep / LOCKS).mkdir(parents=True)
        lock = sweep / LOCKS / f"{WHOLE}.json"
        lock.write_text(LockHolder(name=WHOLE, owner=owner.identity).model_dump_json())
        assert (holders(sweep) == []) == owner.known_to_have_ended, owner
        if owner.known_to_have_ended:
            with locked(sweep, WHOLE):
                assert [holder.owner.pid for holder in holders(sweep)] == [os.getpid()]
        elif owner.identity != ProcessIdentity.own():
            with pytest.raises(RequestError, match=f"on {owner.name} runs this sweep"), locked(sweep, WHOLE):
                pytest.fail(f"taken from {owner}")
        if not owner.known_to_have_ended:
            remove_stale(sweep, WHOLE)
            assert lock.exists(), owner


@pytest.mark.usefixtures("here")
def test_a_ledger_keeps_what_is_not_known_to_be_left(home: Path) -> None:
    places = {}
    for number, owner in enumerate(OWNERS):
        places[owner] = home / f"thing-{number:012x}"
        places[owner].mkdir(parents=True)
        identity = owner.identity
        entry = ledger.LedgerEntry(
            kind="directory",
            what=str(places[owner]),
            owner_pid=identity.pid,
            owner_started=identity.started_ticks,
            owner_namespace=identity.pid_namespace,
            **identity.model_dump(include={"host", "machine_id", "boot_id"}),
        )
        (state("ledger") / f"{number:04d}.json").write_text(entry.model_dump_json())
    ledger.clean()
    assert [owner for owner in OWNERS if places[owner].exists() == owner.known_to_have_ended] == []


@pytest.mark.usefixtures("here")
def test_unfinished_files_go_with_those_alone_that_have_ended(tmp_path: Path) -> None:
    names = {owner: temporary_name(owner.identity) for owner in OWNERS}
    for name in names.values():
        (tmp_path / name).touch()
    remove_temporaries(tmp_path)
    assert [owner for owner in OWNERS if (tmp_path / names[owner]).exists() == owner.known_to_have_ended] == []


def test_a_container_takes_the_machine_id_of_its_image_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "pid_namespace", lambda: process_identity.FIRST_NAMESPACE + 1)
    assert process_identity.machine_id() is None


@pytest.mark.parametrize("content", ["", "uninitialized\n", "no\n", "0" * 33, b"\xff"])
def test_a_machine_without_an_id_is_unknown(
    content: str | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "pid_namespace", lambda: process_identity.FIRST_NAMESPACE)
    monkeypatch.setattr(process_identity, "MACHINE_ID", tmp_path / "machine-id")
    assert process_identity.machine_id() is None
    (tmp_path / "machine-id").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert process_identity.machine_id() is None
    (tmp_path / "machine-id").write_text("0123456789abcdef" * 2)
    assert len(process_identity.machine_id() or "") == 16
    assert process_identity.machine_id() != "0123456789abcdef", "the ID itself stays on the machine"


AS_ANOTHER = """
mount --bind "$1/machine-id" /etc/machine-id && mount --bind "$1/boot-id" /proc/sys/kernel/random/boot_id || exit 77
hostname "$2"
exec "$3" -c "from provisioning import ledger; print(ledger.clean())"
"""
UNSHARED = ("unshare", "--mount", "--uts", "sh", "-c", AS_ANOTHER, "sh")


def cleaned_as(place: Path, machine: str, boot: str, name: str) -> str:
    """Return what ``bench clean`` removes in mount and UTS namespaces in which the machine has these IDs and name."""
    (place / "machine-id").write_text(f"{machine}\n")
    (place / "boot-id").write_text(f"{boot}\n")
    argv = [*UNSHARED, str(place), name, sys.executable]
    done = subprocess.run(argv, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    if done.returncode in (1, 77) and "Permission" in done.stderr + done.stdout:
        pytest.skip("mount namespaces cannot be made here")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.skipif(not process_identity.machine_id(), reason="this machine has no ID of its own")
def test_machines_in_namespaces_that_share_a_home_clean_up_after_themselves_alone(tmp_path: Path) -> None:
    own, name = process_identity.MACHINE_ID.read_text().strip(), socket.gethostname()
    place = state("scratch") / ledger.fresh("scratch")
    place.mkdir()
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        owner = ProcessIdentity.own()
        entry = ledger.LedgerEntry(
            kind="directory",
            what=str(place),
            boot_id=boot_id(),
            owner_pid=sleeper.pid,
            owner_started=started_ticks(sleeper.pid) or 0.0,
            host=name,
            machine_id=owner.machine_id,
            owner_namespace=owner.pid_namespace,
        )
        (state("ledger") / "00.json").write_text(entry.model_dump_json())
        assert cleaned_as(tmp_path, "f" * 32, OTHER_BOOT, name) == "[]\n", "another machine of the same name"
        assert cleaned_as(tmp_path, own, boot_id(), "renamed") == "[]\n", "this machine, while the owner lives"
        sleeper.kill()
    assert cleaned_as(tmp_path, "f" * 32, OTHER_BOOT, name) == "[]\n"
    assert place.is_dir()
    assert cleaned_as(tmp_path, own, boot_id(), "renamed") == f"['directory {place}']\n"
    assert not place.exists()
