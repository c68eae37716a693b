"""The forms of a comparison: tables and the overview on one screen, Markdown, JSON and CSV."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.compare.comparison import compare
from analysis.compare.results import Arm, ComparedJob, Comparison, Contrast, TargetSummary
from analysis.load.metrics import METRICS, Metric
from analysis.load.records import load
from analysis.report.document import document, more_options
from analysis.report.formatting import duration, floor, group_lines, percent
from analysis.report.rows import KEYS, as_csv, as_json
from analysis.report.tables import Footnotes, overview_table
from analysis.statistics.ratios import NoiseFloor, Verdict
from analysis.warnings.types import AnalysisWarning
from suite.records.usage import Conditions
from suite.registries import AGGRESSORS
from suite.targets import TARGETS
from suite.units import number
from tests.analysis.conftest import Save, a_comparison, a_group, as_markdown, but_command, measured, printed
from tests.analysis.test_answer import PLACE as NODE
from tests.analysis.test_stored_runs import RUNS

JOB = ComparedJob("synthetic", "synthetic", "smoke", "reference", "")
BARE = TargetSummary("bare-metal", 3, 0, (), ())
NESTED = TargetSummary("container-vm", 3, 2, ("accelerator:tcg",), ("AVX2 against AVX512",))


def numbers(ratio: float | None = 1.0) -> dict[str, dict[str, Any]]:
    own = {"trials": 3, "ratio": ratio, "blocks": 3 if ratio else 0}
    return {"throughput": {"value": 0.0123456, **own}, "elapsed": {"value": 1234.5, **own}}


COMPARISON = a_comparison(
    a_group(JOB, "resnet50", BARE, NESTED, of={"bare-metal": numbers(), "container-vm": numbers(0.5)}),
    warnings=[
        AnalysisWarning("not-normalised", "a | job: there is\n no bare-metal trial", "bench run --target bare-metal")
    ],
)


def shown(comparison: Comparison, width: int, *, costs: bool = False) -> str:
    return printed(document(comparison, "full", costs=costs), width)


def test_the_overview_gives_every_metric_its_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Metric("peak-memory", "memory", "GB")
    monkeypatch.setattr("analysis.report.tables._OTHERS", (METRICS[1], memory))
    of = {"bare-metal": {**numbers(), "peak-memory": {"value": 0.84}}}
    table = overview_table(
        [group := a_group(JOB, "m", BARE, of=of, metrics=(*METRICS, memory))],
        Footnotes(a_comparison(group), ""),
        judged=False,
    )
    assert table.rows[0][1][-2:] == ("1234 s", "0.840 GB")


@pytest.mark.parametrize("run", ["shared", "synthetic-all", "distributed-async", "probe", "real"])
def test_every_table_of_a_stored_run_fits_80_columns(run: str) -> None:
    comparison = compare(load([Path(__file__).parents[1] / "samples/runs" / run]))
    text = shown(comparison, 80, costs=True)
    assert max(map(len, but_command(text))) <= 80
    assert "…" not in text
    heads = [line.split()[0] for line in text.splitlines() if line.startswith(("target ", "metric ", "victim "))]
    assert heads.count("victim") == bool(comparison.of_kind("aggressor"))
    assert len(heads) == len(comparison.groups) + heads.count("victim"), "no table gave way to a list"


def test_the_interference_of_every_target_and_the_papers_aggressors_fits_80_columns() -> None:
    shared = ComparedJob("shared", "synthetic", "smoke", "reference", "")
    ratio: dict[str, Any] = {"ratio": 0.766, "interval": (0.286, 2.05), "verdict": Verdict("undecided", 0.1, 30)}
    ratio |= {"kind": "aggressor", "metric": METRICS[0]}
    found = tuple(
        Contrast(arm=Arm(shared, "inception_v3", target, "", aggressor), notes=notes, **ratio)
        for target, notes in zip(TARGETS, ((), (), ("accelerator:tcg",), ("accelerator:tcg",)), strict=True)
        for aggressor in ("inception_v3", "resnet50", "alexnet", *AGGRESSORS.own)
    )
    text = shown(a_comparison(more=found), 80)
    (head,) = (line for line in text.splitlines() if line.startswith("victim"))
    assert head.split()[1:] == ["bare-metal", "container", "accelerator:tcg", "accelerator:tcg"]


@pytest.mark.parametrize("render", [as_json, as_csv, as_markdown, lambda found: shown(found, 200)])
def test_substitutes_marks_and_warnings_with_their_advice_are_in_every_form_with_a_place_for_them(
    render: Callable[[Comparison], str],
) -> None:
    warned = () if render is as_csv else ("no bare-metal trial", "bench run --target bare-metal")
    text = render(COMPARISON)
    assert [words for words in ("accelerator:tcg", "AVX2 against AVX512", *warned) if words not in text] == []


def full() -> Comparison:
    noise = {"throughput": NoiseFloor(0.0123, "a/a", 8), "elapsed": NoiseFloor(0.0345, "across-blocks", 9)}
    verdict = Verdict("undecided", 0.2, 123)
    found = {"value": 0.0123456, "trials": 3, "ratio": 0.8834, "blocks": 8, "interval": (0.873, 0.894)}
    judged = {
        name: {**found, "verdict": verdict, "noise": noise.get(name)} for name in ("throughput", "elapsed", "opening")
    }
    base = {name: {**values, "noise": noise[name]} for name, values in numbers().items()}
    group = a_group(
        JOB, "resnet50", BARE, replace(NESTED, failed=1, marks=()), of={"bare-metal": base, "container-vm": judged}
    )
    judged_by: dict[str, Any] = {"blocks": 8, "interval": (0.95, 0.97), "verdict": Verdict("slower", 0.01)}
    nested = Arm(JOB, "resnet50", "container-vm")
    layers = Contrast(kind="layers", arm=nested, metric=METRICS[0], ratio=0.961, **judged_by)
    models = {"arm": Arm(JOB, "", "vm"), "members": ("alexnet", "resnet50")} | judged_by
    over_all = Contrast(kind="models", metric=METRICS[1], ratio=1.111, **models)
    return a_comparison(replace(group, contrasts=(*group.contrasts, layers)), more=[over_all])


WHOLE = ("resnet50", "bare-metal", "container-vm", "accelerator:tcg", "AVX512", "0.0123", "1234", "0.500x", "2 failed")
JUDGED = ("0.883x", "0.873 to 0.894", "undecided, +123", "1.23 %", "3.45 %", "0.961x", "1.111x", "+n: more blocks")


@pytest.mark.parametrize("width", [30, 40, 71, 72, 80, 100, 200])
@pytest.mark.parametrize(("comparison", "words"), [(COMPARISON, WHOLE), (full(), JUDGED)], ids=["values", "verdicts"])
def test_every_word_and_number_is_whole_on_every_terminal(
    comparison: Comparison, words: tuple[str, ...], width: int
) -> None:
    lines = shown(comparison, width).splitlines()
    text = " ".join(" ".join(lines).split())
    assert [word for word in words if word not in text] == []
    assert max(map(len, but_command("\n".join(lines)))) <= width


def test_a_single_block_is_not_said_to_be_undecided_in_every_cell() -> None:
    one = {"value": 1.0, "trials": 1, "ratio": 0.9, "blocks": 1, "verdict": Verdict("undecided", None)}
    text = shown(a_comparison(a_group(JOB, "m", TargetSummary("vm", 1, 0, (), ()), of={"vm": {"elapsed": one}})), 80)
    assert ("0.900x" in text, "undecided" in text) == (True, False)


def test_json_and_csv_have_the_documented_keys_and_nothing_where_nothing_was_measured() -> None:
    found = json.loads(as_json(COMPARISON))
    parts = ("schema_version", "answer", "runs", "rows", "groups", "published", "warmup_trials", "warnings")
    assert tuple(found) == parts
    assert [tuple(row) for row in found["rows"]] == [KEYS] * 8
    last, nested = found["rows"][-2], found["groups"][0]["targets"][1]
    assert (last["target"], last["metric"], last["unit"]) == ("container-vm", "opening", "s")
    assert (last["value"], last["ratio"], last["trials"], last["failed"]) == (None, None, 0, 2)
    assert last["notes"] == [*nested["substitutes"], *nested["marks"]]
    assert found["warnings"][0]["kind"] == "not-normalised"
    lines = list(csv.DictReader(io.StringIO(as_csv(COMPARISON))))
    assert [tuple(row) for row in lines] == [KEYS] * 8
    assert float(lines[0]["value"]) == 0.0123456
    assert (lines[-2]["value"], lines[-2]["notes"]) == ("", "accelerator:tcg; AVX2 against AVX512")


def test_markdown_keeps_its_columns_whatever_the_texts_hold() -> None:
    lines = as_markdown(COMPARISON).splitlines()
    heads = [f"## {JOB}", "### resnet50", "## How to read the numbers", "## Warnings"]
    assert [line for line in lines if line.startswith("#")] == heads
    assert {line.count("|") for line in lines if line.startswith("|")} == {4, 7}
    assert any("a \\| job" in line and "there is no bare-metal trial" in line for line in lines)


def test_a_value_without_a_ratio_stands_alone() -> None:
    text = shown(
        a_comparison(a_group(JOB, "resnet50", TargetSummary("vm", 3, 0, (), ()), of={"vm": numbers(None)})), 80
    )
    assert ("0.0123" in text, "times bare metal" in text) == (True, False)


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (number, {0: "0.00", 0.0123456: "0.0123", 0.9996: "1.00", 9.999: "10.0", 123.4: "123"}),
        (number, {99999.6: "100000", 1e-5: "1.00e-05", 3e9: "3.00e+09"}),
        (percent, {0.0181: "1.8 %", 0.12: "12 %", 0.0996: "10 %", 0.05: "5 %", 0.9912: "99.12 %", 1.0: "100 %"}),
        (percent, {-0.0004: "0 %"}),
        (floor, {0.0123: "1.23 %", 1.0: "100 %", 1.01: "too noisy to say"}),
        (duration, {0.2: "1 s", 45: "45 s", 720: "12 min", 4200: "1 h 10 min", 7200: "2 h", 260_000: "3 days"}),
    ],
)
def test_a_number_is_short_and_a_time_as_people_say_it(form: Callable[[float], str], texts: dict[float, str]) -> None:
    assert {value: form(value) for value in texts} == texts


@given(st.floats(1e-12, 1e12))
def test_a_printed_number_is_within_half_a_per_cent_of_the_true_one(value: float) -> None:
    assert float(number(value)) == pytest.approx(value, rel=0.00501)


SCREEN = (80, 24)
PLACE: dict[str, Any] = {"environment": NODE, "engine": "podman"}
MODELS = ("inception_v3", "resnet50", "alexnet")


def lines_of(comparison: Comparison, width: int = 80, *, verbose: bool = False) -> list[str]:
    """Return the lines that ``bench compare`` prints."""
    return printed(document(comparison, "full" if verbose else "overview"), width).splitlines()


def cells(save: Save, targets: tuple[str, ...], **changes: Any) -> Comparison:
    """Compare four cells: three models of one recipe and one of another."""
    rng = np.random.default_rng(3)
    factors = {"bare-metal": 1.0, "container": 0.98, "vm": 0.0081, "container-vm": 0.0079}
    for recipe, models in (("reference", MODELS), ("tuned", MODELS[:1])):
        for block in range(6):
            for model in models:
                for target in targets:
                    speed = 12 * factors[target] * math.exp(rng.normal(0, 0.01))
                    substitutes = ["accelerator:tcg"] if "vm" in target else []
                    numbers = {"throughput_per_s": speed, "elapsed_s": 200 / speed, "substitutes": substitutes}
                    save(recipe, block=block, model=model, target=target, recipe=recipe, **numbers | PLACE | changes)
    return save.compare("reference", "tuned")


@pytest.mark.parametrize("targets", [TARGETS[:2], TARGETS[:3]])
def test_four_cells_fit_one_screen_with_the_answer_first_and_once(save: Save, targets: tuple[str, ...]) -> None:
    comparison = cells(save, targets, conditions=Conditions(interval_s=20, other_cpu_s=0.05 * 2 * 20))
    assert len(comparison.groups) == 4
    lines = lines_of(comparison)
    assert len(lines) <= SCREEN[1]
    assert max(map(len, but_command("\n".join(lines)))) <= SCREEN[0]
    text = " ".join(lines)
    assert [text.count(word) for word in ("why: ", "host node7")] == [1, 1]
    assert ("8 comparisons" in text) == (len(targets) == 3)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return cells(Save(tmp_path_factory.mktemp("cells")), TARGETS)


def test_the_line_of_a_target_has_value_ratio_interval_and_verdict(many: Comparison) -> None:
    lines = lines_of(many)
    (head,) = (line for line in lines if "images/s" in line)
    assert head.split()[-6:] == ["images/s", "ratio", "95", "%", "interval", "verdict"], "columns without room are last"
    own = lines[lines.index(head) + 2]
    assert (own.split()[0], "0.9" in own, " to " in own) == ("container", True, True)
    assert [line.split(":")[0] for line in lines if ": bare-metal" in line] == [
        *(f"{model}, reference" for model in MODELS),
        "inception_v3, tuned",
    ]


def test_a_warning_that_touches_a_number_stands_at_it(save: Save) -> None:
    rng = np.random.default_rng(3)
    for block in range(6):
        for target in ("bare-metal", "container", "vm"):
            speed = 12 * math.exp(rng.normal(0, 0.01))
            busy = Conditions(interval_s=20, other_cpu_s=0.05 * 2 * 20) if target == "vm" else None
            save(block=block, target=target, throughput_per_s=speed, conditions=busy)
    save(block=6, target="container", failed="no memory")
    lines = lines_of(save.compare())
    rows = [line.split() for line in lines if line.startswith("  ")]
    at = {words[0]: words[1] for words in rows if words[0] in TARGETS}
    assert at["container"] == "[1]"
    (first,) = (line for line in lines if line.startswith("[1] "))
    assert "1 of 7 trials on container failed" in first
    finding = "vm: the CPUs were busy with other work, within bounds (over 2 % of the CPU time in 6 of 6 trials)"
    assert " ".join(" ".join(lines).split()).count(finding) == 1, "a finding of the answer has no note"
    assert not any(line.startswith("warning") for line in lines)


def test_a_warning_about_no_number_is_told_below(tmp_path: Path, save: Save) -> None:
    save()
    (tmp_path / "run/trials/torn.json").write_text("{")
    lines = lines_of(save.compare())
    assert any(line.startswith("warning: ") for line in lines)
    assert "torn.json" in "".join(lines)


def test_a_floor_without_a_meaning_is_no_number_anywhere(save: Save) -> None:
    for block, speed in enumerate((1e-4, 1e4, 1e-4)):
        save(block=block, throughput_per_s=speed)
        save(block=block, target="container", throughput_per_s=speed)
    comparison = save.compare()
    for verbose in (False, True):
        text = " ".join(" ".join(lines_of(comparison, verbose=verbose)).split())
        assert ("too noisy to say" in text, "e+" in text) == (verbose, False)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_four_cells_fit_every_terminal_and_what_finds_no_room_is_named(many: Comparison, width: int) -> None:
    lines, verbose = (lines_of(many, width, verbose=verbose) for verbose in (False, True))
    text, whole = (" ".join(" ".join(found).split()) for found in (lines, verbose))
    assert max(map(len, but_command("\n".join(lines)))) <= width
    assert "…" not in text
    room = width >= 120
    assert ("no room for elapsed, opening; COLUMNS=160 shows them" in text, "elapsed opening" in text) == (
        60 <= width < 120,
        room,
    )
    expected = any(line.startswith("target") and "expected" in line for line in verbose)
    assert ("expected: ratio of the mean times" in whole) == expected == room, "the legend is of columns that are shown"


def test_what_was_asked_for_is_shown_and_costs_and_the_legend_on_request(save: Save) -> None:
    cells(save, TARGETS[:2])
    for block in range(6):
        save("reference", block=block, target="container", ablation="seccomp", **PLACE)
        save("reference", block=block, replica=1, **PLACE)
    comparison = save.compare("reference")
    short, full = ("\n".join(lines_of(comparison, verbose=verbose)) for verbose in (False, True))
    words = ("geometric mean", "seccomp off", "container, seccomp off", "bare metal against itself (A/A): throughput ")
    assert [text in short for text in words] == [False, True, True, True]
    assert [text in full for text in words[:2]] == [True, True]
    assert more_options(comparison, "overview", costs=False) == "; more: --verbose, --costs, --explain"


def test_each_workload_has_its_own_unit(save: Save) -> None:
    for model, unit in (("resnet50", "images"), ("talker", "tokens")):
        save(model=model, unit=unit)
        save(model=model, unit=unit, target="container", throughput_per_s=5.0)
    comparison = save.compare()
    assert [group.metrics[0].unit for group in comparison.groups] == ["images/s", "tokens/s"]
    lines = lines_of(comparison)
    assert any("resnet50" in line and "10.0 (1 block) images/s" in line for line in lines), lines
    assert any("talker" in line and "10.0 (1 block) tokens/s" in line for line in lines), lines


def test_trials_of_two_units_are_two_jobs(save: Save) -> None:
    save(unit="images")
    save(target="container", unit="samples", throughput_per_s=5.0)
    warnings = [one.message for one in save.compare().warnings]
    assert any("no ratio is formed: unit samples against images" in message for message in warnings), warnings


def test_one_comparison_takes_nine_lines() -> None:
    lines = lines_of(compare(load([RUNS / "synthetic-podman"])))
    assert (len(lines), "elapsed" in lines[6], "opening" in lines[6]) == (9, True, True), lines


def test_no_number_of_one_block_stands_without_its_block(save: Save) -> None:
    for target, speed in {"bare-metal": 10.0, "container": 9.0, "vm": 8.0, "container-vm": 7.0}.items():
        save(target=target, **measured(speed))
    comparison = save.compare()
    assert all("x (1 block)" in line for line in group_lines(comparison.groups[0]) if "against container" in line)
    (_, *rows) = overview_table(comparison.groups, Footnotes(comparison, ""), judged=True).rows
    assert [cells[:3] for _, cells in rows] == [
        (f"{speed} (1 block)", "", "not yet measured: 1 block of 5") for speed in ("9.00", "8.00", "7.00")
    ]
