"""Defaults of a project: ``virtbench.toml``, or ``[tool.virtbench]`` of pyproject.toml, beside the work."""

import json
from pathlib import Path

import pytest

from suite.results.store import PLAN, stored_plan
from tests.commands.conftest import SMALL, Bench, ended_well, refused

pytestmark = pytest.mark.usefixtures("machine")
TABLE = 'target = ["bare-metal", "container"]\nengine = "podman"\nmargin = "3%"\nbudget = "20m"\n'


def test_a_file_gives_what_the_command_line_does_not_and_is_named_in_forecast_and_plan(
    bench: Bench, here: Path
) -> None:
    (here / "virtbench.toml").write_text(TABLE)
    dry = ended_well(bench("run", *SMALL, "--margin", "10%", "--dry-run"))
    assert "targets: bare-metal, container (podman)\n" in dry.stdout
    assert "defaults: virtbench.toml: target, engine, budget\n" in dry.stdout
    assert "at a margin of 10%" in dry.stdout, "the command line wins"
    told = json.loads(bench("run", *SMALL, "--blocks", "2", "--dry-run", "--json").stdout)
    assert told["plan"]["defaults"] == "virtbench.toml: target, engine, margin"
    ended_well(bench("run", *SMALL, "--blocks", "1"))
    plan = stored_plan(here / "out")
    assert plan.defaults == "virtbench.toml: target, engine, margin"
    assert plan.request
    assert plan.request.targets.target == ("bare-metal", "container")
    again = ended_well(bench("run", "--continue", "out", "--blocks", "2"))
    assert "of virtbench.toml is left out" not in again.stderr, "a run keeps its own options"
    (here / "virtbench.toml").unlink()
    given = ("--target", "bare-metal", "--target", "container", "--engine", "podman", "--margin", "3%", "--blocks", "2")
    ended_well(bench("run", *SMALL, *given))


def test_a_default_that_does_not_fit_what_is_given_gives_way_and_is_named(bench: Bench, here: Path) -> None:
    (here / "virtbench.toml").write_text(TABLE)
    dry = ended_well(bench("run", *SMALL, "--target", "bare-metal", "--blocks", "1", "--dry-run"))
    assert "budget of virtbench.toml is left out: " in dry.stderr
    assert "targets: bare-metal\n" in dry.stdout


def test_the_table_of_pyproject_gives_the_same_and_names_the_directory_of_results(bench: Bench, here: Path) -> None:
    lines = "".join(f"{line}\n" for line in (*TABLE.splitlines(), 'results = "runs"'))
    (here / "pyproject.toml").write_text(f'[project]\nname = "mine"\n\n[tool.virtbench]\n{lines}')
    ended_well(bench("run", "--memory", "1M", "--cpus", "1", "--blocks", "1"))
    (run,) = (here / "runs").iterdir()
    assert stored_plan(run).defaults == "pyproject.toml [tool.virtbench]: target, engine, margin"
    assert not (here / "results").exists()
    assert str(run.relative_to(here)) in ended_well(bench("results", "list")).stdout
    assert run.name in ended_well(bench("results", "show")).stdout
    (here / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    refused(bench("results", "show"), "no run in results/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("margn = '3%'", ("virtbench.toml: no option margn",)),
        ("margin = '3'", ("virtbench.toml: ", "'3' is not a share")),
        ("target = ['vn']", ("virtbench.toml: target 'vn' is unknown",)),
        ("margin = ", ("virtbench.toml is not TOML", "correct it, or move virtbench.toml away")),
        ("results = 3", ("virtbench.toml: results = 3 is not a directory",)),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(
    bench: Bench, here: Path, text: str, words: tuple[str, ...]
) -> None:
    (here / "virtbench.toml").write_text(text)
    refused(bench("run", *SMALL, "--blocks", "1"), *words)
    assert not (here / "out" / PLAN).exists()


def test_two_files_and_one_that_others_may_write_are_refused(bench: Bench, here: Path) -> None:
    (here / "virtbench.toml").write_text('margin = "3%"')
    (here / "pyproject.toml").write_text('[tool.virtbench]\nmargin = "5%"\n')
    refused(bench("run", *SMALL), "virtbench.toml and pyproject.toml [tool.virtbench] both give defaults")
    (here / "pyproject.toml").unlink()
    (here / "virtbench.toml").chmod(0o666)
    refused(bench("run", *SMALL), "the file of defaults", "others may write it")
