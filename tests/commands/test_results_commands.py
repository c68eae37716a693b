"""``bench results …`` as a user calls it."""

import io
import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from rich.console import Console

import cli
from commands.results.command import as_table, entries
from provisioning.ledger import LedgerEntry
from suite.errors import RequestError
from suite.records.environment import Environment
from suite.records.record import Aggression, AggressorInstance, TrialRecord
from suite.results.runs import find_runs, runs_and_sweeps
from suite.results.store import Run, stored_plan
from suite.results.summary import summarise
from suite.sweep.directory import Accepted
from tests.commands.conftest import Bench, ended_well, refused
from tests.jobs import identity
from tests.suite.conftest import FAILED, make_plan, make_record
from tests.suite.sweep.conftest import make_sweep
from tests.test_rooms import REPOSITORY


@pytest.fixture
def bench(bench: Bench) -> Bench:
    return partial(bench, "results")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """results/old and results/new, each with a trial that is ok, and a failed one in new."""
    for name, year in (("old", 2025), ("new", 2026)):
        run = Run(tmp_path / "results" / name)
        run.begin(make_plan())
        run.save(make_record(run_id=identity(name), trial_id="vm-b000", started_at=f"{year}-01-01T00:00:00+00:00"))
    run.save(make_record(run_id=identity("new"), trial_id="vm-b001", block=1, **FAILED))
    return tmp_path / "results"


def test_runs_are_listed_for_people_and_for_machines(bench: Bench, runs: Path) -> None:
    told = bench("list").stdout
    assert told.index("results/old") < told.index("results/new"), "the newest is last"
    (old, new) = json.loads(bench("list", "--json").stdout)["runs"]
    stored = [stored_plan(runs / name).run_id for name in ("old", "new")]
    assert [old["run_id"], new["run_id"]] == stored
    assert (Path(old["directory"]).name, old["ok"], old["failed"]) == ("old", 1, 0)
    assert (Path(new["directory"]).name, new["ok"], new["failed"], new["models"]) == ("new", 1, 1, ["resnet50"])
    assert bench("list", str(runs / "old"), "--json").exit_code == 0


def test_a_note_and_tags_are_put_on_a_run_shown_and_found(bench: Bench, runs: Path) -> None:
    assert ended_well(bench("note", "old")).stdout == ""
    told = ended_well(bench("note", "old", "before the update", "--tag", "kernel-6.8", "--tag", "baseline")).stdout
    assert told == "tags: kernel-6.8, baseline\nnote: before the update\n"
    shown = ended_well(bench("show", "old"))
    assert "  tags: kernel-6.8, baseline\n  note: before the update\n" in shown.stdout
    assert "[kernel-6.8, baseline]" in ended_well(bench("list")).stdout
    (listed,) = json.loads(ended_well(bench("list", "--text", "UPDATE base", "--json")).stdout)["runs"]
    assert Path(listed["directory"]) == Path("results/old")
    assert listed["notes"]["text"] == "before the update"
    refused(bench("list", "--text", "nowhere"), "no run with 'nowhere'")
    assert ended_well(bench("note", "old", "", "--untag", "baseline")).stdout == "tags: kernel-6.8\n"
    ended_well(bench("note", "old", "--untag", "kernel-6.8"))
    assert not (runs / "old" / "notes.json").exists()
    refused(bench("note", "old", "--tag", "two words"), "is no tag")
    refused(bench("note", "nowhere", "x"), "there is no run nowhere")


@pytest.fixture
def sweep(runs: Path) -> Path:
    """A sweep of two cells beside the runs, with names as long as sweeps give them."""
    place = runs / "nightly-of-the-cluster"
    for model in ("resnet50", "alexnet"):
        cell = Run(place / f"synthetic-{model}-reference-quick-podman-4c953a61")
        cell.begin(make_plan(models=(model,)))
        cell.save(make_record(started_at="2026-02-01T00:00:00+00:00"))
    (place / "sweep.json").write_text(Accepted.of(make_sweep(), (), "ab" * 8).text())
    return place


def test_a_sweep_is_one_line_of_the_list_and_its_cells_are_asked_for(bench: Bench, sweep: Path) -> None:
    told = " ".join(bench("list").stdout.split())
    assert "sweep of 2 cells: synthetic, alexnet, resnet50 on bare-metal, container, vm" in told
    assert "4c953a61" not in told
    assert bench("list", f"results/{sweep.name}").stdout.count("4c953a61") == 2
    listed = json.loads(bench("list", "--json").stdout)
    assert [entry["directory"] for entry in listed["sweeps"]] == [f"results/{sweep.name}"]
    assert len(listed["sweeps"][0]["cells"]) == 2
    assert [run["sweep"] for run in listed["runs"]] == [None, None, f"results/{sweep.name}", f"results/{sweep.name}"]


@pytest.mark.parametrize("place", ["results", "results/nightly-of-the-cluster"])
@pytest.mark.usefixtures("sweep")
def test_the_list_fits_80_columns(place: str) -> None:
    found = entries([*map(summarise, find_runs([Path(place)]))], [Path(place)])
    stream = io.StringIO()
    Console(width=80, file=stream, highlight=False).print(as_table(found))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    names = "".join(line.split()[0] for line in lines if not line.startswith(" "))
    assert found[-1].directory in names, "the whole name is there, be it on several lines"


@pytest.mark.usefixtures("runs")
def test_a_run_or_a_record_is_shown_by_default_the_latest_run(bench: Bench, runs: Path) -> None:
    assert "failed: vm-b001: boot: no guest" in bench("show", "new").stdout
    told = json.loads(bench("show", str(runs / "new"), "--json").stdout)
    assert told["failures"] == [{"trial_id": "vm-b001", "kind": "boot", "message": "no guest"}]
    assert told["arms"] == [{"model": "resnet50", "target": "vm", "ok": 1, "failed": 1}]
    assert "throughput: 10 images/s" in bench("show", "new/vm-b000").stdout
    path = runs / "new/trials/vm-b001.json"
    assert TrialRecord.model_validate_json(bench("show", str(path), "--json").stdout).outcome.status == "failed"
    assert bench("show", "new/nothing").exit_code == 2
    assert json.loads(bench("show", "--json").stdout)["summary"]["directory"] == "results/new"


def test_a_victim_alone_and_beside_an_aggressor_are_two_arms(bench: Bench, runs: Path) -> None:
    run = Run(runs / "new")
    beside = Aggression(unit="bytes", begun_s=-1.0, ended_s=1e6, heard_s=[-1.0, 1e6], steps=[0, 9], work=[0.0, 9.0])
    for name in (None, "disk"):
        aggressors = [AggressorInstance(environment=Environment(), aggression=beside)] if name else []
        run.save(make_record(trial_id=f"c-{name}", target="container", aggressor=name, aggressors=aggressors))
    told = json.loads(bench("show", "new", "--json").stdout)
    assert {arm["target"]: arm["ok"] for arm in told["arms"]} == {"container": 1, "container-beside-disk": 1, "vm": 1}
    assert "resnet50 on container, beside disk, block" in bench("show", "new/c-disk").stdout


@pytest.mark.usefixtures("runs")
def test_trials_are_exported_to_a_file_and_to_standard_output(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(bench("export").stdout.splitlines()) == 4
    rows = [json.loads(line) for line in bench("export", "results/new", "--format", "jsonl").stdout.splitlines()]
    assert [row["ok"] for row in rows] == [True, False]
    assert "3 rows" in bench("export", "--format", "parquet", "--out", "a.parquet").stderr
    assert (tmp_path / "a.parquet").read_bytes()[:4] == b"PAR1"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(bench("export", "--format", "parquet", "--out", "b.parquet"), "virtbench[parquet]")
    assert not (tmp_path / "b.parquet").exists()


def test_a_run_or_a_sweep_is_removed_after_a_question(bench: Bench, sweep: Path, runs: Path) -> None:
    kept = bench("remove", "results/old", input="n\n")
    assert (kept.exit_code, (runs / "old").is_dir()) == (1, True)
    assert bench("remove", "results/old", input="y\n").exit_code == 0
    removed = bench("remove", f"results/{sweep.name}", "--yes")
    assert (removed.exit_code, removed.stdout) == (0, f"removed: results/{sweep.name}\n")
    assert sorted(path.name for path in runs.iterdir()) == ["new"]


def test_what_is_no_run_or_in_use_is_not_removed(
    bench: Bench, sweep: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "link").symlink_to(runs / "old")
    cell = next(path for path in sweep.iterdir() if path.is_dir())
    living = LedgerEntry(kind="run-directory", what=str(runs / "new"), boot_id="now", owner_pid=1, owner_started=0)
    monkeypatch.setattr("provisioning.ledger.living", lambda: [living])
    reasons = {"results": "no run", "results/link": "no run", str(cell): "a cell", "results/new": "running"}
    for place, why in reasons.items():
        refused(bench("remove", place, "--yes"), why)
    assert {path.name for path in runs.iterdir()} == {"old", "new", "link", sweep.name}


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results/ with a run, and a sweep's cells under another name."""
    monkeypatch.chdir(tmp_path)
    for name in ("synthetic-podman", "sweep"):
        shutil.copytree(REPOSITORY / "tests/samples/runs" / name, tmp_path / "results" / name)
    (tmp_path / "results/empty").mkdir()
    return tmp_path / "results"


def test_a_directory_stands_for_the_runs_and_sweeps_that_it_holds(two_runs: Path) -> None:
    held = [Path("results/sweep"), Path("results/synthetic-podman")]
    assert runs_and_sweeps([Path("results")]) == held
    assert runs_and_sweeps([*held, Path("nowhere")]) == [*held, Path("nowhere")]
    with pytest.raises(RequestError, match="results/empty holds no run"):
        runs_and_sweeps([Path("results/empty")])
    shutil.rmtree(two_runs / "sweep")
    both = CliRunner().invoke(cli.main, ["compare", "results", "--json"])
    assert both.exit_code == 0
    assert "comparing results/synthetic-podman" in both.stderr


@pytest.mark.parametrize(
    ("words", "incomplete", "names"),
    [
        (["compare"], "results/s", ["results/sweep", "results/synthetic-podman"]),
        (["report"], "results/sy", ["results/synthetic-podman"]),
        (["run", "--continue"], "", ["results/sweep", "results/synthetic-podman"]),
        (["results", "show"], "sy", ["synthetic-podman"]),
        (["compare", "--by"], "ho", ["host"]),
        (["compare", "results/sweep", "--by"], "data", ["data"]),
        (["compare", "--by", "host", "--by"], "m", ["machine", "memory", "model"]),
    ],
)
@pytest.mark.usefixtures("two_runs")
def test_the_shell_completes_names_of_runs_and_keys(words: list[str], incomplete: str, names: list[str]) -> None:
    complete = ShellComplete(cli.main, {}, "bench", "_BENCH_COMPLETE")
    assert [item.value for item in complete.get_completions(words, incomplete)] == names
