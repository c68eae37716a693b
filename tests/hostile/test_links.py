"""Links, pipes and directories that somebody else has put where the suite reads and writes."""

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from analysis.figures.plots import draw
from analysis.load.records import load
from analysis.report.export import FORMATS, Format, write
from provisioning.batch.remote import StreamProcess
from scenarios.datasets.writer import make
from suite.errors import BenchError, RequestError
from suite.records.headers import read_head, read_header
from suite.results import files
from suite.results.layout import POOL
from suite.results.store import (
    MANIFEST,
    PLAN,
    ListedFile,
    Run,
    StoreError,
    read_manifest,
    read_record,
    request_stop,
    stop_requested,
    stored_plan,
    sweep_temporaries,
    write_atomic,
    write_output,
)
from suite.sweep.directory import CellRun, SweepDirectory
from suite.sweep.file_transfer import Outbox, encode, receive_file
from suite.sweep.locks import holders, locked
from tests.analysis.conftest import a_comparison, known
from tests.analysis.test_plots import group
from tests.suite.conftest import FAILED, make_plan, make_record

NOBODY = 65534
# A reader that waits for somebody to write into a pipe waits for ever.
Place = Callable[[Path, Path], object]
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices, and gives files away")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file, and a directory of its own, that nobody may change through the suite."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("precious")
    return tmp_path / "victim"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def untouched(victim: Path) -> bool:
    return [(path.name, path.read_text()) for path in victim.iterdir()] == [("file", "precious")]


# ---- writing


@AS_ROOT
@pytest.mark.parametrize("special", [Path.symlink_to, lambda path, _: os.mkfifo(path)])
def test_a_figure_is_not_drawn_into_what_another_user_put_there(run: Path, victim: Path, special: Place) -> None:
    (run / "plots").mkdir()
    special(path := run / "plots/figure-2-synthetic-throughput.png", victim / "file")
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(RequestError, match=r"throughput\.png: it is not a regular file, and belongs to another user"):
        draw(a_comparison(group()), run / "plots")
    assert not path.is_file() or path.is_symlink()
    assert untouched(victim)


def test_figures_are_not_drawn_into_the_directory_that_a_link_leads_to(run: Path, victim: Path) -> None:
    (run / "plots").symlink_to(victim)
    with pytest.raises(RequestError, match="plots is a link or a file, no directory"):
        draw(a_comparison(group()), run / "plots")
    assert untouched(victim)


def test_a_directory_for_figures_that_the_user_names_may_be_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "mine").symlink_to(victim)
    assert draw(a_comparison(group()), tmp_path / "mine")
    assert len(list(victim.iterdir())) == 5


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_leaves_what_links_of_its_temporary_name_lead_to(run: Path, victim: Path, form: Format) -> None:
    (run / ".trials.x.tmp").symlink_to(victim / "file")  # a name that could be guessed
    assert write([pd.DataFrame({"a": [1]})], form, run / "trials.x") == 1
    assert untouched(victim)


@pytest.mark.parametrize("form", FORMATS)
def test_an_output_that_the_user_names_by_a_link_is_what_the_link_leads_to(tmp_path: Path, form: Format) -> None:
    (tmp_path / "to").mkdir()
    for number, target in enumerate(("to/old", "to/new", "again")):
        (tmp_path / "again").unlink(missing_ok=True)
        (tmp_path / "again").symlink_to(tmp_path / "to/last")
        (tmp_path / "to/old").write_text("old")
        (link := tmp_path / f"out{number}").symlink_to(target)
        write([pd.DataFrame({"a": [1]})], form, link)
        assert (link.is_symlink(), link.resolve().parent) == (True, tmp_path / "to")
        assert link.read_bytes() not in (b"", b"old")


@AS_ROOT
@pytest.mark.parametrize("form", FORMATS)
def test_an_output_that_is_a_device_is_written_to_and_not_replaced(tmp_path: Path, form: Format) -> None:
    os.mknod(null := tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(full := tmp_path / "full", stat.S_IFCHR | 0o666, os.makedev(1, 7))
    os.mknod(disk := tmp_path / "disk", stat.S_IFBLK | 0o666, os.makedev(1, 1))
    (link := tmp_path / "link").symlink_to(null)
    for path in (null, link):
        assert write([pd.DataFrame({"a": [1]})], form, path) == 1
    with pytest.raises(StoreError, match=r"cannot write .*full: No space left"):
        write([pd.DataFrame({"a": [1]})], form, full)
    with pytest.raises(StoreError, match=r"cannot write .*disk: it is not a file, a pipe or a character device"):
        write([pd.DataFrame({"a": [1]})], form, disk)
    assert [null.is_char_device(), full.is_char_device(), disk.is_block_device(), link.is_symlink()] == [True] * 4


@pytest.mark.parametrize("form", FORMATS)
def test_an_output_that_is_a_pipe_is_written_to(tmp_path: Path, form: Format) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        content = reader.submit(pipe.read_bytes)
        write([pd.DataFrame({"a": [1]})], form, pipe)
    write([pd.DataFrame({"a": [1]})], form, tmp_path / "file")
    assert pipe.is_fifo()
    assert content.result() == (tmp_path / "file").read_bytes()


def test_an_output_that_is_an_open_descriptor_continues_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as file:
        write_output(Path(f"/proc/self/fd/{file.fileno()}"), "after\n")
    assert log.read_text() == "before\nafter\n"


def test_an_output_whose_links_lead_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreError, match="Too many levels of symbolic links"):
        write_output(tmp_path / "a", "text")


def save(run: Path) -> None:
    CellRun(run, 0).save(make_record(**FAILED))


def lock(run: Path) -> None:
    with Run(run).exclusive():
        pytest.fail("held through a link")


def lock_sweep(run: Path) -> None:
    with locked(run, "sweep"):
        pytest.fail("locked through a link")


@pytest.mark.parametrize(
    ("link", "target", "write", "error", "why"),
    [
        (".lock", "file", lock, RequestError, "it is a link, and links are not followed"),
        (".locks", "", lock_sweep, StoreError, r"\.locks is a link"),
        ("trials", "", save, StoreError, "trials is a link or a file"),
        ("attempts", "", save, StoreError, "attempts is a link or a"),
        ("cell", "", lambda run: receive_file(run, encode("cell/trials/a.json", "{}")), StoreError, "cell is a link"),
        ("n1.log", "file", lambda run: StreamProcess(["true"], [], run / "n1.log"), OSError, "links are not followed"),
    ],
)
def test_nothing_of_a_run_or_a_sweep_is_written_through_a_link(
    run: Path, victim: Path, link: str, target: str, write: Callable[[Path], object], error: type[Exception], why: str
) -> None:
    (run / link).symlink_to(victim / target)
    with pytest.raises(error, match=why):
        write(run)
    assert untouched(victim)


def test_a_stop_is_not_written_through_a_link(run: Path, victim: Path) -> None:
    (run / ".stop").symlink_to(victim / "new")
    request_stop(run)
    assert (stop_requested(run), untouched(victim)) == (True, True)


@AS_ROOT
def test_records_are_not_written_into_a_directory_of_a_third_owner(run: Path) -> None:
    (run / "trials").mkdir()
    os.chown(run / "trials", NOBODY, NOBODY)
    with pytest.raises(StoreError, match="trials belongs to another user"):
        Run(run).save(make_record())
    os.chown(run, NOBODY, NOBODY)  # a run of that user, which root was asked to continue
    assert Run(run).save(make_record()).is_file()


def test_a_run_that_the_user_names_by_a_link_is_continued(tmp_path: Path, run: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    store = Run(tmp_path / "latest")
    with store.exclusive():
        store.begin(make_plan())
        store.save(make_record())
    assert len(list(run.glob("trials/*.json"))) == 1


def test_a_data_set_is_not_made_through_a_linked_class_folder(run: Path, victim: Path) -> None:
    victim.chmod(0o700)
    (run / "set").mkdir()
    (run / "set/class-0000").symlink_to(victim)
    # A directory of others is refused by its first look; the link comes after that.
    with pytest.raises(BenchError):
        make(run / "set", 2, "small", classes=1, workers=1)
    assert (untouched(victim), victim.stat().st_mode & 0o777) == (True, 0o700)


def test_temporary_names_cannot_be_guessed(run: Path) -> None:
    seen = set()
    for _ in range(2):
        with files.whole(run / "file"):
            seen |= {path.name for path in run.iterdir()}
    assert len(seen - {"file"}) == 2


def test_only_temporaries_of_the_suites_own_form_are_removed(run: Path, victim: Path) -> None:
    (run / "trials").symlink_to(victim)
    (run / "plots").mkdir()
    for name in (".notes.tmp", ".a.json.tmp", ".virtbench.tmp", f".virtbench.{os.uname().nodename}.1-1-1.00.tmp"):
        (run / name).touch()
        (run / "plots" / name).touch()
    assert (sweep_temporaries(run), len(list(run.iterdir()))) == ([], 6)


# ---- reading


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text(make_record().model_dump_json(indent=1))
    path.symlink_to(target)


SPECIAL = pytest.mark.parametrize("special", [as_pipe, as_link])
Special = Callable[[Path], None]


@SPECIAL
def test_a_record_that_is_no_regular_file_is_none_and_holds_no_reader(run: Path, special: Special) -> None:
    store = Run(run)
    store.begin(make_plan())
    store.save(make_record(trial_id="good"))
    path = run / "trials/bad.json"
    special(path)
    assert [record.trial_id for record in store.records()] == [*store.finished()] == ["good"]
    assert (read_head(path), read_header(path), read_record(path)) == (None, None, None)
    assert "cannot be read" in str(load([run]).warnings[0].message)
    with pytest.raises(files.SpecialFileError):
        ListedFile.of(path)
    store.seal()
    assert set(known(read_manifest(run)).files) == {PLAN, "trials/good.json"}
    store.save(make_record(trial_id="bad"))
    assert (path.is_symlink(), path.is_file()) == (False, True), "its record takes the place"


@SPECIAL
def test_no_other_file_of_a_run_holds_its_reader(run: Path, special: Special) -> None:
    for name in (PLAN, MANIFEST, "sweep.json", POOL):
        special(run / name)
        (run / "elsewhere").unlink(missing_ok=True)
    (run / ".locks").mkdir()
    special(run / ".locks/sweep.json")
    for read in (stored_plan, read_manifest, lambda place: SweepDirectory(place).accepted()):
        with pytest.raises(RequestError):
            read(run)
    assert holders(run) == []
    assert list(Outbox(run).unsent()) in ([], [run / ".locks/elsewhere"])


def test_a_pipe_as_a_lock_file_is_refused_and_not_waited_for(run: Path) -> None:
    os.mkfifo(run / ".lock")
    with pytest.raises(RequestError, match="not a regular file"), Run(run).exclusive():
        pytest.fail("held a pipe")


def test_what_is_written_keeps_its_old_content_when_writing_fails(run: Path) -> None:
    write_atomic(run / "file", "old")

    def fail() -> None:
        with files.whole(run / "file") as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [(path.name, path.read_text()) for path in run.iterdir()] == [("file", "old")]
