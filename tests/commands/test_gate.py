"""The gate: ``bench compare OLD NEW --fail-above``. It is green only if everything was compared and is not slower."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from analysis.load.records import Records, load
from commands.compare.gate import judge
from suite.errors import RequestError
from suite.job.datasets import Dataset
from suite.job.job import ComparisonKey
from suite.records.environment import Environment, Environments
from suite.results.store import Run
from tests.analysis.conftest import measured, record, without_plan
from tests.commands.conftest import Bench, refused
from tests.hostile.mutations import FULL
from tests.jobs import identity

Cell = tuple[str, str]
"""An engine and a target."""
CELLS: tuple[Cell, ...] = tuple(product(("podman", "runc"), ("bare-metal", "container")))
BOUND = 0.05


@cache
def template() -> Records:
    """Return the records of one trial, to make any others of."""
    with TemporaryDirectory() as directory:
        Run(Path(directory) / "run").save(record("run", engine="ENGINE"))
        return load([Path(directory) / "run"])


def run_of(name: str, cells: dict[Cell, list[float]], host: str, failed: int) -> Records:
    """Return a run with the speed of every block of each cell; the first ``failed`` trials of all have failed."""
    one = template()
    rows: list[dict[str, Any]] = [
        {
            "run_id": identity(f"{name}-{engine}"),
            "target": target,
            "settings": ComparisonKey((("engine", engine),)),
            "block": block,
            "throughput_per_s": speed,
            "elapsed_s": 100 / speed,
            "hostname": host,
        }
        for (engine, target), speeds in cells.items()
        for block, speed in enumerate(speeds)
    ]
    trials = pd.concat([one.trials] * len(rows), ignore_index=True)
    trials = trials.assign(**{column: [row[column] for row in rows] for column in rows[0]})
    trials.loc[trials.index < failed, ["ok", "throughput_per_s", "elapsed_s"]] = [False, np.nan, np.nan]
    return replace(one, trials=trials)


@st.composite
def sides(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the cells of one run: which there are, how fast and how noisy each is, and on which host."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chosen = draw(st.lists(st.sampled_from(CELLS), min_size=1, unique=True))
    noise = draw(st.sampled_from([0.0, 0.003, 0.02, 0.3, 3.0, 30.0]))
    cells = {}
    for cell in chosen:
        speed = draw(st.sampled_from([10.0, 9.8, 9.4, 7.0, 20.0]))
        blocks = draw(st.sampled_from([1, 2, 4, 5, 8, 12]))
        cells[cell] = [speed * math.exp(rng.normal(0, noise)) for _ in range(blocks)]
    failed = draw(st.sampled_from([0, 0, 0, 1, 6]))
    return {"cells": cells, "host": draw(st.sampled_from(["a", "a", "a", "b"])), "failed": failed}


def finished(side: dict[str, Any]) -> dict[Cell, dict[int, float]]:
    """Return the finished blocks of each cell, with their speeds."""
    flat = [(cell, block, speed) for cell, speeds in side["cells"].items() for block, speed in enumerate(speeds)]
    found: dict[Cell, dict[int, float]] = {cell: {} for cell in side["cells"]}
    for cell, block, speed in flat[side["failed"] :]:
        found[cell][block] = speed
    return found


@settings(
    deadline=None, max_examples=1000 if FULL else 12, suppress_health_check=[HealthCheck.too_slow]
)  # tables, not numbers
@given(sides(), sides(), st.booleans())
def test_the_gate_is_green_only_if_every_cell_was_compared_and_excluded_to_be_slower(
    old: dict[str, Any], new: dict[str, Any], alike: bool
) -> None:
    if alike:  # drawn apart, two runs seldom have the same cells
        new = new | {"cells": old["cells"] | new["cells"]}
    try:
        found = judge(run_of("old", **old), run_of("new", **new), BOUND)
    except RequestError:
        common = {cell for cell, blocks in finished(old).items() if blocks and finished(new).get(cell)}
        assert old["host"] != new["host"] or not common
        return
    assert old["host"] == new["host"]
    if found.outcome != "not slower":
        assert found.exit_code != 0
        return
    mine, its = finished(old), finished(new)
    compared = {(one.job.variant, one.target, one.metric.name): one for one in found.changes if one.outcome}
    for (engine, target), blocks in mine.items():
        assert len(blocks) >= 5, "a cell with fewer blocks was called not slower"
        assert blocks.keys() <= its[engine, target].keys(), "a trial of the baseline is missing"
        for metric, sign in (("throughput", -1), ("elapsed", 1)):
            names = [key for key in compared if key[1:] == (target, metric) and key[0] in ("", f"engine={engine}")]
            assert len(names) == 1, "a cell was not compared, or engines were pooled"
            interval = compared[names[0]].interval
            assert interval
            worst = max(sign * (end - 1) for end in interval)
            assert worst < BOUND, "the interval holds a slowdown beyond the bound"
        logs = [np.sort(np.log(list(one.values()))) for one in (blocks, its[engine, target])]
        middle_loss = np.median(logs[0]) - np.median(logs[1])
        assert middle_loss < math.log1p(BOUND) + 0.2, "the typical block is far slower"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    return partial(bench, "compare")


def speeds(around: float, blocks: int = 6) -> Iterator[float]:
    return (around * (1 + (block - blocks / 2) / 1000) for block in range(blocks))


def stored(directory: Path, around: float, *, host: str = "a", **changes: Any) -> None:
    place = Environment(hostname=host, cpu_model=f"CPU of {host}")
    inside = Environment(userland_sha256="a" * 64, cpu_model="inside")
    for block, speed in enumerate(speeds(around)):
        where = Environments(host=place, target=inside)
        without_plan(directory).save(
            record(directory.name, environment=where, block=block, **measured(speed), **changes)
        )


@pytest.mark.parametrize(
    ("speed", "code", "outcome"), [(10.0, 0, "not slower"), (5.0, 3, "slower"), (9.53, 4, "cannot tell")]
)
def test_every_outcome_has_an_exit_code_and_is_the_word_of_the_first_row(
    bench: Bench, tmp_path: Path, speed: float, code: int, outcome: str
) -> None:
    stored(tmp_path / "old", 10.0)
    stored(tmp_path / "new", speed)
    done = bench("old", "new", "--fail-above", "5%")
    assert done.exit_code == code, done.output
    assert done.stdout.splitlines()[1].rstrip().endswith(outcome)
    told = bench("old", "new", "--fail-above", "5%", "--json")
    data = json.loads(told.stdout)
    assert (told.exit_code, data["exit_code"], data["outcome"], data["schema_version"]) == (code, code, outcome, 4)


Outcome = tuple[int, str | None]
OUTCOMES: dict[str, Outcome] = {
    "not slower": (0, None),
    "slower": (3, "failure"),
    "fails more": (3, "failure"),
    "incomplete": (1, "error"),
    "cannot tell": (4, "skipped"),
}
"""The exit code of each outcome, and the element of its rows in JUnit's XML."""
SPEEDS = {"slower": 5.0, "cannot tell": 9.53}


def stored_pair(place: Path, outcome: str) -> None:
    """Store two runs, of which the new one has this outcome."""
    stored(place / "old", 10.0)
    stored(place / "new", SPEEDS.get(outcome, 10.0))
    trials: dict[str, tuple[int, str | None]] = {"old": (0, None), "new": (0, None)}
    if outcome == "fails more":
        trials = {"old": (12, None), "new": (12, "out of memory")}
    if outcome == "incomplete":
        trials = {"old": (6, None), "new": (0, None)}
    for run, (blocks, failed) in trials.items():
        for block in range(6, 6 + blocks):
            target = "container" if outcome == "incomplete" else "bare-metal"
            trial = record(run, target=target, block=block, failed=failed)
            began = {"started_at": f"2026-02-01T{block:02}:00:00+00:00"}
            Run(place / run).save(trial.model_copy(update=began))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_service_of_ci_gets_a_summary_of_ten_lines_and_a_test_case_for_each_row(
    bench: Bench, tmp_path: Path, outcome: str
) -> None:
    code, result = OUTCOMES[outcome]
    stored_pair(tmp_path, outcome)
    gate = bench("old", "new", "--fail-above", "5%", "--markdown", "--junit", "gate.xml")
    assert gate.exit_code == code, gate.output
    lines = [line for line in gate.stdout.splitlines() if line and not line.startswith(("```", "|:-"))]
    assert lines[0].startswith(f"### {outcome} (exit code {code}): ")
    assert len(lines) <= 10, gate.stdout
    suite = cases_of(tmp_path / "gate.xml")
    names = {case.get("name") for case in suite.iter("testcase")}
    assert names >= {"resnet50 on bare-metal, throughput", "resnet50 on bare-metal, elapsed"}
    first = next(suite.iter("testcase"))
    assert (first.find(result) is not None) if result else (len(first) == 1)
    properties = {item.get("name"): item.get("value") for item in suite.iter("property")}
    assert (properties["outcome"], properties["exit code"]) == (outcome, str(code))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_summary_is_markdown_to_a_program_of_others(bench: Bench, tmp_path: Path, outcome: str) -> None:
    code, _ = OUTCOMES[outcome]
    stored_pair(tmp_path, outcome)
    gate = bench("old", "new", "--fail-above", "5%", "--markdown")
    page = MarkdownIt().enable("table").render(gate.stdout)
    headings = re.findall(r"<h(\d)>(.*?)</h", page)
    assert [(rank, text.partition(":")[0]) for rank, text in headings] == [("3", f"{outcome} (exit code {code})")]
    heads = re.findall(r"<th[ >].*?</th>", page)
    rows = re.findall(r"<tr>\s*<td.*?</tr>", page, re.DOTALL)
    assert len(heads) == 3
    assert 1 <= len(rows) <= 3
    assert rows[0].count("<td") == 3
    assert f">{outcome}</td>" in rows[0]
    assert page.count("<table>") == page.count("<ul>") == 1, "why is an item of a list"
    # Runs without a plan cannot be extended.
    assert page.count('<code class="language-sh">bench ') == (outcome != "cannot tell")


def cases_of(file: Path) -> ElementTree.Element:
    """Return the one suite of a file, whose counters are those of its cases."""
    (suite,) = ElementTree.parse(file).getroot()  # noqa: S314 (just written)
    for counter, kind in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(counter, "")) == len(list(suite.iter(kind))), counter
    return suite


def test_what_a_new_run_lacks_is_an_error_of_the_xml_and_measured_by_the_next_step(
    bench: Bench, tmp_path: Path
) -> None:
    for run in ("old", "new"):
        stored(tmp_path / run, 10.0)
    for block in range(6):
        trial = record("old", target="container", block=block)
        later = {"started_at": f"2026-02-01T0{block}:00:00+00:00"}
        Run(tmp_path / "old").save(trial.model_copy(update=later))
    gate = bench("old", "new", "--fail-above", "5%", "--junit", "gate.xml")
    assert gate.exit_code == 1, gate.output
    assert "each failure in full" not in gate.stdout, "no trial has failed"
    (error,) = cases_of(tmp_path / "gate.xml").iter("error")
    assert error.get("type") == "incomplete"
    refused(bench("new", "--junit", "gate.xml"), "--junit needs --fail-above")


def test_runs_with_no_cell_in_common_are_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    stored(tmp_path / "old", 10.0, engine="podman")
    stored(tmp_path / "new", 10.0, engine="runc")
    refused(bench("old", "new", "--fail-above", "5%"), "no cell in common", "engine=podman", "engine=runc")


@pytest.mark.parametrize("kind", ["workload", "files"])
def test_a_change_of_the_users_own_code_is_named_and_compared_when_asked_to(
    bench: Bench, tmp_path: Path, kind: str
) -> None:
    for name, digest, speed in (("before", "1" * 64, 10.0), ("after", "2" * 64, 8.0)):
        files = {"dataset": Dataset(kind="files", sha256=digest, images=1, size_bytes=1), "data": "files"}
        changes = files if kind == "files" else {"workload_sha256": digest, "model": "resnet50"}
        stored(tmp_path / name, speed, **changes)
    words = ("before", "after", "--force", "--fail-above", "5%")  # the audit demands that a data set is read
    done = bench(*words)
    refused(done, "code of resnet50 111111111111 -> 222222222222", "--across code")
    assert "no trial was finished" not in done.stderr
    told = bench(*words, "--across", "code")
    assert told.exit_code == 3
    assert "changed: code of resnet50 111111111111 -> 222222222222 on bare-metal: it may" in told.stdout
    assert bench("before", "after", "--across", "code").exit_code == 2


def test_a_cell_whose_records_the_audit_refuses_does_not_vanish(bench: Bench, tmp_path: Path) -> None:
    for run in ("old", "new"):
        stored(tmp_path / run, 10.0)
    edited = {"throughput_per_s": 99.0, "started_at": "2026-01-01T00:05:00+00:00"}
    Run(tmp_path / "old").save(record("old", target="container").model_copy(update=edited))
    done = bench("old", "new", "--fail-above", "5%")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split() == ["resnet50", "on", "container", "incomplete"]
    assert "\nbench audit old  # why its records do not count\n" in done.stdout


def test_other_hosts_are_refused_with_their_cpu_models_unless_forced(bench: Bench, tmp_path: Path) -> None:
    stored(tmp_path / "old", 10.0)
    stored(tmp_path / "new", 10.0, host="b")
    refused(bench("old", "new", "--fail-above", "5%"), "a (CPU of a", "b (CPU of b")
    assert bench("old", "new", "--fail-above", "5%", "--force").exit_code == 0


def test_a_run_is_never_compared_with_a_directory_that_holds_itself(bench: Bench, tmp_path: Path) -> None:
    stored(tmp_path / "all/one", 10.0)
    (tmp_path / "link").symlink_to(tmp_path / "all/one")
    for old, new in (("all", "all/one"), ("all/one", "all/one"), ("link", "all/one"), ("all/one", "./all/../all/one")):
        refused(bench(old, new, "--fail-above", "5%"), "compared with itself")
    shutil.copytree(tmp_path / "all/one", tmp_path / "copy")
    refused(bench("all/one", "copy", "--fail-above", "5%"), "copy would be compared with itself", "is a copy")


def test_each_run_is_read_and_audited_once(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path / "old", 10.0)
    stored(tmp_path / "new", 9.0)
    counted = Mock(wraps=load)
    monkeypatch.setattr("analysis.figures.plots.draw", lambda *_: [])
    for module in ("commands.compare.show", "commands.compare.gate"):
        monkeypatch.setattr(f"{module}.load", counted)
    assert bench("old", "new", "--fail-above", "5%").exit_code == 3
    assert [path for call in counted.call_args_list for path in call.args[0]] == [Path("old"), Path("new")]
    counted.reset_mock()
    shown = bench("old", "new", "--plots", "figures")
    assert "resnet50 on bare-metal, throughput" in " ".join(shown.stdout.split())
    assert "0.900x" in shown.stdout
    assert [path for call in counted.call_args_list for path in call.args[0]] == [Path("old"), Path("new")]


def test_several_old_runs_show_how_runs_of_the_same_differ(bench: Bench, tmp_path: Path) -> None:
    nights = (10.0, 9.6, 10.3)
    for night, speed in enumerate(nights):
        stored(tmp_path / f"nights/{night}", speed)
    for block in range(2):
        other = record("0", target="container", block=block)
        Run(tmp_path / "nights/0").save(other.model_copy(update={"started_at": f"2026-02-0{1 + block}T00:00:00+00:00"}))
    stored(tmp_path / "nights/tonight", 9.3)
    (tmp_path / "nights/link").symlink_to(tmp_path / "nights/0")
    (tmp_path / "nights/empty").mkdir()
    every, new, gate = [f"nights/{night}" for night in range(3)], "nights/tonight", ("--fail-above", "5%")
    alone = bench(every[-1], new, *gate)
    assert alone.exit_code == 3, "nothing shows that nights differ"
    assert "the spread between runs is unknown" in alone.stdout
    for words in (
        [*every, new],
        [new, "--baseline", "nights/*"],
        [*every[:1], every[0], new, "--baseline", "nights/[1-2]"],
    ):
        done = bench(*words, *gate, "--json")
        told = json.loads(done.stdout)
        assert (done.exit_code, told["outcome"], told["spread_unknown"]) == (4, "cannot tell", False), words
        assert told["missing"] == [], "the last of them has no container"
        (row,) = (one for one in told["changes"] if (one["kind"], one["metric"]) == ("run", "throughput"))
        assert (row["samples"], row["more_blocks"]) == ([18, 6], None)
        assert row["spread"] == pytest.approx(np.log(nights).std(ddof=1), rel=0.05)
    assert "runs of the same differ by 3.6 %, standard deviation" in " ".join(bench(*every, new, *gate).stdout.split())
    two = json.loads(bench(every[1], every[0], new, *gate, "--json").stdout)
    assert two["spread_unknown"]
    assert [one["name"] for one in two["missing"]] == ["resnet50 on container"]
