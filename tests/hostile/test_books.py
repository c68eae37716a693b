"""Forged entries of the ledger, forged locks of a sweep, and benches in another process namespace."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.cgroup import removal
from provisioning.engines.docker import DOCKER
from provisioning.engines.podman import PODMAN
from provisioning.engines.runc import RUNC
from provisioning.ledger import LedgerError
from provisioning.paths import refuse_foreign, state
from suite.errors import RequestError
from suite.process_identity import FIRST_NAMESPACE, ProcessIdentity, boot_id, pid_namespace, started_ticks
from suite.sweep.directory import SweepDirectory
from suite.sweep.locks import WHOLE, LockHolder, is_held, locked
from tests.suite.sweep.conftest import REPOSITORY, Machine, make_sweep

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
UNSHARED = subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
pytestmark = pytest.mark.usefixtures("home")
needs_namespaces = pytest.mark.skipif(not UNSHARED, reason="process namespaces cannot be made here")


@pytest.fixture
def innocent() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has nothing to do with the suite."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def forge(home: Path, kind: str, what: str) -> None:
    """Write an entry as if a bench that was killed had left it."""
    owner = {"owner_pid": 2**22 + 1, "owner_started": 1.0, "owner_namespace": pid_namespace()}
    entry = {"kind": kind, "what": what, "boot_id": boot_id(), **owner}
    place = home / "ledger"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{uuid.uuid4().hex}.json").write_text(json.dumps(entry))


# ---- the ledger


def test_clean_ends_no_foreign_control_group(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, innocent: "subprocess.Popen[bytes]"
) -> None:
    group = tmp_path / "cgroup/cpu/web.slice"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{innocent.pid}\n")
    monkeypatch.setattr(removal, "ROOT", tmp_path / "cgroup")
    for name in ("web.slice", "", ".", "../cgroup/cpu/web.slice", "virtbench-0123456789ab/../cpu/web.slice"):
        forge(home, "cgroup", name)
    with pytest.raises(LedgerError, match="no name that the suite gives to a cgroup"):
        ledger.clean()
    assert innocent.poll() is None


@pytest.mark.parametrize("engine", ["podman", "docker", "runc"])
def test_clean_hands_no_option_and_no_foreign_name_to_an_engine(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    said = tmp_path / "said"
    program = tmp_path / "bin" / engine
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("--all", "database", "virtbench-0123456789ab --all", "virtbench-0123456789ab\n--all"):
        forge(home, "container", f"{engine}:{name}")
    with pytest.raises(LedgerError, match="no name that the suite gives to a container"):
        ledger.clean()
    assert not said.exists()


def test_every_engine_ends_its_options_before_the_name() -> None:
    for engine in (PODMAN, DOCKER, RUNC):
        for argv in engine.removal("NAME"):
            # A program of the suite takes its words as they are.
            assert argv[-2] == "--" or argv[:3] == ["python3", "-I", "-c"], argv


@pytest.mark.parametrize(
    "kept", ["images", "data", "images/0123456789ab", "data-disks", "data/imagenet-1000", "ledger"]
)
@pytest.mark.parametrize("kind", ["directory", "mount"])
def test_clean_removes_nothing_of_the_home_but_what_was_half_made(home: Path, kind: str, kept: str) -> None:
    (home / kept).mkdir(parents=True, exist_ok=True)
    forge(home, kind, str(home / kept))
    with pytest.raises(LedgerError, match=f"no name that the suite gives to a {kind}"):
        ledger.clean()
    assert (home / kept).is_dir()


@pytest.mark.parametrize(("kind", "what"), [("processes", ""), ("processes", "x"), ("netns", "lan"), ("shell", "ls")])
def test_clean_leaves_other_names_and_kinds_alone(home: Path, kind: str, what: str) -> None:
    forge(home, kind, what)
    with pytest.raises(LedgerError, match="is left alone"):
        ledger.clean()
    with pytest.raises(LedgerError), ledger.holding(kind, what):
        pytest.fail("a name that could never be removed was held")


def test_clean_reads_no_pipe_and_follows_no_link_in_the_ledger(home: Path, tmp_path: Path) -> None:
    left = home / "left-0123456789ab"
    forge(tmp_path / "elsewhere", "directory", str(left))
    left.mkdir(parents=True)
    (home / "ledger").mkdir()
    (entry,) = (tmp_path / "elsewhere/ledger").iterdir()
    (home / "ledger/link.json").symlink_to(entry)
    os.mkfifo(home / "ledger/pipe.json")
    with pytest.raises(LedgerError, match="not an entry of this suite's ledger"):
        ledger.clean()
    assert left.exists()


@pytest.mark.parametrize("place", ["", "ledger"])
def test_a_home_that_others_may_write_to_is_not_believed(home: Path, place: str) -> None:
    (home / "ledger").mkdir(parents=True)
    (home / place).chmod(0o777)
    with pytest.raises(RequestError, match=f"others may write to {home / place}") as refused:
        ledger.clean()
    assert "chmod go-w" in str(refused.value.remedy)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_home_of_another_user_is_not_believed(home: Path) -> None:
    home.mkdir()
    os.chown(home, 65534, 65534)
    with pytest.raises(RequestError, match="belongs to another user") as refused:
        state("ledger")
    assert "VIRTBENCH_HOME" in str(refused.value.remedy)
    assert list(home.iterdir()) == []


def test_a_home_behind_a_link_is_as_good_as_what_it_leads_to(home: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    home.symlink_to(tmp_path / "disk")
    with ledger.holding("directory", str(state("scratch") / ledger.fresh("scratch"))) as what:
        Path(what).mkdir()
    assert not Path(what).exists()
    (tmp_path / "disk").chmod(0o777)
    with pytest.raises(RequestError, match="others may write"):
        state("scratch")


def test_a_scratch_directory_that_somebody_made_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(RequestError):
            refuse_foreign(tmp_path / name, "give another")


# ---- process namespaces

HOLD = """
import sys, time
from pathlib import Path
from provisioning import ledger
with ledger.holding("directory", sys.argv[1]) as what:
    Path(what).mkdir()
    print("made", flush=True)
    time.sleep(600)
"""
CLEAN = "from provisioning import ledger; print(ledger.clean(), [entry.what for entry in ledger.living()])"


@needs_namespaces
def test_a_bench_in_another_process_namespace_keeps_what_it_uses() -> None:
    """It has a number there that nobody, or somebody else, has here."""
    place = state("scratch") / ledger.fresh("scratch")
    argv = [*NAMESPACE, sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "made\n"
        assert (ledger.clean(), [entry.what for entry in ledger.living()]) == ([], [str(place)])
        assert place.is_dir()
        other.kill()
    if pid_namespace() == FIRST_NAMESPACE:  # from here it is seen that nothing of the other one is left
        deadline = time.monotonic() + 20
        while not (removed := ledger.clean()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (removed, place.exists()) == ([f"directory {place}"], False)


@needs_namespaces
def test_clean_in_another_process_namespace_leaves_a_living_benchs_things() -> None:
    place = state("scratch") / ledger.fresh("scratch")
    with ledger.holding("directory", str(place)):
        place.mkdir()
        argv = [*NAMESPACE, sys.executable, "-c", CLEAN]
        said = subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
        assert (said, place.is_dir()) == (f"[] ['{place}']\n", True)


# ---- the locks of a sweep


def claim(out: Path, pid: int, **changes: object) -> LockHolder:
    """Write a lock as if the process of that number held it."""
    owner = ProcessIdentity.own().model_copy(update={"pid": pid, "started_ticks": started_ticks(pid), **changes})
    holder = LockHolder(name=WHOLE, owner=owner)
    (out / ".locks").mkdir(parents=True, exist_ok=True)
    (out / ".locks/sweep.json").write_text(holder.model_dump_json())
    return holder


@pytest.mark.parametrize(
    ("namespace", "said"), [({}, "is left alone"), ({"pid_namespace": 1}, "no process that is seen from here")]
)
def test_cancel_signals_no_process_that_does_not_hold_the_lock_or_has_its_number_in_another_namespace(
    tmp_path: Path, innocent: "subprocess.Popen[bytes]", namespace: dict[str, int], said: str
) -> None:
    machine = Machine(tmp_path)
    SweepDirectory(machine.out).accept(make_sweep(), ())
    claim(machine.out, innocent.pid, **namespace)
    refused = machine.run("sweep", "cancel", str(machine.out))
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    assert innocent.poll() is None


def test_the_process_that_has_locked_a_sweep_is_known_to_hold_it(
    tmp_path: Path, innocent: "subprocess.Popen[bytes]"
) -> None:
    forged = claim(tmp_path / "other", innocent.pid)
    assert not is_held(tmp_path / "other", forged)
    with locked(tmp_path, WHOLE):
        own = LockHolder(name=WHOLE, owner=ProcessIdentity.own())
        others = LockHolder(name="block-001", owner=own.owner), forged
        assert [is_held(tmp_path, holder) for holder in (own, *others)] == [True, False, False]
    assert not is_held(tmp_path, own)
