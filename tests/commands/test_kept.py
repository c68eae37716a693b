"""What ``bench compare`` and ``bench report`` keep beside a run: shown again at once, and never when out of date."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import cli
from commands.compare.kept import listing, once
from commands.run.command import _tell
from suite.errors import RequestError
from suite.results.layout import KEPT
from suite.results.store import Run
from tests.commands.conftest import Bench, ended_well
from tests.test_rooms import REPOSITORY

RUNS = REPOSITORY / "tests/samples/runs"
HEAVY = {"pandas", "numpy", "scipy", "seaborn", "matplotlib", "torch"}

Show = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a stored run."""
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copytree(RUNS / "synthetic-podman", tmp_path / "run", ignore=shutil.ignore_patterns("plots", KEPT))
    return tmp_path / "run"


@pytest.fixture
def show(run: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """``show(costs=True)``: print the same text on both streams; return how often it was made so far."""
    made: list[dict[str, object]] = []

    def _show(*more: Path, **options: object) -> int:
        def make() -> list[Path]:
            made.append(options)
            print("the answer\x1b[31m")
            print("drawn", file=sys.stderr)
            (run / "figure.svg").write_text(f"figure {len(made)}")
            return [run / "figure.svg"]

        once([run, *more], options, make)
        assert capsys.readouterr() == ("the answer\\u001b[31m\n" if made else "", "drawn\n")
        return len(made)

    return _show


def files(run: Path) -> list[Path]:
    return [*(run / KEPT).iterdir()]


def test_the_same_request_is_answered_by_what_was_kept_for_it(
    run: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [show(), show()] == [1, 1]
    assert len(files(run)) == 1
    assert [show(), show(costs=True), show(run.parent)] == [1, 2, 3]
    monkeypatch.setenv("COLUMNS", "120")
    assert show() == 4
    monkeypatch.setattr("commands.compare.kept.suite_version", lambda: "0.0.9")
    assert show() == 5, "another version writes the file anew"
    assert len(files(run)) == 4


CHANGES: dict[str, Callable[[Path], object]] = {
    "a record is edited": lambda run: _edited(next((run / "trials").iterdir())),
    "a record is added": lambda run: shutil.copy(next((run / "trials").iterdir()), run / "trials/more.json"),
    "a record is removed": lambda run: next((run / "trials").iterdir()).unlink(),
    "the plan is edited": lambda run: _edited(run / "plan.json"),
    "a model's quality comes in": lambda run: (run / "quality.json").write_text("{}"),
    "a kept model comes in": lambda run: shutil.copytree(run / "trials", run / "models", copy_function=_as_model),
    "the run becomes a cell": lambda run: (run.parent / "sweep.json").write_text("{}"),
    "this machine is certified": lambda run: (run.parent / "home/selftest.json").write_text("{}"),
    "a figure is gone": lambda run: (run / "figure.svg").unlink(),
    "a figure is another": lambda run: (run / "figure.svg").write_text("drawn by hand"),
    "the kept file is cut": lambda run: files(run)[0].write_bytes(files(run)[0].read_bytes()[:-9]),
    "the kept file is forged": lambda run: _forged(files(run)[0]),
    "the kept file is a link": lambda run: _linked(files(run)[0]),
    "it was kept by another user": lambda run: (run.parent / "home/kept/secret").write_text("another"),
}


def _edited(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def _as_model(source: str, target: str) -> None:
    Path(target).with_suffix(".pt").write_text(source)


def _forged(path: Path) -> None:
    path.write_text(path.read_text().replace("the answer", "another one"))


def _linked(path: Path) -> None:
    shutil.move(path, path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_out_of_date_damaged_or_foreign_is_made_again(run: Path, show: Show, change: str) -> None:
    assert show() == 1
    CHANGES[change](run)
    assert show() == 2
    assert show() == 2, "and kept again"


def test_a_directory_that_cannot_be_written_is_shown_all_the_same(
    run: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / KEPT).write_text("no directory")
    assert [show(), show()] == [1, 2]
    (run / KEPT).unlink()
    (run.parent / "elsewhere").mkdir()
    (run / "more").symlink_to(run.parent / "elsewhere")
    assert [show(), show()] == [3, 4], "a link can lead to records that nobody looks at"
    (run / "more").unlink()
    monkeypatch.setenv("VIRTBENCH_HOME", "/proc/1/none")
    assert [show(), show()] == [5, 6]


def test_nothing_is_kept_of_a_run_that_was_written_meanwhile_or_of_a_failure(run: Path) -> None:
    def grow() -> list[Path]:
        shutil.copy(next((run / "trials").iterdir()), run / "trials/more.json")
        return []

    def fail() -> list[Path]:
        raise RequestError("no usable record")

    listed = listing([run])
    once([run], {}, grow)
    once([run], {}, list, listed)  # as figures behind a text, for both of which the records were read once
    with pytest.raises(RequestError):
        once([run], {}, fail)
    assert not (run / KEPT).exists()


@pytest.mark.parametrize("words", [("compare",), ("compare", "--json"), ("report",)])
def test_the_second_time_imports_nothing_of_the_analysis(bench: Bench, run: Path, words: tuple[str, ...]) -> None:
    first = ended_well(bench(*words, "run"))
    written = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    code = f"import cli, sys\ntry:\n    cli.main()\nfinally:\n    print({HEAVY} & sys.modules.keys(), file=sys.stderr)"
    command = [sys.executable, "-c", code, *words, "run"]
    second = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False
    )
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert second.stderr == f"{first.stderr}set()\n"
    assert {path: path.stat().st_mtime_ns for path in written} == written, "no figure is drawn again"
    if "--json" in words:
        assert json.loads(second.stdout)["answer"]


def test_the_first_compare_of_a_run_shows_what_the_run_kept_at_its_end_and_draws_it(
    bench: Bench, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(_comparison: object, place: Path, _reference: object, _formats: object, _width: object) -> list[Path]:
        place.mkdir(exist_ok=True)
        (place / "forest.svg").write_text("drawn")
        return [place / "forest.svg"]

    monkeypatch.setattr("analysis.figures.plots.draw", draw)
    first = bench("compare", "run")
    shutil.rmtree(run / KEPT)
    settings = cli.main.context_settings
    ended = CliRunner().invoke(
        click.command(context_settings=settings)(lambda: _tell([], Run(Path("run")), as_json=False))
    )
    assert ended.exit_code == 0, ended.output
    assert first.stdout.splitlines()[0] in ended.stdout
    monkeypatch.delattr("commands.compare.show.Shown.tell")
    drawn = next((run / "plots").iterdir())
    drawn.unlink()
    again = bench("compare", "run")
    assert (again.exit_code, again.stdout, again.stderr) == (0, first.stdout, first.stderr)
    assert drawn.exists()


def test_clean_all_takes_what_was_kept(bench: Bench, run: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.machine.remove_everything", lambda *_: [])
    show()
    (run.parent / "results/sweep").mkdir(parents=True)
    shutil.copytree(run, run.parent / "results/night")
    shutil.copytree(run, run.parent / "results/sweep/cell")
    done = bench("clean", "--all")
    assert {f"removed: results/{name}/{KEPT}" for name in ("night", "sweep/cell")} <= {*done.stdout.splitlines()}
    assert not [*(run.parent / "results").rglob(KEPT)]
    assert [*(run.parent / "results").rglob("*.json")], "records stay"
