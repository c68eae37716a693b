"""What bears the suite's mark and is not in this home's ledger is named, with whose it is, and left alone."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import cli
from provisioning import ledger
from provisioning.cgroup import removal
from provisioning.foreign import foreign_things
from provisioning.lab import netns
from provisioning.paths import state
from provisioning.processes import TOKEN
from suite.registries import ENGINES

pytestmark = pytest.mark.usefixtures("home")
GROUP, THEIR_GROUP, THEIR_CONTAINER = (f"virtbench-{digit * 12}" for digit in "abc")
THEIR_NETNS, THEIR_MOUNT = "vb-0a1b2c-sw", "/data/virtbench/images/0123456789ab/tree"
TOKEN_OF_THEIRS = "f" * 32


@pytest.fixture
def other_bench() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a bench with another home."""
    environment = {"VIRTBENCH_HOME": "/data/vb", TOKEN: TOKEN_OF_THEIRS, "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()


@pytest.fixture
def machine(tmp_path: Path, other_bench: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    """Things of this home, and of another, in places that stand for the kernel's."""
    groups = tmp_path / "cgroup"
    for hierarchy in ("cpuset", "memory"):
        for name in (GROUP, THEIR_GROUP, "virtbench-notes", "docker"):
            (groups / hierarchy / name).mkdir(parents=True)
        (groups / hierarchy / THEIR_GROUP / "cgroup.procs").write_text(f"{other_bench.pid}\n")
    (tmp_path / "netns").mkdir()
    for name in (THEIR_NETNS, "vb-mine", "red"):
        (tmp_path / "netns" / name).touch()
    mounts = (THEIR_MOUNT, "/data/other/images/0123456789ab/tree", "/proc")
    lines = [f"36 35 98:0 / {place} rw - ext4 /dev/root rw" for place in mounts]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(removal, "ROOT", groups)
    monkeypatch.setattr(netns, "NETNS", tmp_path / "netns")
    monkeypatch.setattr(ledger, "MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process(other_bench.pid)])
    for name in ENGINES:
        known = [THEIR_CONTAINER, "postgres"] if name == "runc" else []
        monkeypatch.setattr(type(ENGINES.get(name)), "names_here", lambda _, known=known: known)


@pytest.mark.usefixtures("machine")
def test_what_another_home_made_is_named_with_whose_it_is_and_stays(tmp_path: Path) -> None:
    entry = ledger.LedgerEntry(kind="cgroup", what=GROUP, boot_id=None, owner_pid=1, owner_started=0)
    (state("ledger") / "00.json").write_text(entry.model_dump_json())
    found = {thing.kind: thing for thing in foreign_things()}
    wanted = {
        "cgroup": THEIR_GROUP,
        "netns": THEIR_NETNS,
        "mount": THEIR_MOUNT,
        "container": f"runc:{THEIR_CONTAINER}",
        "processes": TOKEN_OF_THEIRS,
    }
    assert {kind: thing.what for kind, thing in found.items()} == wanted
    assert "home /data/vb, 1 running" in found["cgroup"].whose
    assert "home /data/vb, 1 running" in found["processes"].whose
    assert "unknown home" in found["netns"].whose
    assert (tmp_path / "cgroup/cpuset" / THEIR_GROUP).is_dir()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_clean_does_not_say_that_nothing_was_left_behind(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli.main, ["clean", *words]).output
    assert "nothing was left behind" not in said
    assert f"does not list it: cgroup {THEIR_GROUP} (" in said
    assert "with their VIRTBENCH_HOME" in said
