"""The suite's folders, what is written down there before it is made, and how all of it is removed."""

import contextlib
import gc
import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pytest
from click.testing import CliRunner

from cli import main
from provisioning import ledger
from provisioning.images.image import Image
from provisioning.images.tree import BUILDERS
from provisioning.ledger import LedgerEntry, LedgerError, LedgerKind, clean, holding, living
from provisioning.paths import home, runtime, state
from provisioning.processes import LocalProcess, carrying
from provisioning.removal import uninstall
from suite import interruption
from suite.errors import RequestError
from suite.interfaces import Completed
from suite.process_identity import ProcessIdentity
from suite.results.files import temporary_name
from tests.provisioning.conftest import FakeNode, make, raises

FOREIGN = "is not in a folder of the suite's and is left alone"


def entries(home: Path) -> list[Path]:
    return sorted((home / "ledger").glob("*.json"))


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def started(pid: int) -> float:
    """Field 22 of proc(5), read in another way than the ledger's: ``sleep`` and ``true`` have no space in the name."""
    return float(Path(f"/proc/{pid}/stat").read_text().split()[21])


def left_by(home: Path, pid: int, kind: str, what: str, **changes: object) -> Path:
    """An entry as a process that held it would have left it."""
    own = ProcessIdentity.own()
    machine = {"host": own.host, "machine_id": own.machine_id, "boot_id": own.boot_id}
    owner = {"owner_pid": pid, "owner_started": 1.0, "owner_namespace": own.pid_namespace}
    values = {"kind": kind, "what": what, **machine, **owner}
    path = home / "ledger" / f"{uuid.uuid4().hex}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values | changes))
    return path


@pytest.mark.parametrize("place", ["/", "/proc", "/run"])
def test_a_mount_outside_the_suites_folders_is_left_alone(home: Path, place: str) -> None:
    with pytest.raises(LedgerError, match="left alone"):
        ledger.KINDS["mount"].remove(place)
    ledger.KINDS["mount"].remove(str(home / "never-mounted-0123456789ab"))


def test_what_is_held_is_written_down_before_it_is_made_and_crossed_out_after_it_is_gone(home: Path) -> None:
    place = home / "thing-0123456789ab"
    with holding("directory", str(place)) as what:
        (path,) = entries(home)
        entry = LedgerEntry.model_validate_json(path.read_bytes())
        assert (entry.kind, entry.what, what) == ("directory", str(place), str(place))
        assert (entry.owner_pid, entry.owner_started) == (os.getpid(), float(started(os.getpid())))
        assert not place.exists()
        make(place, {"file": "x"})
    assert not place.exists()
    assert entries(home) == []


def stuck(what: str) -> None:
    raise OSError(f"{what} is busy")


class Pressed:
    """Raises KeyboardInterrupt at one of the lines that hold and close things, as a signal does between two of them."""

    FILES = (ledger.__file__, contextlib.__file__, interruption.__file__)

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> "Pressed | None":
        if frame.f_code.co_filename not in self.FILES:
            return None
        # While handlers are replaced a signal is held back.
        if event == "line" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_wherever_ctrl_c_falls_nothing_stays_that_was_held(home: Path) -> None:
    pressed, number = 0, 0
    gc.freeze()  # what other tests have imported is not looked through each time
    while pressed == number:
        number += 1
        gc.collect()  # what the one before has left open is closed untraced, and no callback of gc's is interrupted
        gc.disable()
        places = [home / ledger.fresh("thing") for _ in range(2)]
        before = sys.gettrace()
        sys.settrace(Pressed(number))
        try:
            with ExitStack() as stack:
                for place in places:
                    stack.enter_context(holding("directory", str(place)))
                    place.mkdir(parents=True)
        except KeyboardInterrupt:
            sys.settrace(before)
            pressed += 1
            assert ledger.end_held() == []
        finally:
            sys.settrace(before)
            gc.enable()
        assert [place for place in places if place.exists()] == [], f"at line {number}"
        assert entries(home) == []
    gc.unfreeze()
    assert pressed > 30


def test_what_cannot_be_removed_after_ctrl_c_is_named_and_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledger.KINDS, "cgroup", LedgerKind(".*", stuck))
    with pytest.raises(OSError, match="g is busy"), holding("cgroup", "g"):
        assert len(entries(home)) == 1
    assert ledger.end_held() == ["cgroup g (g is busy)"]
    assert len(entries(home)) == 1


def test_nothing_is_begun_when_the_ledger_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise ledger.LedgerError("No space left on device")

    monkeypatch.setattr(ledger, "write_atomic", full)
    with pytest.raises(LedgerError), holding("directory", str(home / "x-0123456789ab")):
        pytest.fail("something was made that is written down nowhere")


def test_clean_leaves_what_the_living_hold(home: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    place = home / "used-0123456789ab"
    with holding("directory", str(place)):
        place.mkdir(parents=True)
        other = left_by(home, sleeper.pid, "directory", str(place), owner_started=started(sleeper.pid))
        assert clean() == []
        assert place.exists()
        assert len(entries(home)) == 2
        assert [entry.owner_pid for entry in living()] == [sleeper.pid], "one's own entries are not another's"
        other.unlink()
    assert living() == []


@pytest.mark.parametrize(("born", "changes"), [(-1, {}), (0, {"boot_id": "another"})])
def test_a_number_that_another_process_has_now_or_had_before_this_boot_is_no_owner(
    home: Path,
    sleeper: "subprocess.Popen[bytes]",
    born: float,
    changes: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suite.process_identity.machine_id", lambda: "a" * 16)  # a container knows none
    place = home / "x-0123456789ab"
    place.mkdir(parents=True)
    left_by(home, sleeper.pid, "directory", str(place), owner_started=started(sleeper.pid) + born, **changes)
    left_by(home, sleeper.pid, "cgroup", f"virtbench-{uuid.uuid4().hex[:12]}")
    assert living() == []
    assert len(clean()) == 2, "what is gone already is crossed out"
    assert not place.exists()
    assert entries(home) == []
    assert clean() == []


def test_what_another_machine_wrote_into_a_shared_home_is_left_to_it(home: Path, dead: int) -> None:
    place = home / "thing-0123456789ab"
    place.mkdir(parents=True)
    for machine in ("b" * 16, None):
        path = left_by(home, dead, "directory", str(place), boot_id="another", machine_id=machine)
        assert (clean(), living()) == ([], [])
        assert (place.exists(), path.exists()) == (True, True)
    left_by(home, dead, "directory", str(place), host="renamed")
    assert clean() == [f"directory {place}"]


def test_a_killed_owner_that_nobody_has_collected_is_dead(home: Path) -> None:
    process = subprocess.Popen(["true"])
    try:
        born = started(process.pid)
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            time.sleep(0.005)
        left_by(home, process.pid, "directory", str(home / "x-0123456789ab"), owner_started=born)
        assert clean() == [f"directory {home / 'x-0123456789ab'}"]
    finally:
        process.wait()


def test_clean_ends_the_processes_of_the_dead(home: Path, dead: int) -> None:
    token = uuid.uuid4().hex
    process = LocalProcess.start(["sh", "-c", "setsid sleep 600 & echo up; wait"], token, b"")
    try:
        assert next(process.lines(60)) == "up"
        left_by(home, dead, "processes", token)
        assert clean() == [f"processes {token}"]
        assert carrying(token) == []
    finally:
        process.close()


def test_clean_sweeps_temporaries_of_a_killed_run_and_keeps_its_records(home: Path, tmp_path: Path, dead: int) -> None:
    temporary = temporary_name(ProcessIdentity.own().model_copy(update={"pid": dead}))
    trials = make(tmp_path / "run-1/trials", {temporary: "", "a.json": ""})
    left_by(home, dead, "run-directory", str(tmp_path / "run-1"))
    clean()
    assert [path.name for path in trials.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("outside", "why"),
    [
        ("{tmp}/mine-0123456789ab", FOREIGN),
        ("{home}/../mine-0123456789ab", FOREIGN),
        ("{home}/link/below-0123456789ab", FOREIGN),
        ("{home}/link-0123456789ab", "symbolic link"),
    ],
)
def test_a_directory_outside_the_suites_is_never_removed(
    home: Path, tmp_path: Path, dead: int, outside: str, why: str
) -> None:
    mine = tmp_path / "mine-0123456789ab"
    (mine / "below-0123456789ab").mkdir(parents=True)
    (mine / "file").touch()
    home.mkdir()
    for name in ("link", "link-0123456789ab"):
        (home / name).symlink_to(mine)
    path = left_by(home, dead, "directory", outside.format(tmp=tmp_path, home=home))
    with pytest.raises(LedgerError, match=why):
        clean()
    assert (mine / "file").exists()
    assert (mine / "below-0123456789ab").exists()
    assert path.exists(), "what could not be removed stays in the ledger"


def test_what_stays_is_reported_and_all_else_is_removed(home: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledger.KINDS, "cgroup", LedgerKind(".*", stuck))
    kept = [left_by(home, dead, "cgroup", "g"), left_by(home, dead, "from-the-future", "f")]
    kept.append(left_by(home, dead, "container", "no-such-engine:virtbench-0123456789ab"))
    foreign = home / "ledger/foreign.json"
    foreign.write_text("{}")
    for name in ("a", "b"):
        (home / f"{name}-0123456789ab").mkdir()
        left_by(home, dead, "directory", str(home / f"{name}-0123456789ab"))
    with pytest.raises(LedgerError) as caught:
        clean()
    for what in ("cgroup g: g is busy", "from-the-future f", "container no-such-engine:virtbench-", "foreign.json"):
        assert what in caught.value.message
    assert caught.value.remedy
    assert [*home.glob("*-0123456789ab")] == []
    assert entries(home) == sorted([*kept, foreign])


def test_the_newest_is_removed_first(home: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setitem(ledger.KINDS, "cgroup", LedgerKind(".*", removed.append))
    for number, name in enumerate(("first", "second", "third")):
        os.utime(left_by(home, dead, "cgroup", name), (number, number))
    clean()
    assert removed == ["third", "second", "first"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user who is not root keeps sockets, before it is made; the tests may run as root."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    return tmp_path / f"virtbench-{os.geteuid()}"


def made(place: Path, permissions: int) -> None:
    """Make it as its user would have."""
    place.mkdir()
    place.chmod(permissions)
    if os.getuid() == 0:
        os.chown(place, os.geteuid(), -1)


def test_the_home_is_where_the_user_says_or_the_usual_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    for given in (str(place.parent / "there"), "there"):
        monkeypatch.setenv("VIRTBENCH_HOME", given)
        assert home() == place.parent / "there"
    monkeypatch.delenv("VIRTBENCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(place.parent / "data"))
    assert home() == place.parent / "data/virtbench"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(place.parent))
    assert home() == place.parent / ".local/share/virtbench"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert home() == Path("/var/lib/virtbench")


def test_a_folder_of_the_state_is_made_for_this_user_alone(home: Path) -> None:
    for _ in range(2):
        assert state("cache", "deep") == home / "cache/deep"
        assert mode(home / "cache/deep") == 0o700


def test_the_tree_of_an_image_is_named_without_a_link_to_the_folder_of_images(home: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/images").mkdir(parents=True)
    home.mkdir()
    (home / "images").symlink_to(tmp_path / "disk/images")
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    assert image.tree == tmp_path / "disk/images" / ("a" * 12) / "tree"


@pytest.mark.parametrize("permissions", [0o700, 0o777])
def test_the_runtime_folder_is_private_or_is_made_so(place: Path, permissions: int) -> None:
    made(place, permissions)
    assert runtime() == place
    assert mode(place) == 0o700


def test_nothing_goes_into_a_runtime_folder_of_somebody_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(place, 0o700)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    foreign = place.with_name(f"virtbench-{mine + 1}")
    place.rename(foreign)
    with raises(RequestError, f"{foreign} belongs to somebody else", "XDG_RUNTIME_DIR"):
        runtime()
    assert list(foreign.iterdir()) == []


def test_a_link_of_somebody_else_is_not_followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = place.with_name("mine")
    made(mine, 0o755)
    place.symlink_to(mine)
    if os.getuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        place.rename(place.with_name(f"virtbench-{os.getuid() + 1}"))
    with pytest.raises(RequestError, match="belongs to somebody else"):
        runtime()
    assert mode(mine) == 0o755


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a cache, an image on another disk, and a file of somebody else's; no engine works."""
    monkeypatch.setattr(uninstall, "BUILDERS", ())
    monkeypatch.setattr(uninstall, "runtime", lambda: home().parent / "runtime")
    for name in ("runtime/node-of-another-home", "elsewhere"):
        (home().parent / name).mkdir(parents=True)
    home().mkdir()
    (home() / "images").symlink_to(home().parent / "elsewhere")
    for part in ("cache", "images"):
        state(part)
    make(home(), {"cache/base-bookworm.tar": "x", "notes.txt": "mine", "images/aaaaaaaaaaaa/tree/x": "x"})
    return home()


def test_everything_that_the_suite_keeps_is_removed_and_nothing_else(kept: Path) -> None:
    ended = CliRunner().invoke(main, ["clean", "--all"])
    assert ended.exit_code == 0, ended.output
    assert f"removed: {kept / 'cache'}\n" in ended.output
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]
    assert not (kept.parent / "elsewhere").exists()
    assert (kept.parent / "runtime/node-of-another-home").exists()


def test_results_are_never_removed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstall, "find_runs", lambda _: [kept / "data/night"])
    monkeypatch.setattr(uninstall, "is_known_run", lambda _: True)
    ended = CliRunner().invoke(main, ["clean", "--all"])
    assert (ended.exit_code, "holds results" in ended.output) == (2, True)
    assert (kept / "cache/base-bookworm.tar").exists()


def test_of_an_engine_the_suites_images_are_removed_by_name_and_label() -> None:
    podman = BUILDERS[0]
    listing = (podman.program, "images", "--no-trunc", "--format")
    named = "b1 localhost/virtbench-base\nc2 virtbench\nd3 localhost/mine\ne4 <none>\nf5 virtbenches/x\ng6 <none>\n"
    answers = {
        (*listing, "{{.ID}} {{.Repository}}"): named,
        (*listing, "{{.ID}} {{.Repository}}", "--filter"): "e4 <none>\n",
        (*listing, "{{.ID}} {{.History}}"): "g6 localhost/virtbench-build:cpu\nh7 localhost/mine:virtbench\n",
    }
    node = FakeNode({argv: Completed(0, text, "") for argv, text in answers.items()})
    removed = uninstall._remove_images(node, podman)  # type: ignore[arg-type]
    names = ("localhost/virtbench-base", "virtbench", "localhost/virtbench-build:cpu", "<none>")
    assert removed == [f"image of podman: {name}" for name in names]
    assert node.ran[-1] == ["podman", "rmi", "--force", "b1", "c2", "g6", "e4"]
