"""The answer: sentences that can be acted on, and reasons where there is no verdict."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.compare.contrast_kinds import AGAIN, RATIO
from analysis.compare.contrasts import contrasts
from analysis.compare.results import Arm, Comparison
from analysis.load.metrics import METRICS
from analysis.load.plans import Terms
from analysis.report.answers.answer import AnswerRow, answer, claims
from analysis.report.document import document
from analysis.report.formatting import ratio
from analysis.report.rows import as_json
from analysis.statistics.ratios import Verdict, VerdictName
from analysis.statistics.sequential import LEAST_BLOCKS, level_after
from suite.records.environment import Environment, Environments
from suite.records.usage import Conditions
from suite.request.repetitions import RepetitionOptions
from suite.request.request import RunRequest
from tests.analysis.conftest import Save, as_markdown, printed
from tests.jobs import identity
from tests.suite.conftest import make_plan

HOST = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model="a CPU", hostname="node7")
PLACE = Environments(host=HOST, target=HOST)
BUSY = Conditions(interval_s=20, other_cpu_s=0.11 * 2 * 20)
"""More other work on the CPUs than the bound allows."""


def run(
    save: Save,
    factor: float,
    *,
    blocks: int = 20,
    noise: float = 0.004,
    margin: float = 0.02,
    targets: tuple[str, ...] = ("container",),
    models: tuple[str, ...] = ("resnet50",),
    **changes: Any,
) -> Comparison:
    """Compare targets whose throughput is that of bare metal times ``factor``, with noise from block to block."""
    rng = np.random.default_rng(1)
    for block in range(blocks):
        for model in models:
            for target in ("bare-metal", *targets):
                speed = 10 * (1 if target == "bare-metal" else factor) * math.exp(rng.normal(0, noise))
                numbers = {"throughput_per_s": speed, "elapsed_s": 200 / speed}
                save(block=block, model=model, target=target, **{"environment": PLACE} | numbers | changes)
    return save.compare(margin=margin)


def only(comparison: Comparison) -> AnswerRow:
    """Return the row of a comparison that has one."""
    (row,) = answer(comparison).rows
    return row


@pytest.mark.parametrize(
    ("factor", "margin", "word", "reason"),
    [
        (
            0.982,
            0.05,
            "equivalent",
            r"within the margin of 5 % \([\d.]+ to [\d.]+ % slower; excluded: slow trials .*\)",
        ),
        (0.9, 0.02, "slower", r"beyond the margin of 2 % \([\d.]+ to [\d.]+ % slower\)"),
        (1.1, 0.02, "faster", r"beyond the margin of 2 % \([\d.]+ to [\d.]+ % faster\)"),
        (1.0, 0.02, "equivalent", r"within the margin of 2 % \([\d.]+ % slower to [\d.]+ % faster; excluded: .*\)"),
    ],
)
def test_one_comparison_is_a_number_a_word_why_and_next(
    factor: float, margin: float, word: str, reason: str, save: Save
) -> None:
    found = answer(run(save, factor, margin=margin, engine="podman"))
    (row,) = found.rows
    assert (row.subject, row.word) == ("container (podman)", word)
    assert re.fullmatch(r"[01]\.\d{3}x bare metal \([01]\.\d{3} to [01]\.\d{3}\)", row.number)
    assert re.fullmatch(reason, found.why), found.why
    repeated = f"--margin {margin:.0%} --explain"
    assert str(found.next) == f"bench compare {save.path / 'run'} {repeated}  # where the time goes"
    assert found.where.endswith("; 20 blocks, host node7")
    assert [line.partition(":")[0] for line in found.lines[:3]] == ["container (podman)", "why", "next"]
    assert found.lines[3] == str(found.next), "alone on its line"


def test_what_is_undecided_says_how_many_blocks_and_how_much_time_would_decide(save: Save) -> None:
    comparison = run(save, 0.98, noise=0.03, blocks=10)
    (claim,) = claims(comparison)
    more, block_s = claim.more_blocks or 0, claim.around.block_s or 0.0
    assert block_s == pytest.approx(41, abs=2), "two trials, each opened in half a second"
    assert claim.more_s == pytest.approx(more * block_s)
    assert only(comparison).word == "undecided"
    assert answer(comparison).why.startswith("within or beyond the margin of 2 % (")


def test_the_time_of_a_block_holds_what_lies_between_its_trials(save: Save) -> None:
    for number, target in enumerate(("bare-metal", "container")):
        save(target=target, started_at=f"2026-01-01T00:0{number}:00+00:00")
    (group,) = save.compare().groups
    assert group.circumstances.block_s == 120


def test_the_smoke_profile_and_few_blocks_give_a_number_and_no_verdict(save: Save) -> None:
    comparison = run(save, 0.8, blocks=4, profile="smoke")
    assert (only(comparison).number, only(comparison).word) == ("not yet measured: 4 blocks of 5", "no verdict")
    assert answer(comparison).why == "smoke run: not a measurement; at least 5 blocks are needed"
    row = next(row for row in json.loads(as_json(comparison))["rows"] if row["target"] == "container")
    assert row["withheld"] == ["smoke run: not a measurement", "at least 5 blocks are needed"]
    assert row["verdict"] is None
    (claim,) = json.loads(as_json(comparison))["answer"]["claims"]
    assert (claim["verdict"], claim["word"], claim["withheld"]) == (None, "no verdict", row["withheld"])
    assert claim["slower"] == pytest.approx(0.2, abs=0.01)


def test_what_several_comparisons_share_stands_once(save: Save) -> None:
    found = answer(run(save, 0.8, blocks=2, targets=("container", "vm")))
    assert [(row.subject, row.word) for row in found.rows] == [("container", "no verdict"), ("vm", "no verdict")]
    assert found.why == "at least 5 blocks are needed"


def test_a_reason_of_one_row_has_its_name(save: Save) -> None:
    run(save, 0.8, targets=("container", "vm"))
    for block in range(4):
        save(block=block, target="vm", environment=PLACE, throughput_per_s=8, conditions=BUSY)
    found = answer(save.compare())
    assert [row.word for row in found.rows] == ["slower", "no verdict"]
    assert found.why.startswith("container: beyond the margin of 2 % (")
    assert "; vm: the CPUs were busy with other work (over 10 % of the CPU time in 4 of 20 trials on vm)" in found.why


def test_a_great_factor_is_no_per_cent(save: Save) -> None:
    found = answer(run(save, 4, noise=0.1)).why
    assert re.search(r"\(3[.0-9]* times as fast to 4[.0-9]* times as fast\)", found), found


@pytest.mark.parametrize(("disturbed", "stands"), [(3, True), (4, False)])
def test_trials_disturbed_beyond_the_bound_withhold_the_verdict_if_trimming_does_not_leave_them_out(
    save: Save, disturbed: int, stands: bool
) -> None:
    run(save, 0.8)
    for block in range(disturbed):
        save(block=block, target="container", environment=PLACE, throughput_per_s=8, conditions=BUSY)
    comparison = save.compare()
    busy = "the CPUs were busy with other work"
    if stands:
        assert only(comparison).word == "slower"
        assert answer(comparison).why.endswith(
            f"; {busy}, within bounds (over 2 % of the CPU time in {disturbed} of 20 trials, "
            f"over 10 % of the CPU time in {disturbed}, which trimming leaves out)"
        )
    else:
        assert (only(comparison).number[:3], only(comparison).word) == ("0.8", "no verdict")
        assert answer(comparison).why == f"{busy} (over 10 % of the CPU time in 4 of 20 trials on container)"


@pytest.mark.parametrize("disturbed", [3, 4])
def test_the_reason_names_the_processes_that_took_the_cpus_and_their_shares(save: Save, disturbed: int) -> None:
    run(save, 0.8)
    spent = {"cc1": 2.2, "make": 1.1, "sh": 0.1}
    for block in range(disturbed):
        named = replace(BUSY, busiest=spent)
        save(block=block, target="container", environment=PLACE, throughput_per_s=8, conditions=named)
    (line,) = (line for line in answer(save.compare()).lines if line.startswith("why: "))
    assert re.search(r"; most of it: cc1 5\.5 %, make 2\.8 %\)$", line), line


def test_what_is_not_trimmed_is_not_called_left_out(save: Save) -> None:
    (found,) = claims(run(save, 0.8, blocks=4, conditions=BUSY))
    unlisted = replace(found, found=replace(found.found, verdict=Verdict("slower", 0.01, None)))
    assert "over 10 % of the CPU time in 8" in "; ".join(unlisted.why)
    assert "trimming" not in "; ".join(unlisted.why)


def test_a_substitute_is_part_of_the_sentence(save: Save) -> None:
    assert only(run(save, 0.01, targets=("vm",), substitutes=["accelerator:tcg"])).subject == "vm (accelerator:tcg)"


def test_many_comparisons_are_those_that_cost_most_and_a_count(save: Save) -> None:
    models = ("resnet50", "alexnet", "vae", "dcgan", "gan")
    comparison = run(save, 0.9, blocks=5, targets=("container", "vm", "container-vm"), models=models)
    rows = answer(comparison).rows
    assert len(claims(comparison)) == 15
    together = [f"5 models, {target}" for target in ("container", "vm", "container-vm")]
    assert [row.subject for row in rows[:3]] == together
    assert len(rows) == 5
    assert (rows[-1].subject, rows[-1].number) == ("15 comparisons", "15 slower")


@pytest.mark.parametrize("name", ["tail", "typical-only"])
def test_only_what_is_equivalent_is_called_within_the_margin(save: Save, name: VerdictName) -> None:
    comparison = run(save, 0.999, targets=("container", "vm"))
    (group,) = comparison.groups
    verdict = Verdict(name, 0.01, margin=0.02)
    contrasts = tuple(replace(one, verdict=verdict) if one.target == "container" else one for one in group.contrasts)
    found = answer(replace(comparison, groups=(replace(group, contrasts=contrasts),)))
    assert [row.word for row in found.rows] == [name, "equivalent"]
    assert "vm: within the margin of 2 % (" in found.why
    assert "the typical one is within the margin of 2 % (" in found.why.partition("vm: ")[0]


@pytest.mark.parametrize("factor", [0.999, 0.982, 0.8])
def test_the_interval_of_a_run_that_stopped_at_its_verdict_says_so(tmp_path: Path, save: Save, factor: float) -> None:
    plan = make_plan(
        targets=("bare-metal", "container"),
        blocks=20,
        request=RunRequest.of({"until": "decided"}),
        run_id=identity("run"),
    )
    comparison = run(save, factor)
    assert "after stopping" not in only(comparison).number
    (tmp_path / "run/plan.json").write_text(plan.model_dump_json())
    stopped = save.compare()
    assert "after stopping" in only(stopped).number
    assert "after stopping it covers 89 to 95 %" in as_markdown(stopped)


@pytest.mark.parametrize(
    ("interval", "level", "side", "because"),
    [
        ((0.983, 1.015), 0.0049, "its interval is within the margin of 2 % (", "a run that looks again and again"),
        ((0.983, 1.015), 0.05, "its interval is within the margin of 2 % (", "one of several comparisons"),
        ((0.95, 0.979), 0.0049, "its interval is beyond the margin of 2 % (", "a run that looks again and again"),
        ((0.979, 1.015), 0.0049, "within or beyond the margin of 2 % (", ""),
    ],
)
def test_what_is_undecided_with_its_interval_on_one_side_says_what_it_lacks(
    save: Save, interval: tuple[float, float], level: float, side: str, because: str
) -> None:
    comparison = run(save, 0.999)
    (group,) = comparison.groups
    verdict = Verdict("undecided", 0.06, level=level, margin=0.02)
    contrasts = tuple(
        replace(contrast, ratio=interval[0], interval=interval, verdict=verdict) for contrast in group.contrasts
    )
    found = answer(replace(comparison, groups=(replace(group, contrasts=contrasts),)))
    assert found.why.startswith(side)
    lacks = f"not yet enough for {because} (p = 0.06, at most {level:.2g})"
    assert (lacks in found.why) == bool(because)
    assert ("not yet enough" in found.why) == bool(because)


def test_a_stop_rule_judges_what_is_undecided_at_the_level_of_its_looks(tmp_path: Path, save: Save) -> None:
    plan = make_plan(
        targets=("bare-metal", "container"),
        blocks=20,
        request=RunRequest.of({"until": "decided"}),
        run_id=identity("run"),
    )
    run(save, 0.999, noise=0.06)
    (tmp_path / "run/plan.json").write_text(plan.model_dump_json())
    (group,) = save.compare(margin=0.02).groups
    verdict = group.of_target("container")["throughput"].verdict
    assert verdict is not None
    assert verdict.name == "undecided"
    assert verdict.level == level_after(20, LEAST_BLOCKS)


def test_blocks_that_resemble_the_one_before_withhold_the_verdict_from_ten_on(save: Save) -> None:
    for block in range(20):
        for target in ("bare-metal", "container"):
            speed = 8 * (1.02 if block < 10 else 1) if target == "container" else 10
            save(block=block, target=target, environment=PLACE, throughput_per_s=speed, elapsed_s=200 / speed)
    comparison = save.compare()
    assert only(comparison).word == "no verdict"
    assert answer(comparison).why.startswith("blocks resemble the one before (p = ")
    (warning,) = [one for one in comparison.warnings if one.kind == "dependent-blocks"]
    assert {(one.target, one.model) for one in warning.touches} == {("container", "resnet50")}
    quiet = run(save, 0.8)
    assert not [one for one in quiet.warnings if one.kind == "dependent-blocks"]
    assert quiet.groups[0].of_target("container")["throughput"].verdict


def test_order_is_tested_at_one_level_over_all_ratios_of_a_comparison() -> None:
    rng = np.random.default_rng(3)
    job: Any = "job"
    alarms = 0
    for _ in range(40):
        ratios = {
            Arm(job, "model", str(target)): pd.DataFrame({RATIO: rng.normal(0, 0.004, 12)}) for target in range(60)
        }
        judged = contrasts(AGAIN, {METRICS[0].column: ratios}, METRICS[:1], {job: Terms()})
        alarms += any(contrast.dependent is not None for contrast in judged)
    assert alarms <= 3


@pytest.mark.parametrize(("blocks", "named"), [(7, True), (8, False)])
def test_the_effect_of_the_place_in_a_block_is_named_where_the_places_are_not_level(
    save: Save, blocks: int, named: bool
) -> None:
    rng = np.random.default_rng(3)
    for trial in make_plan(targets=("bare-metal", "container"), blocks=blocks, order_seed=1).trials():
        speed = 10 * (0.97 if trial.position else 1) * math.exp(rng.normal(0, 0.002))
        place = {"block": trial.block, "position": trial.position, "target": trial.target}
        save(**place, environment=PLACE, throughput_per_s=speed, elapsed_s=200 / speed)
    warnings = [one for one in save.compare().warnings if one.kind == "place-in-block"]
    assert len(warnings) == named
    if named:
        (slope,) = re.findall(r"has (0\.97\d) times as much \(95 % interval", warnings[0].message)
        assert float(slope) == pytest.approx(0.97, abs=0.003)
        assert re.search(r"container came 0\.14 places (before|after) bare-metal: a factor of", warnings[0].message)


def test_a_run_of_bare_metal_alone_says_what_to_add(save: Save) -> None:
    save()
    assert answer(save.compare()).lines == ("why: nothing to compare: resnet50 ran on bare-metal alone",)


def test_a_target_without_a_number_and_a_run_without_a_finished_trial_say_why(save: Save) -> None:
    save()
    save(target="vm", failed="no memory")
    failed = answer(save.compare())
    share = "1 of 1 failed (2.5 to 100 %), none on bare metal, p = 0.5"
    why = "no trial finished (1 failed: no memory)"
    assert (*map(str, failed.rows), failed.why) == (f"vm: -, no number, {share}", why)
    save(run_id="alone", target="vm")
    alone = answer(save.compare("alone"))
    row = "vm: not yet measured: 1 block of 5, no number"
    assert (*map(str, alone.rows), alone.why) == (row, "no bare-metal trial to compare with")
    for block in range(5):
        save(run_id="five", block=block, target="vm")
    assert str(only(save.compare("five"))) == "vm: 10.0 images/s, no number"
    save("unfinished", failed="no memory")
    unfinished = answer(save.compare("unfinished"))
    assert unfinished.why == "nothing to compare: 1 trial of resnet50 failed, and none has finished"


def test_numbers_beyond_sense_are_not_printed(save: Save) -> None:
    assert only(run(save, 1.0, blocks=5, noise=4)).number == "too noisy to say"
    comparison = run(save, 0.9802, noise=0.1, blocks=10)
    (group,) = comparison.groups
    estimate = group.of_target("container")["throughput"]
    far = replace(estimate, verdict=Verdict("undecided", 0.5, 4471))
    assert "4471" not in ratio(far)


@pytest.mark.parametrize(
    ("repetitions", "words"),
    [
        (RepetitionOptions(blocks=3), "--blocks 12"),
        (RepetitionOptions(until="decided", budget="1m"), "--budget 13m"),
        (RepetitionOptions(until="2%", budget="1m", max_blocks=5), "--max-blocks 12 --budget 13m"),
        (RepetitionOptions(until="decided"), ""),
    ],
)
def test_the_words_that_extend_a_run_are_those_its_stop_rule_takes(repetitions: RepetitionOptions, words: str) -> None:
    assert repetitions.extension(12, 60) == words.split()
    given = dict(zip(words.replace("--", "").replace("-", "_").split()[::2], words.split()[1::2], strict=True))
    assert repetitions.extended(given).items() >= given.items()


def test_below_five_blocks_the_first_line_has_no_number_and_the_table_has_its_blocks(save: Save) -> None:
    comparison = run(save, 0.9, blocks=1)
    assert str(only(comparison)) == "container: not yet measured: 1 block of 5, no verdict"
    assert re.search(r"container +[\d.]+ \(1 block\)", printed(document(comparison), 100))
    assert not re.search(r"\((?!1 block)", printed(document(run(save, 0.9, blocks=5)), 100).splitlines()[-1])


def test_one_block_is_no_plural_anywhere(save: Save) -> None:
    comparison = run(save, 0.9, blocks=1)
    for form in (as_markdown(comparison), as_json(comparison)):
        assert not re.search(r"\b1 (blocks|trials)\b", form), form


def test_jobs_that_differ_are_not_one_comparison(save: Save) -> None:
    for block in range(5):
        for engine in ("runc", "podman"):
            for target in ("bare-metal", "container"):
                save(run_id=engine, block=block, target=target, engine=engine)
    found = answer(save.compare("runc", "podman"))
    assert [row.subject for row in found.rows] == ["engine=podman, container (podman)", "engine=runc, container (runc)"]
