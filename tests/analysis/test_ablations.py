"""Ablations, warm-up trials and A/A: what is left out of the targets' own numbers, and what becomes of it."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.comparison import compare
from analysis.compare.convergence import should_stop_run
from analysis.compare.regression import regress
from analysis.load.records import load
from analysis.report.answers.answer import answer
from analysis.report.markdown import as_markdown
from analysis.report.page import write_report
from analysis.report.rows import as_json
from suite.errors import RequestError
from tests.analysis.conftest import WITHIN_2, explained_by, judged, only


def noisy(rng: np.random.Generator, speed: float) -> dict[str, float]:
    found = speed * math.exp(rng.normal(0, 0.002))
    return {"throughput_per_s": found, "elapsed_s": 200 / found}


def sweep(save: Any, blocks: int = 8, **switched: Any) -> None:
    """Blocks of bare metal and a container at 0.9 of it; and the container without seccomp at 0.95."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        drift = math.exp(rng.normal(0, 0.3))
        save(block=block, **noisy(rng, 10 * drift))
        save(block=block, target="container", **noisy(rng, 9 * drift))
        save(block=block, target="container", ablation="seccomp", **noisy(rng, 9.5 * drift), **switched)


def test_warm_up_trials_are_in_nothing_and_their_number_is_told_once(tmp_path: Path, save: Any) -> None:
    sweep(save)
    before = compare(load([tmp_path / "run"]))
    for block in range(2):
        save(block=block, warm_up=True, throughput_per_s=0.01)
        save(block=block, warm_up=True, target="container", failed="in a warm-up")
    records = load([tmp_path / "run"])
    after = compare(records)
    assert after.groups == before.groups
    assert after.warnings == ()
    assert (before.warmup_trials, after.warmup_trials) == (0, 4)
    assert json.loads(as_json(after))["warmup_trials"] == 4
    assert as_markdown(after).count("4 warm-up trials left out") == 1
    assert explained_by(records).explanations[0].blocks == 8
    assert {change.samples for change in regress(records, records).changes} == {(8, 8)}
    page = write_report(records, tmp_path / "report.html").read_text()
    assert page.count("4 warm-up trials left out") == 1


def test_a_run_that_is_still_warming_up_has_nothing_to_compare_and_says_so(tmp_path: Path, save: Any) -> None:
    save(warm_up=True)
    with pytest.raises(RequestError, match="1 warm-up trials and no other") as told:
        load([tmp_path / "run"])
    assert f"bench run --continue {tmp_path / 'run'};" in str(told.value.remedy)


def test_sequential_stopping_counts_neither_warm_up_blocks_nor_switched_trials(tmp_path: Path, save: Any) -> None:
    sweep(save, 12)
    for block in range(12):
        save(block=block, warm_up=True, throughput_per_s=1.0 + block)
    decision = should_stop_run(load([tmp_path / "run"]), WITHIN_2, max_blocks=13)
    assert (decision.stop, decision.at_least) == (False, 1)
    for block in range(12):
        save(block=block, target="container", ablation="network", failed="no")
    assert should_stop_run(load([tmp_path / "run"]), WITHIN_2, max_blocks=13) == decision


def test_a_switch_is_held_against_its_own_target_and_never_mixed_into_it(tmp_path: Path, save: Any) -> None:
    sweep(save)
    comparison = compare(load([tmp_path / "run"]))
    (group,) = comparison.groups
    assert [(summary.target, summary.ok) for summary in group.targets] == [("bare-metal", 8), ("container", 8)]
    assert group.of_target("container")["throughput"].ratio == pytest.approx(0.9, rel=0.01)
    (said,) = (line for line in answer(comparison).facts if line.startswith("Switched"))
    assert re.fullmatch(r"Switched in the same blocks: container, seccomp off: resnet50 5\.\d+ % faster\.", said)
    ((arm, switched),) = comparison.of_kind("ablation").items()
    assert (arm.target, arm.ablation) == ("container", "seccomp")
    assert set(switched) == {"throughput", "elapsed", "opening", "step-tail"}
    found = switched["throughput"]
    assert found.ratio == pytest.approx(9.5 / 9, rel=0.01)
    assert found.blocks == 8
    assert [judged(switched[name]).name for name in ("throughput", "elapsed")] == ["faster", "faster"]
    assert "| container, seccomp off | 1.05" in as_markdown(comparison)
    (row, *_) = (row for row in json.loads(as_json(comparison))["rows"] if row["kind"] == "ablation")
    assert (row["target"], row["ablation"], row["metric"], row["verdict"]) == (
        *("container", "seccomp", "throughput", "faster"),
    )
    page = write_report(load([tmp_path / "run"]), tmp_path / "report.html").read_text()
    assert "switched in the same blocks, over the same target as it is" in page
    assert "switched in the same blocks: container, seccomp off: throughput 1.05" in page, "beside the waterfall"


def test_the_answer_counts_the_models_that_it_does_not_name(tmp_path: Path, save: Any) -> None:
    for model in ("resnet50", "alexnet", "inception_v3", "gan", "vae"):
        sweep(partial(save, model=model))
    (sentence,) = (line for line in answer(compare(load([tmp_path / "run"]))).facts if line.startswith("Switched"))
    assert sentence.count("faster") == 3
    assert sentence.endswith("faster and 2 more.")


def test_only_what_was_switched_may_differ(tmp_path: Path, save: Any) -> None:
    for block in range(2):
        save(block=block)
        save(block=block, ablation="isa", capability="default")
        save(block=block, ablation="huge-pages", capability="default")
    records = load([tmp_path / "run"])
    refused, forced = compare(records), compare(records, force=True)
    assert [arm.ablation for arm in refused.of_kind("ablation")] == ["isa"]
    (found,) = refused.warnings
    assert found.kind == "incomparable"
    assert found.message.endswith(
        "bare-metal, huge pages on is not comparable with the same target as it is, so no ratio is formed: "
        "CPU capability default against AVX2"
    )
    assert {one.arm.ablation: one.notes for one in forced.contrasts if one.kind == "ablation"} == {
        "huge-pages": ("forced: CPU capability default against AVX2",),
        "isa": (),
    }


def test_a_switch_of_a_newer_suite_and_one_without_its_target_are_no_error(tmp_path: Path, save: Any) -> None:
    save()
    save(ablation="turbo")
    save(target="vm", ablation="disk-cache", substitutes=["accelerator:tcg"])
    save(target="container", ablation="seccomp", failed="no profile")
    comparison = compare(load([tmp_path / "run"]))
    assert [(arm.target, arm.ablation) for arm in comparison.of_kind("ablation")] == [("bare-metal", "turbo")]
    (found,) = comparison.warnings
    assert found.kind == "failed-trials"
    assert "1 of 1 trials on container, seccomp off failed" in found.message
    assert "bare-metal, turbo switched" in as_markdown(comparison), "one that is not installed here"


def test_bare_metal_against_itself_has_a_ratio_an_interval_and_a_verdict(tmp_path: Path, save: Any) -> None:
    rng = np.random.default_rng(1)
    for block in range(20):
        drift = 10 * math.exp(rng.normal(0, 0.3))
        save(block=block, **noisy(rng, drift))
        save(block=block, replica=1, **noisy(rng, drift))
    comparison = compare(load([tmp_path / "run"]))
    (group,) = comparison.groups
    found = only(group, "again")["throughput"]
    assert found.ratio == pytest.approx(1, abs=0.003)
    assert found.blocks == 20
    assert judged(found).name == "equivalent"
    assert "bare metal against itself (A/A): throughput 1.00" in as_markdown(comparison)
    rows = [row for row in json.loads(as_json(comparison))["rows"] if row["kind"] == "again"]
    assert [(row["metric"], row["verdict"]) for row in rows[:2]] == [
        ("throughput", "equivalent"),
        ("elapsed", "equivalent"),
    ]
    assert (noise := group.of_target("bare-metal")["throughput"].noise)
    assert noise.method == "a/a"
    assert "against itself (A/A)" in write_report(load([tmp_path / "run"]), tmp_path / "r.html").read_text()


def test_one_block_of_a_a_is_undecided_and_a_second_trial_that_failed_gives_none(tmp_path: Path, save: Any) -> None:
    save()
    save(replica=1, throughput_per_s=11.0)
    (group,) = compare(load([tmp_path / "run"])).groups
    again = only(group, "again")["throughput"]
    assert judged(again).withheld == ("at least 5 blocks are needed",)
    assert again.interval is None
    save("other")
    save("other", replica=1, failed="no")
    assert compare(load([tmp_path / "other"])).of_kind("again") == {}
