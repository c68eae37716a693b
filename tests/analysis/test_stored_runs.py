"""Real runs of every scenario are stored with what the analysis says of them; it must go on saying the same.

``tests/samples/runs/NAME/`` is a run or a sweep as ``bench`` left it, and ``NAME.expected.json`` what the command line
said of it. Only the command line is used, so that the code behind it can be rebuilt. To write the expectations:

    python -c 'from tests.analysis.test_stored_runs import write_expectations; write_expectations()'

Write them again only when a number was wrong and has become right, and say in the commit which one and why.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from analysis.audit.audit import audited
from analysis.compare.comparison import compare
from analysis.compare.regression import EXIT_CODES
from analysis.load.records import load
from commands.output import model_of
from suite.results.store import stored_plan

RUNS = Path(__file__).parents[1] / "samples" / "runs"
NAMES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())
SWEEPS = [name for name in NAMES if (RUNS / name / "sweep.json").exists()]
TOGETHER = {"synthetic-and-probe": ("synthetic", "probe")}
"""Runs that are compared together: probes then predict the parts of what was trained."""

BEFORE, AFTER = "synthetic-podman", "synthetic-podman-later"
"""Two runs of one plan."""

_JOB = ("scenario", "data", "profile", "recipe", "variant")
_DIVISION = ("workers", "strategy", "batch", "global_batch", "images_seen")
KEYS = {
    "rows": ("kind", *_JOB, "model", "target", "ablation", "aggressor", *_DIVISION, "metric"),
    "targets": (*_JOB, "model", "target"),
    "costs": (*_JOB, "model", "target"),
}
KINDS = ("target", "again", "layers", "ablation", "aggressor", "kept", "steal", "isolation", "models")
"""What tells the rows of each list of ``bench compare --json`` apart."""

TEXTS = {"marks", "notes", "differences"}
"""Sentences for people, which may be put in other words."""

NAMED_BY = (("name",), ("part",))
"""What tells apart the objects of a list inside a row."""


def bench(*words: str) -> str:
    """Return what the command prints, called in the directory of the sample runs."""
    # Paths are part of what is printed: relative ones are the same on every machine.
    with contextlib.chdir(RUNS):
        done = CliRunner().invoke(cli.main, words, prog_name="bench", env={"COLUMNS": "120"})
    assert done.exit_code in (0, 1, *EXIT_CODES.values()), done.output
    return done.stdout


def tidy(value: Any) -> Any:
    """Return a value of JSON without texts for people, its numbers to 9 digits, named objects by their name."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: tidy(inner) for key, inner in value.items() if key not in TEXTS}
    if not isinstance(value, list):
        return value
    for names in NAMED_BY:
        if value and all(isinstance(item, dict) and item.keys() >= set(names) for item in value):
            return by_key(value, names)
    return [tidy(item) for item in value]


def by_key(rows: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the tidied rows by what the named columns hold; no two rows may hold the same there."""
    found: dict[str, Any] = {}
    for row in rows:
        key = " | ".join(str(row[name]) for name in names)
        assert key not in found, f"two rows of {key}"
        found[key] = tidy({name: value for name, value in row.items() if name not in names})
    return found


def compared_as_json(way: str, *words: str) -> Any:
    """Return a comparison as JSON, which is what its schema says and nothing more."""
    text = bench(*way.split(), *words, "--json")
    found = json.loads(text)
    # Parts that the schema does not know are refused at the top, and lost below.
    assert model_of(way).model_validate_json(text, strict=True).model_dump(mode="json") == found
    return found


def compared(name: str) -> dict[str, Any]:
    told = compared_as_json("compare", *TOGETHER.get(name, (name,)))
    facts = {
        what: [group["job"] | {"model": group["model"]} | one for group in told["groups"] for one in group[what]]
        for what in ("targets", "costs")
    }
    lists = {what: by_key({**told, **facts}[what], names) for what, names in KEYS.items()}
    return {"runs": told["runs"], "warmup_trials": told["warmup_trials"], **lists}


def explained(name: str) -> dict[str, Any]:
    told = compared_as_json("compare --explain", *TOGETHER.get(name, (name,)))["explanations"]
    return by_key([one.pop("job") | one for one in told], (*_JOB, "model", "target"))


def exported(name: str, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bench("results", "export", name, "--format", "jsonl", *words).splitlines()]


def columns(rows: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    """Return a table: ``same``, the columns of one value, and of the others a list of values by the row's key."""
    found = by_key(rows, names)
    first: dict[str, Any] = next(iter(found.values()), {})
    same = {column: value for column, value in first.items() if all(row[column] == value for row in found.values())}
    varying = [column for column in first if column not in same]
    return {"same": same, "columns": varying, "rows": {key: [row[c] for c in varying] for key, row in found.items()}}


def sweep_status(name: str) -> dict[str, Any]:
    told = json.loads(bench("sweep", "status", name, "--json"))
    return {"state": told["state"], "cells": {cell["cell_id"]: cell["arms"] for cell in told["cells"]}}


def observed(name: str) -> dict[str, Any]:
    """Return what the command line says of a sample run now, in the form that is stored."""
    return {
        "compare": compared(name),
        "explain": explained(name),
        "trials": columns(exported(name), "run_id", "trial_id"),
        "steps": columns(exported(name, "--steps"), "run_id", "trial_id", "step"),
        **({"status": sweep_status(name)} if name in SWEEPS else {}),
    }


def changed() -> dict[str, Any]:
    told = compared_as_json("compare --fail-above", "1%", BEFORE, AFTER)
    names = ("kind", *_JOB, "model", "target", "ablation", "aggressor", "metric")
    return {"outcome": told["outcome"], "changes": by_key(told["changes"], names)}


def write_expectations() -> None:
    """Store what the command line says now of all sample runs."""
    for name in NAMES:
        _write(RUNS / f"{name}.expected.json", observed(name))
    for name in TOGETHER:
        _write(RUNS / f"{name}.expected.json", {"compare": compared(name), "explain": explained(name)})
    _write(RUNS / "change.expected.json", changed())


def _write(path: Path, value: dict[str, Any]) -> None:
    lines = []
    for part, inner in value.items():  # a line per row: a change is seen for what it is
        if isinstance(inner, dict):
            rows = ",\n".join(f"  {json.dumps(key)}: {_rows(found)}" for key, found in inner.items())
            lines.append(f" {json.dumps(part)}: {{\n{rows}\n }}")
        else:
            lines.append(f" {json.dumps(part)}: {json.dumps(inner)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _rows(found: Any) -> str:
    if not isinstance(found, dict) or not found or not all(isinstance(inner, dict | list) for inner in found.values()):
        return json.dumps(found, ensure_ascii=False)
    rows = ",\n".join(f"   {json.dumps(key)}: {json.dumps(inner, ensure_ascii=False)}" for key, inner in found.items())
    return f"{{\n{rows}\n  }}"


def differences(stored: Any, found: Any, where: str = "") -> Iterator[str]:
    """Say each place where what is found is not what is stored. New columns are none; new and missing rows are."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for key, value in stored.items():
            if key in found:
                yield from differences(value, found[key], f"{where}/{key}")
            else:
                yield f"{where}/{key} is gone"
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for place, (one, other) in enumerate(zip(stored, found, strict=True)):
            yield from differences(one, other, f"{where}/{place}")
    elif isinstance(stored, float) and isinstance(found, int | float):
        # Both were rounded to nine digits, so the ninth may differ by one. Below the absolute bound is rounding alone:
        # what the parts of a trial leave unexplained can be nothing.
        if not math.isclose(stored, found, rel_tol=1.01e-8, abs_tol=1e-12):
            yield f"{where}: {stored} is now {found}"
    elif stored != found:
        yield f"{where}: {stored!r} is now {found!r}"


def expected(name: str) -> Any:
    return json.loads((RUNS / f"{name}.expected.json").read_text())


def same_table(stored: dict[str, Any], rows: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    found = by_key(rows, names)
    assert set(found) == set(stored["rows"])
    for key, values in stored["rows"].items():
        row = stored["same"] | dict(zip(stored["columns"], values, strict=True))
        assert list(differences(row, found[key], key)) == []


def test_there_is_a_sample_run_of_every_scenario_target_and_engine() -> None:
    plans = [stored_plan(path.parent) for path in RUNS.rglob("plan.json")]
    scenarios = {"synthetic", "real", "probe", "distributed", "shared", "command", "serve"}
    assert {plan.job.scenario for plan in plans} == scenarios
    assert {plan.job.design for plan in plans} == {"sequential", "alternating"}
    assert {target for plan in plans for target in plan.targets} == {"bare-metal", "container", "vm", "container-vm"}
    assert {plan.job.layers.engine for plan in plans} >= {"docker", "podman", "runc"}
    assert SWEEPS


def test_every_kind_of_contrast_has_rows_in_some_sample() -> None:
    assert {key.split(" | ")[0] for name in NAMES for key in expected(name)["compare"]["rows"]} == {*KINDS}


@pytest.mark.parametrize("name", [*NAMES, *TOGETHER])
def test_ratios_intervals_and_verdicts_are_what_they_were_and_as_the_schema_says(name: str) -> None:
    stored, found = expected(name)["compare"], compared(name)
    assert list(differences(stored, found)) == []
    for what in KEYS:
        assert found[what].keys() <= stored[what].keys(), f"new rows among the {what}"


@pytest.mark.parametrize("name", [*NAMES, *TOGETHER])
def test_explanations_are_what_they_were_and_as_the_schema_says(name: str) -> None:
    stored, found = expected(name)["explain"], explained(name)
    assert list(differences(stored, found)) == []
    assert found.keys() == stored.keys()


@pytest.mark.parametrize("name", NAMES)
def test_exported_trials_and_steps_are_what_they_were(name: str) -> None:
    stored = expected(name)
    same_table(stored["trials"], exported(name), ("run_id", "trial_id"))
    same_table(stored["steps"], exported(name, "--steps"), ("run_id", "trial_id", "step"))


@pytest.mark.parametrize("name", SWEEPS)
def test_the_status_of_a_sweep_is_what_it_was(name: str) -> None:
    assert list(differences(expected(name)["status"], sweep_status(name))) == []


def test_how_a_later_run_differs_from_an_earlier_one_is_what_it_was() -> None:
    stored, found = expected("change"), changed()
    assert list(differences(stored, found)) == []
    assert found["changes"].keys() == stored["changes"].keys()


def test_runs_of_every_kind_are_compared_together_and_pandas_warns_of_nothing() -> None:
    assert compare(audited(load([RUNS / name for name in NAMES]))).groups
