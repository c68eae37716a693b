"""Every surface gives the verdicts of the comparison: tables, JSON, CSV, Markdown, page, explanation and gate."""

import csv
import html
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from analysis.audit.audit import audited
from analysis.compare.by import compare_by
from analysis.compare.comparison import compare
from analysis.compare.regression import FAILED, regress
from analysis.compare.results import Comparison
from analysis.explain.attribution import explain
from analysis.explain.explanation import Explained
from analysis.load.records import Records, load
from analysis.report import page
from analysis.report.answers.answer import Answer, answer
from analysis.report.document import document
from analysis.report.formatting import ends, times
from analysis.report.gate import answer as gate_answer
from analysis.report.gate import gate_document
from analysis.report.markdown import markdown
from analysis.report.rows import as_csv, as_json
from analysis.report.sweeps.by import by_answer, by_document
from analysis.report.waterfall import explanation_document
from commands.compare.output import gate_output
from suite.records.usage import Conditions
from tests.analysis.conftest import Save, as_markdown, measured, printed
from tests.analysis.test_stored_runs import NAMES, RUNS, TOGETHER

VERDICTS = "no verdict|slower|faster|equivalent|undecided|tail|typical-only"
SHOWN = re.compile(rf"([\d.e+-]+)x \(?([\d.e+-]+ to [\d.e+-]+?|too noisy to say)\)?,? ({VERDICTS})")
"""A ratio with its interval and its verdict, in a cell or in a line."""
SHARES = re.compile(r"\d+ % of that is|[+-]\d\S* to [+-]\d\S* +-?\d+ %")
"""A part as a share of a difference."""

Shown = Mapping[tuple[str, str], set[str]]
"""The verdicts of each ratio and interval as they are written."""


class Surfaces(NamedTuple):
    records: Records
    comparison: Comparison
    explained: Explained
    told: dict[str, Any]


def decided(directory: Path) -> Path:
    """Store a run of the profile ``quick``: a container that is slower, and a disturbed VM that would be."""
    save, rng = Save(directory), np.random.default_rng(0)
    for block in range(8):
        for target, speed in (("bare-metal", 10.0), ("container", 8.0), ("vm", 7.0)):
            for more in ({}, {"replica": 1} if target == "bare-metal" else {"ablation": "pinning"}):
                busy = Conditions(interval_s=20.0, other_cpu_s=20.0 if target == "vm" else 0.0)
                now = measured(speed * math.exp(rng.normal(0, 0.002)))
                save(block=block, target=target, conditions=busy, **now, **more)
    return directory / "run"


ALIKE = {
    *("distributed-async", "distributed-host", "real"),
    *("synthetic-docker", "synthetic-podman", "synthetic-podman-later"),
}
"""Sample runs of the kinds of others: a scenario with another engine, network or arrangement."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.thorough if name in ALIKE else ())
        for name in (*NAMES, *TOGETHER, "decided")
    ],
)
def surfaces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    if request.param == "decided":
        records = load([decided(tmp_path_factory.mktemp("decided"))])
    else:
        records = audited(load([RUNS / name for name in TOGETHER.get(request.param, (request.param,))]))
    comparison = compare(records)
    return Surfaces(records, comparison, explain(records, comparison), json.loads(as_json(comparison)))


def verdicts(told: Mapping[str, Any]) -> Shown:
    """Return the verdicts in JSON, of which each has its reason if it is withheld."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in (row for row in told["rows"] if row["kind"] != "kept"):  # which nothing is judged by
        assert (row["verdict"] is None) == bool(row["withheld"]) or None in (row["low"], row["ratio"])
        if None not in (row["low"], row["ratio"]):
            interval = row["low"], row["high"]
            found[times(row["ratio"]), ends(interval)].add(row["verdict"] or "no verdict")
    return found


def over_base(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in told["rows"] if row["kind"] == "target"]


def shown(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each ratio with an interval, and its verdict, of a page, a table or lines."""
    plain = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).replace("|", " ").split())
    for ratio, interval, verdict in SHOWN.findall(plain):
        yield (ratio, interval), verdict


def test_tables_markdown_and_page_give_the_verdicts_of_the_json(
    surfaces: Surfaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, comparison, explained, told = surfaces
    monkeypatch.setattr(page, "pictures", lambda *_: ())
    expected = verdicts(told)
    texts = {
        "overview": printed(document(comparison), 140),
        "markdown": as_markdown(comparison),
        "page": "".join(page.render(records, comparison, explained)),
    }
    for surface, text in texts.items():
        # A ratio below 0.1 is shorter in the overview.
        pairs = [pair for pair in shown(text) if surface != "overview" or pair[0] in expected]
        assert [pair for pair in pairs if pair[1] not in expected[pair[0]]] == [], surface
        if surface != "overview":
            assert {key for key, _ in pairs} >= {*expected} - own_lines(told), surface


def own_lines(told: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return what only lines and narrow tables leave out: metrics that support the others."""
    supporting = [row for row in told["rows"] if row["low"] is not None and row["kind"] != "target" and row["ratio"]]
    return {(times(row["ratio"]), ends((row["low"], row["high"]))) for row in supporting}


def once(text: str, found: Answer, *, warned: bool = False) -> None:
    """A document begins with its answer: number, word, why and next, in this order and each of them once.

    With ``warned`` it ends with warnings, which give for each target what a reason is about.
    """
    plain = " ".join(re.sub(r"[|*_]", " ", html.unescape(text)).split())
    heads = [f"why: {' '.join(found.why.split())}", *([str(found.next).replace("  #", " #")] if found.next else [])]
    assert [plain.count(head) for head in heads] == [1] * len(heads), plain
    assert [len(re.findall(rf"\b{label}:", plain)) for label in ("why", "next")] == [1, len(heads) - 1]
    places = [plain.index(head) for head in heads]
    for row in found.rows:
        numbers = f"{row.value} {row.span}" if len(found.rows) > 1 else row.number
        places.insert(-len(heads), plain.index(" ".join(f"{row.subject} {numbers} {row.word}".split())))
    assert places == sorted(places)
    reasons = () if warned else found.why.split("; ")
    sentences = [part for part in (*reasons, *found.facts, found.where) if len(part) > 40]
    assert {part: plain.count(" ".join(part.split())) for part in sentences} == dict.fromkeys(sentences, 1)


def step_of(found: Answer) -> dict[str, object] | None:
    """Return the next step of an answer as JSON has it."""
    return {**vars(found.next), "argv": [*found.next.argv], "command": found.next.command} if found.next else None


def test_a_document_has_the_four_things_of_its_answer_once(surfaces: Surfaces) -> None:
    comparison, found = surfaces.comparison, answer(surfaces.comparison)
    assert found.why != ""
    once(printed(document(comparison), 400), found)
    once(as_markdown(comparison), found, warned=True)
    told = surfaces.told["answer"]
    assert (told["why"], told["lines"]) == (found.why, [*found.lines])
    assert told["next"] == step_of(found)


@pytest.mark.parametrize("bound", [0.05, 0.9])
def test_a_gate_has_the_four_things_of_its_answer_once(bound: float) -> None:
    old, new = (load([RUNS / name]) for name in ("synthetic-podman", "synthetic-podman-later"))
    found = regress(old, new, bound)
    once(printed(gate_document(found), 400), gate_answer(found))
    told = json.loads(gate_output(found).model_dump_json())["answer"]
    assert (told["why"], told["next"]) == (gate_answer(found).why, step_of(gate_answer(found)))


@pytest.mark.parametrize(
    ("names", "key"), [(("synthetic-podman", "synthetic-docker"), "engine"), (("synthetic",), "model")]
)
def test_values_of_a_key_have_the_four_things_of_their_answer_once(names: tuple[str, ...], key: str) -> None:
    found = compare_by(load([RUNS / name for name in names]), (key,), ())
    for text in (printed(by_document(found), 400), markdown(by_document(found))):
        once(text, by_answer(found))


def test_csv_gives_the_verdicts_of_the_json(surfaces: Surfaces) -> None:
    rows = csv.DictReader(io.StringIO(as_csv(surfaces.comparison)))
    assert [(row["verdict"], row["withheld"]) for row in rows] == [
        (row["verdict"] or "", "; ".join(row["withheld"])) for row in surfaces.told["rows"]
    ]


def test_the_answer_claims_nothing_that_is_withheld(surfaces: Surfaces) -> None:
    for claim in surfaces.told["answer"]["claims"]:
        assert (claim["verdict"] is None) == bool(claim["withheld"]) or claim["slower"] is None
        if claim["withheld"]:
            assert (claim["word"], claim["why"]) == ("no verdict", claim["withheld"])


def test_explanations_have_the_verdicts_and_no_share_of_what_is_withheld(surfaces: Surfaces) -> None:
    _, _, explained, told = surfaces
    blocks = [row for row in over_base(told) if row["blocks"]]
    reasons = {(row["variant"], row["model"], row["target"]): row["withheld"] for row in blocks}
    for one in explained.explanations:
        assert list(one.withheld) == reasons[one.job.variant, one.model, one.target]
        text = printed(explanation_document(replace(explained, explanations=(one,), warnings=())), 140)
        assert all(pair[1] in verdicts(told)[pair[0]] for pair in shown(text))
        interval = one.whole.interval
        judged = not one.withheld and interval is not None and not interval[0] <= 0 <= interval[1]
        assert bool(SHARES.search(text)) == judged
        if one.withheld:
            assert one.prediction is None or not one.prediction.parts
            assert "the difference, which has no verdict" in " ".join(text.split())


def test_the_gate_cannot_tell_of_trials_that_carry_no_verdict(surfaces: Surfaces) -> None:
    records, _, _, told = surfaces
    if not records.trials["ok"].any():
        return
    found = regress(records, records, 0.05)
    carries = {
        (row["model"], row["target"], row["metric"]): not row["withheld"] for row in over_base(told) if row["value"]
    }
    for change in json.loads(gate_output(found).model_dump_json())["changes"]:
        key = change["model"], change["target"], change["metric"]
        if change["outcome"] not in (None, "cannot tell"):
            # The comparison has no row of failed trials, which are counted whatever the others carry.
            assert change["metric"] == FAILED.name or carries[key]
            assert not change["withheld"]
        elif change["outcome"] and change["target"] != "bare-metal" and not (change["ablation"] or change["aggressor"]):
            assert change["withheld"] or carries[key]
    if any(change.outcome for change in found.changes):
        assert gate_answer(found).rows[0].word == found.outcome


def test_the_run_that_decides_has_both_verdicts_and_withheld_ones(tmp_path: Path) -> None:
    told = json.loads(as_json(compare(load([decided(tmp_path)]))))
    found = {row["target"]: row["verdict"] for row in over_base(told) if row["metric"] == "throughput"}
    assert (found["container"], found["vm"]) == ("slower", None)
