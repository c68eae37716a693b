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

from analysis.compare.comparison import compare
from analysis.compare.contrasts import RATIO, judged
from analysis.compare.results import Arm, Comparison
from analysis.load.metrics import METRICS
from analysis.load.plans import extendable
from analysis.load.records import load
from analysis.report.answer import answer, claims, next_steps
from analysis.report.formatting import duration, percent, ratio
from analysis.report.markdown import as_markdown
from analysis.report.page import write_report
from analysis.report.rows import as_json
from analysis.statistics.ratios import Verdict, VerdictName
from suite.records.environment import Environment, Environments
from suite.records.usage import Conditions
from suite.request.repetitions import RepetitionOptions
from suite.request.request import RunRequest
from tests.suite.conftest import make_plan

HOST = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model="a CPU", hostname="node7")
PLACE = Environments(host=HOST, target=HOST)


def run(
    save: Any,
    path: Path,
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
    return compare(load([path / "run"]), margin=margin)


def sentence(comparison: Comparison) -> str:
    (found,) = answer(comparison)
    return found


def test_a_cost_within_the_margin_is_said_with_all_that_makes_it_a_claim(tmp_path: Path, save: Any) -> None:
    found = sentence(run(save, tmp_path, 0.982, margin=0.05, engine="podman"))
    assert found.startswith("A podman container costs resnet50 1.")
    assert " % (" in found
    assert found.endswith(
        "of its throughput on host node7, 20 blocks: slower, within the margin of 5 %; "
        "excluded: slow trials (over 10 % slower) in more than 14 % of runs."
    )


def test_a_cost_beyond_the_margin_and_a_gain_are_told_apart(tmp_path: Path, save: Any) -> None:
    assert sentence(run(save, tmp_path, 0.9)).endswith("slower, beyond the margin of 2 %.")
    faster = sentence(run(save, tmp_path, 1.1))
    assert "gives resnet50 10 % (" in faster
    assert faster.endswith("faster, beyond the margin of 2 %.")


def test_no_difference_is_said_as_the_interval_that_is_left(tmp_path: Path, save: Any) -> None:
    found = sentence(run(save, tmp_path, 1.0))
    assert "costs resnet50 none of its throughput beyond the margin of 2 % on host node7, 20 blocks: between" in found
    assert "slower and" in found


def test_what_is_undecided_says_how_many_blocks_and_how_much_time_would_decide(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.985, noise=0.05, blocks=10)
    (claim,) = claims(comparison)
    assert claim.more_blocks
    # A block is two trials, each opened in half a second.
    assert claim.around.block_s == pytest.approx(41, abs=2)
    assert claim.more_s == pytest.approx(claim.more_blocks * (claim.around.block_s or 0))
    found = claim.sentence
    assert found.startswith("Undecided what a")
    assert "slower and" in found
    assert (
        f"about {claim.more_blocks:,} more blocks, {duration(claim.more_s or 0)}, would decide at the margin" in found
    )


def test_the_time_of_a_block_holds_what_lies_between_its_trials(tmp_path: Path, save: Any) -> None:
    for number, target in enumerate(("bare-metal", "container")):
        save(target=target, started_at=f"2026-01-01T00:0{number}:00+00:00")
    (group,) = compare(load([tmp_path / "run"])).groups
    assert group.circumstances.block_s == 120


def test_the_smoke_profile_and_few_blocks_give_a_number_and_no_verdict(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.8, blocks=4, profile="smoke")
    found = sentence(comparison)
    why = "the smoke profile only proves the path, a verdict takes 5 blocks"
    assert found.startswith(f"No verdict yet on resnet50 in a container on host node7: 4 blocks, {why} (ratio 0.7")
    assert found.endswith(").")
    row = next(row for row in json.loads(as_json(comparison))["rows"] if row["target"] == "container")
    assert row["withheld"] == ["the smoke profile only proves the path", "a verdict takes 5 blocks"]
    assert row["verdict"] is None
    (claim,) = json.loads(as_json(comparison))["answer"]["claims"]
    assert (claim["verdict"], claim["withheld"]) == (None, row["withheld"])
    assert claim["slower"] == pytest.approx(0.2, abs=0.01)


def test_several_numbers_without_a_verdict_say_why_once(tmp_path: Path, save: Any) -> None:
    found = sentence(run(save, tmp_path, 0.8, blocks=2, targets=("container", "vm")))
    assert found.startswith("No verdict yet on 2 comparisons of throughput with bare-metal on host node7 (2 blocks")
    assert found.endswith("): a verdict takes 5 blocks.")
    assert found.count("a verdict takes 5 blocks") == 1


def test_a_great_factor_is_no_per_cent(tmp_path: Path, save: Any) -> None:
    found = sentence(run(save, tmp_path, 4, noise=0.1, margin=2.99))
    assert re.search("between 3[.0-9]* times as fast and 4[.0-9]* times as fast", found), found


def test_five_blocks_of_another_profile_have_a_verdict(tmp_path: Path, save: Any) -> None:
    assert sentence(run(save, tmp_path, 0.8, blocks=5)).endswith("slower, beyond the margin of 2 %.")


@pytest.mark.parametrize(("disturbed", "stands"), [(3, True), (4, False)])
def test_trials_disturbed_beyond_the_bound_withhold_the_verdict_if_trimming_does_not_leave_them_out(
    tmp_path: Path, save: Any, disturbed: int, stands: bool
) -> None:
    run(save, tmp_path, 0.8)
    for block in range(disturbed):
        load_of_others = Conditions(interval_s=20, other_cpu_s=0.11 * 2 * 20)
        save(block=block, target="container", environment=PLACE, throughput_per_s=8, conditions=load_of_others)
    found = sentence(compare(load([tmp_path / "run"])))
    if stands:
        assert found.endswith(
            "beyond the margin of 2 %; disturbed within bounds: the CPUs were busy with other work (over 2 % of the "
            f"CPU time) in {disturbed} of 20 trials, "
            f"over 10 % of the CPU time in {disturbed}, which trimming leaves out."
        )
    else:
        reason = "the CPUs were busy with other work (over 10 % of the CPU time) in 4 of 20 trials on container"
        assert found.startswith(
            f"No verdict yet on resnet50 in a container on host node7: 20 blocks, {reason} (ratio 0.7"
        )
        assert "disturbed within" not in found


def test_what_is_not_trimmed_is_not_called_left_out(tmp_path: Path, save: Any) -> None:
    busy = Conditions(interval_s=20, other_cpu_s=0.11 * 2 * 20)
    found = next(iter(claims(run(save, tmp_path, 0.8, blocks=4, conditions=busy))))
    unlisted = replace(found, found=replace(found.found, verdict=Verdict("slower", 0.01, None)))
    assert "over 10 % of the CPU time in 8" in unlisted.sentence
    assert "trimming" not in unlisted.sentence


def test_a_little_load_is_named_and_withholds_nothing(tmp_path: Path, save: Any) -> None:
    little = Conditions(interval_s=20, other_cpu_s=0.05 * 2 * 20)
    found = sentence(run(save, tmp_path, 0.8, conditions=little))
    within_bounds = "the CPUs were busy with other work (over 2 % of the CPU time) in 40 of 40 trials"
    assert found.endswith(f"beyond the margin of 2 %; disturbed within bounds: {within_bounds}.")


def test_a_substitute_is_part_of_the_sentence(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.01, targets=("vm",))
    (group,) = comparison.groups
    emulated = replace(group.targets[1], substitutes=("accelerator:tcg",))
    told = sentence(replace(comparison, groups=(replace(group, targets=(group.targets[0], emulated)),)))
    assert told.startswith("An emulated VM (accelerator:tcg) costs resnet50 99")


def test_more_than_three_comparisons_are_one_sentence_that_names_the_worst(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.9, targets=("container", "vm"), models=("resnet50", "alexnet"), engine="runc")
    found = sentence(comparison)
    assert found.startswith(
        "4 comparisons of throughput with bare-metal on host node7 (runc, 20 blocks, margin 2 %): 4 slower; most: a"
    )
    assert len(claims(comparison)) == 4


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("tail", "1 within the margin but for slow trials"),
        ("typical-only", "1 within the margin for a typical trial only"),
        ("equivalent", "4 within the margin; excluded: slow trials (over 10 % slower) in more than 14 % of runs;"),
    ],
)
def test_of_many_comparisons_only_what_is_equivalent_counts_as_within_the_margin(
    tmp_path: Path, save: Any, name: VerdictName, outcome: str
) -> None:
    comparison = run(save, tmp_path, 0.999, targets=("container", "vm"), models=("resnet50", "alexnet"))
    (first, *others) = comparison.groups
    contrasts = tuple(
        replace(one, verdict=Verdict(name, 0.01)) if one.target == "container" else one for one in first.contrasts
    )
    told = sentence(replace(comparison, groups=(replace(first, contrasts=contrasts), *others)))
    assert outcome in told
    assert f"{3 if name != 'equivalent' else 4} within the margin;" in told


@pytest.mark.parametrize("factor", [0.999, 0.982, 0.8])
def test_the_interval_of_a_run_that_stopped_at_its_verdict_says_so(tmp_path: Path, save: Any, factor: float) -> None:
    plan = make_plan(targets=("bare-metal", "container"), blocks=20, request=RunRequest.of({"until": "decided"}))
    comparison = run(save, tmp_path, factor)
    assert "after stopping" not in sentence(comparison)
    (tmp_path / "run/plan.json").write_text(plan.model_dump_json())
    stopped = compare(load([tmp_path / "run"]), margin=comparison.margin)
    assert "after stopping" in sentence(stopped)
    assert "after stopping it covers 89 to 95 %" in as_markdown(stopped)


def test_blocks_that_resemble_the_one_before_withhold_the_verdict_from_ten_on(tmp_path: Path, save: Any) -> None:
    for block in range(20):
        for target in ("bare-metal", "container"):
            speed = 8 * (1.02 if block < 10 else 1) if target == "container" else 10
            save(block=block, target=target, environment=PLACE, throughput_per_s=speed, elapsed_s=200 / speed)
    comparison = compare(load([tmp_path / "run"]))
    assert sentence(comparison).startswith(
        "No verdict yet on resnet50 in a container on host node7: 20 blocks, blocks resemble the one before (p = "
    )
    (warning,) = [one for one in comparison.warnings if one.kind == "dependent-blocks"]
    assert {(one.target, one.model) for one in warning.touches} == {("container", "resnet50")}
    quiet = run(save, tmp_path, 0.8)
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
        effects = judged({METRICS[0].column: ratios}, METRICS[:1], 0.02)[METRICS[0].column]
        alarms += any(effect.dependent is not None for effect in effects.values())
    assert alarms <= 3


@pytest.mark.parametrize(("blocks", "named"), [(7, True), (8, False)])
def test_the_effect_of_the_place_in_a_block_is_named_where_the_places_are_not_level(
    tmp_path: Path, save: Any, blocks: int, named: bool
) -> None:
    rng = np.random.default_rng(3)
    plan = make_plan(targets=("bare-metal", "container"), blocks=blocks, order_seed=1)
    for trial in plan.trials():
        speed = 10 * (0.97 if trial.position else 1) * math.exp(rng.normal(0, 0.002))
        place = {"block": trial.block, "position": trial.position, "target": trial.target}
        save(**place, environment=PLACE, throughput_per_s=speed, elapsed_s=200 / speed)
    comparison = compare(load([tmp_path / "run"]))
    warnings = [one for one in comparison.warnings if one.kind == "place-in-block"]
    assert len(warnings) == named
    if named:
        (slope,) = re.findall(r"has (0\.97\d) times as much \(95 % interval", warnings[0].message)
        assert float(slope) == pytest.approx(0.97, abs=0.003)
        assert re.search(r"container came 0\.14 places (before|after) bare-metal: a factor of", warnings[0].message)


def test_a_run_of_bare_metal_alone_says_what_to_add(tmp_path: Path, save: Any) -> None:
    save()
    assert sentence(compare(load([tmp_path / "run"]))) == (
        "Nothing to compare: resnet50 ran on bare-metal alone; add a target, such as --target container."
    )


def test_a_target_without_a_number_says_why(tmp_path: Path, save: Any) -> None:
    save()
    save(target="vm", failed="no memory")
    assert sentence(compare(load([tmp_path / "run"]))) == "A VM gave no finished trial of resnet50 (1 failed trial)."
    save(run_id="alone", target="vm")
    told = sentence(compare(load([tmp_path / "alone"])))
    assert (
        told
        == "A VM gives resnet50 a throughput of 10.0 images/s, but nothing comparable on bare-metal says at what cost."
    )


def test_a_run_without_a_finished_trial_says_that_its_trials_failed(tmp_path: Path, save: Any) -> None:
    save(failed="no memory")
    found = sentence(compare(load([tmp_path / "run"])))
    assert found == "Nothing to compare: 1 trial of resnet50 failed, and none has finished."


def test_numbers_beyond_sense_are_not_printed(tmp_path: Path, save: Any) -> None:
    found = sentence(run(save, tmp_path, 1.0, blocks=2, noise=2))
    assert "(ratio too noisy to say)" in found
    comparison = run(save, tmp_path, 0.9802, noise=0.1, blocks=10)
    (group,) = comparison.groups
    estimate = group.of_target("container")["throughput"]
    far = replace(estimate, verdict=Verdict("undecided", 0.5, 4471))
    assert "4471" not in ratio(far)
    contrasts = tuple(far if one == estimate else one for one in group.contrasts)
    told = sentence(replace(comparison, groups=(replace(group, contrasts=contrasts),)))
    assert told.endswith("; to decide at the margin of 2 % takes more blocks than can be measured here.")


def test_what_is_open_ends_with_the_command_that_would_decide_it(tmp_path: Path, save: Any) -> None:
    directory = tmp_path / "run"
    comparison = run(save, tmp_path, 0.985, noise=0.03, blocks=10)
    (claim,) = claims(comparison)
    more = claim.more_blocks or 0
    step = answer(comparison, directory)[1]
    assert step.startswith(f"To decide it ({more:,} more blocks, about ")
    assert step.endswith(f": bench run --continue {directory} --blocks {10 + more}")
    assert not list(next_steps(run(save, tmp_path, 0.8), directory))
    (directory / "plan.json").write_text("{}")
    assert extendable([directory]) == directory
    (tmp_path / "sweep.json").write_text("{}")
    assert extendable([directory]) is None, "a cell is extended with its sweep"


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
    assert repetitions.extension(12, 60) == words
    given = dict(zip(words.replace("--", "").replace("-", "_").split()[::2], words.split()[1::2], strict=True))
    assert repetitions.extended(given).items() >= given.items()


def test_too_few_blocks_and_disturbed_ones_lack_those_that_would_carry_a_verdict(tmp_path: Path, save: Any) -> None:
    few = run(save, tmp_path, 0.8, blocks=3)
    assert next(next_steps(few, tmp_path)).endswith(" --blocks 5")
    busy = Conditions(interval_s=20, other_cpu_s=0.11 * 2 * 20)
    steps = list(next_steps(run(save, tmp_path, 0.8, blocks=6, conditions=busy), tmp_path))
    assert steps[0].endswith(" --blocks 42")  # of 42, trimming leaves out the six that were disturbed
    assert steps[1].endswith("may decide sooner: --design alternating")
    smoke = run(save, tmp_path, 0.8, blocks=6, profile="smoke")
    assert list(next_steps(smoke, tmp_path)) == ["The smoke profile decides nothing: measure with --profile quick."]


def test_one_block_is_no_plural_anywhere(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.9, blocks=1)
    for form in (as_markdown(comparison), as_json(comparison)):
        assert not re.search(r"\b1 (blocks|trials)\b", form), form


def test_every_form_begins_with_the_answer(tmp_path: Path, save: Any) -> None:
    comparison = run(save, tmp_path, 0.9)
    found = sentence(comparison)
    lines = [line for line in as_markdown(comparison).splitlines() if line]
    assert lines[0] == f"**{found}**"
    assert lines.count(lines[0]) == 1
    assert json.loads(as_json(comparison))["answer"]["sentences"] == [found]
    page = write_report(load([tmp_path / "run"]), tmp_path / "report.html").read_text()
    assert page.index(found) < page.index("<table")


def test_jobs_that_differ_are_not_one_comparison(tmp_path: Path, save: Any) -> None:
    for block in range(5):
        for engine in ("runc", "podman"):
            for target in ("bare-metal", "container"):
                save(run_id=engine, block=block, target=target, engine=engine)
    found = answer(compare(load([tmp_path / "runc", tmp_path / "podman"])))
    assert [one.split(" container")[0] for one in found] == ["A podman", "A runc"]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0181, "1.8 %"),
        (0.12, "12 %"),
        (0.0996, "10 %"),
        (0.05, "5 %"),
        (0.9912, "99.12 %"),
        (1.0, "100 %"),
        (-0.0004, "0 %"),
    ],
)
def test_a_share_is_short(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0.2, "1 s"), (45, "45 s"), (720, "12 min"), (4200, "1 h 10 min"), (7200, "2 h"), (260_000, "3 days")],
)
def test_a_time_is_said_as_people_say_it(value_s: float, text: str) -> None:
    assert duration(value_s) == text
