"""What deletes results: in every arrangement the runs that were named go, and nothing else."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from cli import main
from commands.results import removal
from commands.sweep import block, firing
from provisioning import ledger
from provisioning.images import image
from provisioning.paths import MARK, state
from provisioning.removal import uninstall
from suite.errors import RequestError
from suite.process_identity import ProcessIdentity
from suite.results.runs import find_runs
from suite.results.store import MANIFEST, PLAN, Run, StoreError
from suite.sweep.directory import Accepted
from tests.commands.conftest import Bench
from tests.jobs import identity
from tests.suite.conftest import make_plan, make_record
from tests.suite.sweep.conftest import make_sweep
from tests.test_web import browser, post

NOTES = "notes"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    return partial(bench, "results", "remove")


def a_run(directory: Path) -> Path:
    """A run with a record, a log, a lock, a figure, kept output and a manifest."""
    run = Run(directory)
    run.begin(make_plan())
    with run.exclusive():
        run.save(make_record(run_id=identity(directory.name), trial_id="vm-b000"))
        run.seal()
    written = {"bench.log": "ended", "plots/forest.svg": "<svg/>", f".kept/{'ab' * 16}": "seal", "report.html": "<p>"}
    return put(directory, written)


def put(directory: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two runs and a sweep of two cells in results/, and a directory of the user's beside it."""
    results = tmp_path / "results"
    for name in ("old", "new", "sweep/one", "sweep/two"):
        a_run(results / name)
    (results / "sweep/sweep.json").write_text(Accepted.of(make_sweep(), (), "ab" * 8).text())
    put(tmp_path / "mine", {"trials/thesis.json": "{}", "bench.log": "mine", NOTES: "mine"})
    return results


def files(top: Path) -> dict[str, str]:
    """All files and links below a directory, but those of the suite's own folder."""
    found = {}
    for directory, folders, names in os.walk(top):
        folders[:] = [name for name in folders if Path(directory, name) not in (top / "home", top / "runtime")]
        links = [name for name in folders if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory, name)
            found[str(path.relative_to(top))] = str(path.readlink()) if path.is_symlink() else path.read_text()
    return found


Arrange = Callable[[Path], object]


def linked(place: str, to: str) -> Arrange:
    return lambda top: (top / place).symlink_to(top / to)


def foreign(place: str, text: str = "mine") -> Arrange:
    return lambda top: put(top, {place: text})


def gone_to(place: str) -> Arrange:
    return lambda top: os.chdir(top / place)


def nothing(_: Path) -> None:
    """Arrange nothing."""


REFUSED: dict[str, tuple[Arrange, str, str]] = {
    "the results": (nothing, "results", "no run"),
    "the results, with a log of their own": (foreign("results/bench.log"), "results", "no run"),
    "the results, with a plan of the user's": (foreign("results/plan.json", "{}"), "results", "no run"),
    "the results, with a sweep of the user's": (foreign("results/sweep.json", "{}"), "results", "no run"),
    "the results, with a manifest of the user's": (foreign("results/manifest.json", "{}"), "results", "no run"),
    "the results as a run": (lambda top: a_run(top / "results"), "results", "holds another run"),
    "the working directory": (foreign("bench.log"), ".", "working directory"),
    "the working directory, a run": (gone_to("results/old"), ".", "working directory"),
    "a parent": (gone_to("results/old/trials"), "..", "working directory"),
    "a parent by name": (gone_to("results/old/trials"), "../../old", "working directory"),
    "a cell": (nothing, "results/sweep/one", "a cell"),
    "a cell from inside": (gone_to("results/sweep/one"), ".", "working directory"),
    "a cell by another spelling": (nothing, "results/old/../sweep/./one", "a cell"),
    "a cell through a link": (linked("shortcut", "results/sweep"), "shortcut/one", "a cell"),
    "a sweep from its cell": (gone_to("results/sweep/one"), "..", "working directory"),
    "a link to a run": (linked("results/link", "results/old"), "results/link", "a link"),
    "a link with a slash": (linked("results/link", "results/old"), "results/link/", "a link"),
    "a link to what is not there": (linked("results/link", "nowhere"), "results/link", "a link"),
    "a plan that is a link": (linked("mine/plan.json", "results/old/plan.json"), "mine", "no run"),
    "a directory of the user's": (nothing, "mine", "no run"),
    "a log with other files": (foreign("work/bench.log"), "mine", "no run"),
    "a file": (nothing, "mine/notes", "no run"),
    "records of a run": (nothing, "results/old/trials", "no run"),
    "nothing": (nothing, "results/never", "no run"),
    "a run around another": (lambda top: a_run(top / "results/old/deep/er"), "results/old", "holds another run"),
    "a run around a sweep": (
        lambda top: (top / "results/sweep").rename(top / "results/old/sweep"),
        "results/old",
        "holds another run",
    ),
    "the root": (nothing, "/", "working directory"),
}


@pytest.mark.parametrize(("arrange", "place", "why"), REFUSED.values(), ids=REFUSED)
def test_what_must_not_be_removed_is_refused_by_any_spelling(
    bench: Bench, results: Path, arrange: Arrange, place: str, why: str
) -> None:
    top = results.parent
    arrange(top)
    before = files(top)
    done = bench(place, "--yes")
    assert (done.exit_code, why in done.stderr) == (2, True), done.output
    assert files(top) == before


REMOVED: dict[str, tuple[Arrange, str, str, set[str]]] = {
    "a run": (nothing, "results/old", "results/old", set()),
    "a run with a slash": (nothing, "results/old/", "results/old", set()),
    "a run by another spelling": (nothing, "results/sweep/../old/.", "results/old", set()),
    "a run through a link": (linked("shortcut", "results"), "shortcut/old", "results/old", set()),
    "a sweep": (nothing, "results/sweep", "results/sweep", set()),
    "from inside the results": (gone_to("results/new"), "../old", "results/old", set()),
    "notes": (foreign("results/old/notes"), "results/old", "results/old", {"notes"}),
    "a hidden file": (foreign("results/old/.env"), "results/old", "results/old", {".env"}),
    "what is no record": (foreign("results/old/trials/a.json"), "results/old", "results/old", {"trials/a.json"}),
    "another model": (foreign("results/old/models/best.pt"), "results/old", "results/old", {"models/best.pt"}),
    "a directory": (foreign("results/old/src/main.py"), "results/old", "results/old", {"src/main.py"}),
    "a note in a cell": (foreign("results/sweep/one/notes"), "results/sweep", "results/sweep", {"one/notes"}),
    "a note in a sweep": (foreign("results/sweep/notes"), "results/sweep", "results/sweep", {"notes"}),
    "a link that leads out": (linked("results/old/out", "mine"), "results/old", "results/old", {"out"}),
    "models that are a link": (linked("results/old/models", "mine"), "results/old", "results/old", {"models"}),
    "a record that is a link": (
        linked("results/old/trials/x.json", "results/new/trials/vm-b000.json"),
        "results/old",
        "results/old",
        {"trials/x.json"},
    ),
    "odd names": (foreign("results/old/a\nb *?"), "results/old", "results/old", {"a\nb *?"}),
    "a damaged plan that is listed": (foreign("results/old/plan.json", "torn"), "results/old", "results/old", set()),
    "a run beside a file of a name": (foreign("results/sweep.json", "{}"), "results/old", "results/old", set()),
    "a refused request": (foreign("results/early/bench.log", "bench: no"), "results/early", "results/early", set()),
}


@pytest.mark.parametrize(("arrange", "place", "directory", "stay"), REMOVED.values(), ids=REMOVED)
def test_only_the_named_runs_go_and_foreign_files_stay_and_are_named(
    bench: Bench, results: Path, arrange: Arrange, place: str, directory: str, stay: set[str]
) -> None:
    top = results.parent
    arrange(top)
    expected = {
        name: text
        for name, text in files(top).items()
        if not name.startswith(f"{directory}/") or name.removeprefix(f"{directory}/") in stay
    }
    done = bench(place, "--yes")
    assert done.exit_code == 0, done.output
    assert files(top) == expected
    assert (top / directory).exists() == bool(stay)
    assert done.stderr.count("stays, as it is not of the suite: ") == len(stay)
    assert not [*top.glob("**/.virtbench-removal*")]


def test_what_goes_is_listed_with_its_runs_trials_and_size_before_the_question(bench: Bench, results: Path) -> None:
    done = bench("results/sweep", "results/old", "results/old/.", input="n\n")
    assert done.exit_code == 1
    assert "results/sweep: sweep, 2 runs, 2 trials, 0.0 MB" in done.stderr
    assert done.stderr.count("1 run, 1 trial, 0.0 MB") == 1
    assert len(find_runs([results])) == 4


def test_a_run_on_or_below_a_mount_is_refused(bench: Bench, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for point in ("old", "old/models", "old/notes/deep"):
        monkeypatch.setattr(ledger, "mounts", lambda point=point: [results / point, Path("/")])
        done = bench("results/old", "--yes")
        assert (done.exit_code, "is mounted" in done.stderr) == (2, True)
    assert (results / "old" / PLAN).exists()


def test_what_a_kill_has_left_is_in_no_list_and_clean_deletes_it(
    bench: Bench, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_: str) -> Iterator[None]:
        raise SystemExit(137)

    removal = ledger.KINDS["removal"]
    monkeypatch.setitem(ledger.KINDS, "removal", ledger.LedgerKind(removal.form, killed))
    bench("results/old", "--yes")
    monkeypatch.setitem(ledger.KINDS, "removal", removal)
    (left,) = results.glob(".virtbench-removal*")
    assert (left / PLAN).exists()
    assert left not in find_runs([results])
    assert not (results / "old").exists()
    monkeypatch.setattr(ProcessIdentity, "has_ended", lambda _: True)
    assert ledger.clean() == [f"removal {left}"]
    assert not left.exists()


@pytest.mark.parametrize("name", ["/etc", "/", "relative/.virtbench-removal-0123456789ab", "/x/.virtbench-removal-1"])
def test_an_entry_of_the_ledger_removes_no_directory_of_another_name(name: str) -> None:
    with pytest.raises(ledger.LedgerError, match="left alone"):
        ledger._removal("removal", name)


def test_a_run_is_removed_while_the_home_is_full(bench: Bench, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(ledger, "write_atomic", full)
    done = bench("results/old", "--yes")
    assert done.exit_code == 0, done.output
    assert not (results / "old").exists()
    assert not [*results.glob(".virtbench-removal*")]


def test_a_real_mount_below_a_run_is_refused(bench: Bench, results: Path) -> None:
    place = results / "old/models"
    place.mkdir()
    if subprocess.run(["mount", "--bind", results.parent / "mine", place], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        done = bench("results/old", "--yes")
    finally:
        subprocess.run(["umount", place], check=True)
    assert (done.exit_code, "is mounted" in done.stderr) == (2, True)
    assert (results / "old" / MANIFEST).exists()
    assert (results.parent / "mine" / NOTES).exists()


OWNERS = [(1001, "belongs to another user"), (0, ""), (os.geteuid(), "")]


@pytest.mark.parametrize(("uid", "why"), OWNERS)
def test_another_users_run_is_refused(
    bench: Bench, results: Path, uid: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, run = Path.stat, (results / "old").resolve()

    def told(path: Path, **options: bool) -> os.stat_result:
        status = stat(path, **options)
        return os.stat_result((*status[:4], uid, *status[5:])) if path == run else status

    monkeypatch.setattr(Path, "stat", told)
    done = bench("results/old", "--yes")
    assert (done.exit_code, why in done.stderr) == (2 if why else 0, True), done.output
    assert (results / "old" / PLAN).exists() == bool(why)


def another_directory(top: Path) -> None:
    (top / "results/old").rename(top / "aside")
    a_run(top / "results/old")


def a_link_to_another_run(top: Path) -> None:
    (top / "results/old").rename(top / "aside")
    (top / "results/old").symlink_to(top / "results/new")


def another_plan(top: Path) -> None:
    (top / "results/old/plan.json").rename(top / "results/old/plan.bak")
    put(top, {"results/old/plan.json": "mine"})


def records_elsewhere(top: Path) -> None:
    (top / "results/old/trials").rename(top / "aside")
    (top / "results/old/trials").symlink_to(top / "results/new/trials")


def more(top: Path) -> None:
    put(top, {"results/old/notes": "mine", "results/old/trials/thesis": "mine"})


SWAPS = [another_directory, a_link_to_another_run, another_plan, records_elsewhere, more]


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
def test_what_is_changed_between_the_question_and_the_answer_stays(results: Path, swap: Arrange) -> None:
    top, contents = results.parent, removal.removable(results / "old")
    swap(top)
    before = files(top)
    own = {str(path.relative_to(top)) for path in contents.own}
    with nullcontext() if swap is more else pytest.raises((RequestError, OSError)):
        removal.remove(contents)
    gone = before.keys() - files(top).keys()
    assert gone <= own
    assert not gone or swap in (more, another_plan, records_elsewhere)
    assert not [*top.glob("**/.virtbench-removal*")]


def by_the_pages(top: Path) -> None:
    assert post(browser(top / "results"), "/delete/old").status_code == 303


def by_a_schedule(top: Path) -> None:
    put(top / "results/old", {"schedule.json": "{}"})
    put(top / "results/new", {"schedule.json": "{}"})
    (top / "results/old").rename(top / "results/0-old")
    assert firing._remove_older(top / "results", 2, ()) == [str(top / "results/0-old")]
    if (top / "results/0-old").exists():
        (top / "results/0-old").rename(top / "results/old")


def by_a_block(top: Path) -> None:
    (top / "results/sweep").rename(top / "aside")
    (top / "results/old").rename(top / "results/sweep")
    put(top / "results/sweep", {"sweep.json": Accepted.of(make_sweep(), (), "ab" * 8).text()})
    block._remove(top / "results/sweep")
    if (top / "results/sweep").exists():
        (top / "results/sweep").rename(top / "results/old")


def by_clean_all(top: Path) -> None:
    assert removal.remove_kept(top / "results/old")


def by_image_remove(top: Path) -> None:
    (top / "results/old").rename(image_directory := top / "aaaaaaaaaaaa")
    put(image_directory, {"image.json": "{}", "tree/etc/passwd": "root"})
    stored = cast("Any", SimpleNamespace(directory=image_directory, tree=image_directory / "tree", mounts=True))
    with pytest.raises(RequestError, match="is no part of an image and stays"):
        image.remove([stored])
    assert not (image_directory / "tree").exists()
    image_directory.rename(top / "results/old")


WAYS = [by_the_pages, by_a_schedule, by_a_block, by_clean_all, by_image_remove]
"""What else deletes. ``bench sweep cancel`` deletes nothing."""
THEIRS: dict[str, tuple[Arrange, str]] = {
    "notes": (foreign("results/old/notes"), "notes"),
    "a hidden file": (foreign("results/old/.env"), ".env"),
    "an odd name": (foreign("results/old/a\nb *?"), "a\nb *?"),
    "a directory": (foreign("results/old/src/main.py"), "src/main.py"),
    "kept text": (foreign("results/old/.kept/notes"), ".kept/notes"),
    "a link that leads out": (linked("results/old/out", "mine"), "out"),
    "a link among what is kept": (linked(f"results/old/.kept/{'cd' * 16}", "mine/notes"), f".kept/{'cd' * 16}"),
    "a link to a run": (linked("results/old/models", "results/new/trials"), "models"),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("arrange", "stays"), THEIRS.values(), ids=THEIRS)
def test_what_is_not_of_the_suite_stays_whatever_deletes_around_it(
    results: Path, way: Arrange, arrange: Arrange, stays: str
) -> None:
    top = results.parent
    arrange(top)
    before = files(top)
    own = {name for name in before if name.startswith("results/old/")} - {f"results/old/{stays}"}
    way(top)
    after = files(top)
    assert after[f"results/old/{stays}"] == before[f"results/old/{stays}"]
    others = [name for name in before if name.startswith(("mine/", "results/new/"))]
    assert {name: after.get(name) for name in others} == {name: before[name] for name in others}
    assert own - after.keys() or way is by_image_remove, "something was deleted"
    assert not [*top.glob("**/.virtbench-removal*")]


HOMES: dict[str, tuple[Arrange, set[str]]] = {
    "the suite's alone": (nothing, set()),
    "a file of another name": (foreign("home/notes"), {"notes"}),
    "data of the user's": (foreign("home/data/photo.jpg"), {"data/photo.jpg"}),
    "pictures of the user's": (foreign("home/images/photo.jpg"), {"images/photo.jpg"}),
    "caches of the user's": (foreign("home/cache/pip/http/ab"), {"cache/pip/http/ab"}),
    "a directory called after a digest": (
        foreign("home/images/0123456789ab/notes"),
        {"images/0123456789ab/notes"},
    ),
    "a note beside an image": (foreign("home/images/aaaaaaaaaaaa/notes"), {"images/aaaaaaaaaaaa/notes"}),
    "a picture in a generated set": (foreign("home/data/small-2/mine.jpg"), {"data/small-2/mine.jpg"}),
    "a set that was not generated": (foreign("home/data/imagenet/n01/a.jpg"), {"data/imagenet/n01/a.jpg"}),
    "a disk of the user's": (foreign("home/data-disks/debian.img"), {"data-disks/debian.img"}),
    "a link in the data": (linked("home/data/linked", "mine"), {"data/linked"}),
    "a link among the images": (linked("home/images/0123456789ab", "mine"), {"images/0123456789ab"}),
    "a snapshot that is a link": (
        linked("home/snapshots/snapshot-0123456789ab", "mine"),
        {"snapshots/snapshot-0123456789ab"},
    ),
    "a self-test of the user's": (foreign("home/selftest.json", "{}"), {"selftest.json"}),
    "odd names": (foreign("home/cache/a\nb *?"), {"cache/a\nb *?"}),
}


def a_home(top: Path) -> None:
    """A home with an image, caches, and a set that is not finished."""
    for part in (*uninstall.PARTS, "cache/web"):
        if part != "data":
            state(*part.split("/"))
    made = {
        "images/aaaaaaaaaaaa/tree/etc/passwd": "",
        "cache/kvm.json": "{}",
        "cache/web/report-1": "",
        "kept/secret": "x",
    }
    made |= {"scratch/scratch-0123456789ab/disk.img": "", "data-disks/0123456789abcdef.img": ""}
    put(top / "home", made)


def clean_all(monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(uninstall, "BUILDERS", ())
    monkeypatch.setattr(uninstall, "runtime", lambda: Path("runtime"))
    monkeypatch.setattr("commands.machine.foreign_things", list)
    done = CliRunner().invoke(main, ["clean", "--all"])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize(("arrange", "stay"), HOMES.values(), ids=HOMES)
def test_clean_all_removes_what_the_suite_has_made_in_its_home(
    results: Path, arrange: Arrange, stay: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = results.parent
    a_home(top)
    words = ["data", "make", "--images", "2", "--size", "small", "--workers", "1"]
    assert CliRunner().invoke(main, words).exit_code == 0
    arrange(top)
    before = files(top)
    done = clean_all(monkeypatch)
    left = {
        str(path.relative_to(top / "home"))
        for path in (top / "home").rglob("*")
        if not path.is_dir() or path.is_symlink()
    }
    assert {name for name in left if not name.endswith(MARK)} == stay
    assert bool(stay) == (top / "home").exists()
    assert files(top).items() >= {name: text for name, text in before.items() if ".kept" not in name}.items()
    assert [name for name in stay if name.partition("/")[0] not in done.stderr] == []


@pytest.mark.parametrize("part", uninstall.PARTS)
def test_clean_all_leaves_directories_that_the_suite_has_not_made(
    results: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that was the user's before it was that of the suite."""
    top = results.parent
    names = {"secret", "boot-sector.img", "0123456789abcdef.img", "scratch-0123456789ab/x", "aaaaaaaaaaaa/tree/x"}
    put(top / "home" / part, dict.fromkeys(names, "mine"))
    a_home(top)
    (top / "home" / part / "kept").mkdir()
    done = clean_all(monkeypatch)
    unmarked = "stays, as no .made-by-virtbench in it shows that the suite has made it: "
    for place in (top / "home" / part, top / "home"):
        assert f"{unmarked}{place}; look at what is in it, and remove it yourself" in done.stderr
    assert {name for name in names if (top / "home" / part / name).exists()} == names
    assert os.listdir(top / "home") == [part]


def test_what_is_mounted_is_never_emptied(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = results.parent
    a_home(top)
    place = put(top / "home", {"scratch/scratch-0123456789ab/disk.img": "mine"}) / "scratch/scratch-0123456789ab"
    monkeypatch.setattr(ledger, "mounts", lambda: [Path("/"), place / "deep"])
    done = CliRunner().invoke(main, ["clean", "--all"])
    assert (done.exit_code != 0, "is mounted" in done.stderr) == (True, True)
    with pytest.raises(ledger.LedgerError, match="is mounted"):
        ledger._remove_directory(str(place))
    assert (place / "disk.img").read_text() == "mine"


@pytest.mark.parametrize("mode", [0o755, 0o707, None], ids=["others read", "others write", "a link"])
def test_a_doomed_directory_that_the_suite_has_not_made_stays(results: Path, mode: int | None) -> None:
    place = results / ".virtbench-removal-0123456789ab"
    if mode is None:
        place.symlink_to(results / "old")
    else:
        a_run(place).chmod(mode)
    with pytest.raises(ledger.LedgerError, match="left alone"):
        ledger._remove_private(str(place))
    assert (place / PLAN).exists()
