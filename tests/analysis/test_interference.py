"""Victims beside aggressors, ablations, warm-up trials and A/A: what is held against what, and is in no own number."""

import itertools
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
from analysis.compare.results import ComparedJob, Comparison, Contrast, Measured
from analysis.figures.drawing import printed_range
from analysis.figures.plots import pictures
from analysis.report.answers.answer import answer
from analysis.report.document import more_options
from analysis.report.elements import line
from analysis.report.tables import interference_lines, interference_table, jobs_with_aggressors
from analysis.report.waterfall import explanation_document
from suite.errors import RequestError
from suite.job.sharing import Sharing
from suite.records.environment import Environment
from suite.records.record import Aggression, AggressorInstance, Steps
from suite.records.usage import CacheUse, Conditions, Resources, Usage
from tests.analysis.conftest import (
    WITHIN_2,
    Save,
    as_markdown,
    bench_compare,
    edited,
    explained_by,
    json_of,
    judged,
    known,
    only,
    printed,
)

SHARING = Sharing(aggressors=("alexnet", "disk"))
LEFT = {("bare-metal", "alexnet"): 0.6, ("bare-metal", "disk"): 0.9, ("vm", "alexnet"): 0.8, ("vm", "disk"): 0.95}
"""What a victim keeps of its throughput, by target and aggressor."""


def beside(before_per_s: float, beside_per_s: float) -> AggressorInstance:
    aggression = Aggression(
        unit="bytes",
        begun_s=-1.0,
        ended_s=1e6,
        heard_s=[-1.0, 1e6],
        steps=[0, 9],
        work=[0.0, 9.0],
        before_per_s=before_per_s,
        beside_per_s=beside_per_s,
    )
    return AggressorInstance(environment=Environment(), aggression=aggression)


def victim(
    save: Save, target: str, aggressor: str | None, speed: float, block: int, other_cpu_s: float = 0.0, **changes: Any
) -> None:
    steps = [0.001] * 98 + [1.0 / speed, 2.0 / speed]
    save(
        scenario="shared",
        sharing=SHARING,
        target=target,
        aggressor=aggressor,
        aggressors=[beside(10.0, 5.0) if aggressor else AggressorInstance(environment=Environment())],
        block=block,
        throughput_per_s=speed,
        elapsed_s=200 / speed,
        steps=Steps(elapsed_s=steps, data_s=[0.0] * 100, compute_s=steps),
        resources=Resources(serving=Usage(cpu_s=100 / speed**0.5), cache=_cache(target, speed)),
        conditions=Conditions(interval_s=10.0, steal_s=0.4 if aggressor else 0.2, other_cpu_s=other_cpu_s),
        trial_id=f"{target}-{aggressor}-{block}-{changes.get('replica', 0)}-{changes.get('model', '')}",
        **changes,
    )


def _cache(target: str, speed: float) -> CacheUse:
    """A host that counts what it can tell of bare metal alone."""
    if target != "bare-metal":
        return CacheUse(absent="not supported")
    return CacheUse(cpus=[0], llc_loads=10**9, llc_load_misses=round(10**8 / speed**2))


def sweep(save: Save, blocks: int = 8, **changes: Any) -> None:
    """On a host that drifts from block to block, and whose virtual machines are at half the speed."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        drift = math.exp(rng.normal(0, 0.3))
        for target, speed in (("bare-metal", 10.0), ("vm", 5.0)):
            noise = [math.exp(rng.normal(0, 0.003)) for _ in range(3)]
            victim(save, target, None, speed * drift * noise[0], block, **changes)
            for aggressor, one in zip(("alexnet", "disk"), noise[1:], strict=True):
                victim(save, target, aggressor, speed * drift * one * LEFT[target, aggressor], block, **changes)


def found(comparison: Comparison) -> dict[tuple[str, str], Measured]:
    return {(arm.target, arm.aggressor): measured for arm, measured in comparison.of_kind("aggressor").items()}


def ranked(comparison: Comparison) -> list[Contrast]:
    return [one for one in comparison.contrasts if one.kind == "isolation"]


def test_neither_misses_nor_an_aggressor_that_are_zero_in_some_blocks_are_left_out_in_silence(save: Save) -> None:
    def halted(record: dict[str, Any]) -> None:
        record["aggressors"][0]["aggression"]["beside_per_s"] = 0.0
        record["resources"]["cache"]["llc_load_misses"] = 0

    sweep(save)
    for block in range(4):
        edited(save.path / f"run/trials/bare-metal-disk-{block}-0-.json", halted)
    comparison = save.compare()
    effects = found(comparison)
    assert "llc-misses" not in effects["bare-metal", "disk"]
    assert "llc-misses" in effects["bare-metal", "alexnet"]
    throughput = effects["bare-metal", "disk"]["throughput"]
    assert "llc_load_misses is zero in some trials, which have no ratio" in throughput.notes
    kept = {(one.target, one.arm.aggressor): one.ratio for one in comparison.contrasts if one.kind == "kept"}
    assert kept["bare-metal", "disk"] == pytest.approx(0.25)


def test_a_victim_is_held_against_the_same_target_alone_and_targets_are_ranked_by_what_it_keeps(save: Save) -> None:
    sweep(save)
    comparison = save.compare()
    effects = found(comparison)
    assert set(effects) == set(LEFT)
    for (target, aggressor), share in LEFT.items():
        ratios = {name: one.ratio for name, one in effects[target, aggressor].items()}
        # The host counts misses for bare metal alone: what was not counted is absent.
        misses = {"llc-misses": 1 / share**2} if target == "bare-metal" else {}
        times = {"elapsed": 1 / share, "step-p99": 1 / share, "cpu-time": 1 / share**0.5}
        assert ratios == pytest.approx({"throughput": share, **times, **misses}, rel=0.02)
        assert judged(effects[target, aggressor]["throughput"]).name == "slower"
    # What is beside an aggressor is in no number of the targets, which are ranked by what victims keep.
    (group,) = comparison.groups
    assert [summary.ok for summary in group.targets] == [8, 8]
    assert group.of_target("vm")["throughput"].ratio == pytest.approx(0.5, rel=0.01)
    of_vm = {(one.kind, one.arm.aggressor): one for one in comparison.contrasts if one.target == "vm"}
    assert of_vm["kept", "disk"].ratio == pytest.approx(0.5), "the aggressor's own loss stands beside"
    assert [of_vm["steal", side].value for side in ("", "disk")] == pytest.approx([0.01, 0.02])
    first, second = ranked(comparison)
    assert (first.target, second.target) == ("vm", "bare-metal")
    assert first.ratio == pytest.approx(math.sqrt(0.8 * 0.95), rel=0.01)
    assert (len(first.members), first.blocks) == (2, 8)
    for block in range(8):
        victim(save, "bare-metal", "cpu", 0.1, block)
    comparison = save.compare()
    assert ("bare-metal", "cpu") in found(comparison)
    assert {len(one.members) for one in ranked(comparison)} == {2}, "what all targets were measured beside"


def test_what_disturbs_a_victim_alone_withholds_the_verdicts_of_its_target(save: Save) -> None:
    for block in range(8):
        for target, alone_s in (("bare-metal", 9.0), ("vm", 0.0)):
            victim(save, target, None, 10.0, block, other_cpu_s=alone_s)
            victim(save, target, "alexnet", 6.0 + block % 2 * 0.01, block, other_cpu_s=9.0)
    comparison = save.compare()
    verdicts = {target: judged(one["throughput"]) for (target, _), one in found(comparison).items()}
    verdicts |= {f"{one.target}, ranked": judged(one) for one in ranked(comparison)}
    assert {name: verdict.name for name, verdict in verdicts.items()} == {
        "bare-metal": None,
        "vm": "slower",
        "bare-metal, ranked": None,
        "vm, ranked": "slower",
    }
    for name in ("bare-metal", "bare-metal, ranked"):
        assert [why for why in verdicts[name].withheld if why.endswith("in 8 of 8 trials on bare-metal alone)")]


def test_the_noise_floor_is_of_the_same_target_alone_twice(tmp_path: Path, save: Save) -> None:
    sweep(save)
    before = known(found(save.compare())["vm", "disk"]["throughput"].noise)
    assert before.method == "across-blocks"
    for block, path in enumerate(sorted((tmp_path / "run" / "trials").glob("vm-None-*.json"))):
        speed = json.loads(path.read_bytes())["throughput_per_s"]
        victim(save, "vm", None, speed * (1.01 if block % 2 else 0.99), block, replica=1)
    after = known(found(save.compare())["vm", "disk"]["throughput"].noise)
    assert after.method == "a/a"
    assert after.share < before.share


def test_an_ablation_has_an_interference_of_its_own(tmp_path: Path, save: Save) -> None:
    sweep(save)
    for path in list((tmp_path / "run" / "trials").glob("vm-*")):
        record = json.loads(path.read_bytes())
        if record["aggressor"] != "disk":
            switched = record | {"trial_id": f"switched-{record['trial_id']}", "ablation": "pinning"}
            path.with_name(f"{switched['trial_id']}.json").write_text(json.dumps(switched, indent=1))
    comparison = save.compare()
    assert {arm[2:5] for arm in comparison.of_kind("aggressor") if arm.ablation} == {("vm", "pinning", "alexnet")}
    (switched,) = comparison.of_kind("ablation").values()
    assert switched["throughput"].ratio == pytest.approx(1.0)
    assert {len(one.members) for one in ranked(comparison)} == {2}


def test_a_failed_trial_is_told_with_its_aggressor_and_enters_nothing(save: Save) -> None:
    sweep(save, blocks=2)
    beside_disk = {"scenario": "shared", "sharing": SHARING, "target": "vm", "aggressor": "disk"}
    save(**beside_disk, block=2, failed="the aggressor disk: killed")
    comparison = save.compare()
    (told,) = (one.message for one in comparison.warnings if one.kind == "failed-trials")
    assert "trials on vm, beside disk failed" in told
    assert found(comparison)["vm", "disk"]["throughput"].blocks == 2


def test_instances_of_unlike_size_are_no_warning_where_each_is_held_against_itself(tmp_path: Path, save: Save) -> None:
    sweep(save, blocks=2, capability="AVX2")
    for path in (tmp_path / "run" / "trials").glob("vm-*"):
        edited(path, lambda record: record["environment"]["target"].update(threads=1))
    comparison = save.compare()
    assert [warning.kind for warning in comparison.warnings if "compar" in warning.kind] == []
    assert set(found(comparison)) == set(LEFT)


def test_the_matrix_the_ranking_and_the_papers_words_stand_in_every_form(save: Save) -> None:
    sweep(save, profile="paper")
    comparison = save.compare()
    (job,) = jobs_with_aggressors(comparison)
    laid = interference_table(comparison, job)
    assert [head.text for head in laid.columns] == ["bare-metal", "vm"]
    rows = {head.text: dict(zip(laid.columns, map(line, cells), strict=True)) for head, cells in laid.rows}
    metrics = ("throughput", "elapsed", "step-p99", "cpu-time", "llc-misses")
    assert list(rows) == [
        *(
            f"resnet50 beside {aggressor}: {what}"
            for aggressor in ("alexnet", "disk")
            for what in (*metrics, "the aggressor's speed over that before", "steal alone / beside")
        ),
        *(f"resnet50 alone: noise floor of {metric}" for metric in metrics),
    ]
    bare, vm = laid.columns
    assert rows["resnet50 beside disk: steal alone / beside"][vm] == "1.00 % / 2.00 %"
    assert rows["resnet50 beside disk: the aggressor's speed over that before"][vm].startswith("0.500x")
    misses = rows["resnet50 beside disk: llc-misses"]
    assert (misses[bare][:3], misses[vm]) == ("1.2", "-")
    first, *_, last = interference_lines(comparison, job)
    assert first.startswith("isolation, by ratio (mean over 2 victim-aggressor pairs): vm 0.8")
    assert "AlexNet takes over 30 % longer at batch 512" in last
    for form in (as_markdown(comparison), save.page()):
        assert "resnet50 beside disk: step-p99" in form
        assert "isolation, by ratio" in form
        assert "bare metal degrades most; a virtual machine degrades least" in form


def test_figure_10_and_the_heat_map_are_drawn(save: Save) -> None:
    sweep(save, profile="paper")
    sweep(save, model="alexnet-small", profile="paper")
    comparison = save.compare()
    charts = {f"{one.stem}.png": one.drawing.chart for one in pictures(comparison, comparison.jobs[0], {})}
    others = {f"shared-{name}.png" for name in ("throughput", "forest", "interference", "trials")}
    assert charts.keys() == {"figure-10-shared-elapsed.png", *others}
    for name, marked in (("figure-10-shared-elapsed.png", True), ("shared-throughput.png", False)):
        labels = [text.get_text() for legend in charts[name].legends for text in legend.get_texts()]
        assert any("Lin, Pai and Chou 2018," in one for one in labels) == marked, "no mark that is not drawn"


def test_figure_10_shows_the_time_that_is_added_as_the_paper_does(save: Save) -> None:
    for block, (aggressor, speed) in itertools.product(range(5), ((None, 10.0), ("alexnet", 10.0 / 1.69))):
        victim(save, "bare-metal", aggressor, speed, block, model="alexnet", profile="paper")
    comparison = save.compare()
    (drawing,) = (one.drawing for one in pictures(comparison, comparison.jobs[0], {}) if one.drawing.number == 10)
    (axes,) = drawing.chart.axes
    assert [text.get_text() for text in axes.texts if "%" in text.get_text()] == ["69 %"]
    (box,) = (patch for patch in axes.patches if patch.get_linestyle() == ":")
    assert box.get_window_extent().y1 > axes.get_window_extent().y1, "over 30 % has no upper end"
    assert axes.get_ylabel() == "elapsed added, %"


@pytest.mark.parametrize(
    ("model", "target", "metric", "ends"),
    [
        ("alexnet", "vm", "elapsed", (1.3, math.inf)),
        ("alexnet-small", "vm", "elapsed", (-math.inf, 1.1)),
        ("alexnet-small", "container", "elapsed", (-math.inf, 1.1)),
        ("resnet50", "vm", "elapsed", (-math.inf, 1.2)),
        ("alexnet-small", "bare-metal", "elapsed", (math.nan, math.nan)),
        ("alexnet", "vm", "throughput", (math.nan, math.nan)),
    ],
)
def test_ranges_are_as_the_papers_text_has_them(
    model: str, target: str, metric: str, ends: tuple[float, float]
) -> None:
    job = ComparedJob("shared", "synthetic", "paper", "reference", "")
    assert printed_range(job, model, target, metric, "alexnet") == pytest.approx(ends, nan_ok=True)
    assert all(map(math.isnan, printed_range(job, model, target, metric, "disk")))


def test_a_victim_is_held_against_its_own_target_alone(save: Save) -> None:
    digests = {None: "ab" * 32, "disk": "cd" * 32}  # bare metal alone has more threads, and so other sums
    for block, target, aggressor in itertools.product(range(2), ("bare-metal", "vm"), digests):
        own = digests[aggressor] if target == "bare-metal" else digests["disk"]
        victim(save, target, aggressor, 10.0, block, weights_sha256=own)
    found = save.compare()
    assert answer(found).facts[-1].startswith("Beside bare-metal, or for victims the target alone, ")
    (group,) = found.groups
    kinds = {work.arm: (work.kind, work.trials) for work in group.same_work}
    assert kinds == {"bare-metal-beside-disk": ("other", 2), "vm-beside-disk": ("weights", 2)}, "no target with another"


def switched_by(count: int, block: int) -> dict[str, Any]:
    return {"details": {"measured_usage": {"voluntary_switches": 7, "involuntary_switches": count + block}}}


def test_what_a_neighbour_changes_is_explained_by_switches_alone_and_beside_on_each_target(save: Save) -> None:
    for block in range(6):
        for target, threads, count in (("bare-metal", 2, 4000), ("vm", 1, 120)):
            victim(save, target, None, 10.0, block, threads=threads, **switched_by(100, block))
            victim(save, target, "disk", 6.0, block, threads=threads, **switched_by(count, block))
    explained = save.explain()
    assert explained.explanations == (), "bare metal alone has more CPUs"
    counted = {(one.target, row.name): row for one in explained.victims for row in one.numbers}
    switches = counted["bare-metal", "involuntary switches"]
    assert (switches.baseline, switches.target, switches.difference) == (102.5, 4002.5, 3900)
    assert (counted["vm", "involuntary switches"].difference, counted["vm", "voluntary switches"].difference) == (20, 0)
    assert counted["vm", "elapsed s"].target == pytest.approx(200 / 6)
    assert ("vm", "migrations") not in counted
    shown = printed(explanation_document(explained), 100)
    assert "Nothing to explain" not in shown
    assert "resnet50 next to disk, and alone" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "bare-metal: involuntary switches 102 4002 +3900 +3900 to +3900 6" in rows
    assert "resnet50 next to disk, and alone" in save.page()
    told = json.loads(bench_compare(save.path / "run", "--explain", "--json", "--force").stdout)
    assert [one["target"] for one in told["victims"]] == ["bare-metal", "vm"]
    comparison = save.compare()
    effects = comparison.of_kind("aggressor")
    grown = {arm.target: measured["involuntary-switches"].ratio for arm, measured in effects.items()}
    assert grown == pytest.approx({"bare-metal": 39.0, "vm": 1.2}, rel=0.01)
    assert more_options(comparison, "full", costs=True) == "; more: --explain"


def noisy(rng: np.random.Generator, speed: float) -> dict[str, float]:
    found = speed * math.exp(rng.normal(0, 0.002))
    return {"throughput_per_s": found, "elapsed_s": 200 / found}


def switched_blocks(save: Any, blocks: int = 8, **switched: Any) -> None:
    """Blocks of bare metal and a container at 0.9 of it; and the container without seccomp at 0.95."""
    rng = np.random.default_rng(0)
    for block in range(blocks):
        drift = math.exp(rng.normal(0, 0.3))
        save(block=block, **noisy(rng, 10 * drift))
        save(block=block, target="container", **noisy(rng, 9 * drift))
        save(block=block, target="container", ablation="seccomp", **noisy(rng, 9.5 * drift), **switched)


def test_warm_up_trials_are_in_nothing_and_their_number_is_told_once(save: Save) -> None:
    switched_blocks(save)
    before = save.compare()
    for block in range(2):
        save(block=block, warm_up=True, throughput_per_s=0.01)
        save(block=block, warm_up=True, target="container", failed="in a warm-up")
    records = save.load()
    after = compare(records)
    assert after.groups == before.groups
    assert after.warnings == ()
    assert (before.warmup_trials, after.warmup_trials) == (0, 4)
    assert json_of(after)["warmup_trials"] == 4
    assert as_markdown(after).count("4 warm-up trials left out") == 1
    assert explained_by(records).explanations[0].blocks == 8
    assert {change.samples for change in regress(records, records).changes} == {(8, 8)}
    assert save.page().count("4 warm-up trials left out") == 1


def test_a_run_that_is_still_warming_up_has_nothing_to_compare_and_says_so(tmp_path: Path, save: Save) -> None:
    save(warm_up=True)
    with pytest.raises(RequestError, match="1 warm-up trials and no other") as told:
        save.load()
    assert f"bench run --continue {tmp_path / 'run'};" in str(told.value.remedy)


def test_sequential_stopping_counts_neither_warm_up_blocks_nor_switched_trials(save: Save) -> None:
    switched_blocks(save, 12)
    for block in range(12):
        save(block=block, warm_up=True, throughput_per_s=1.0 + block)
    decision = should_stop_run(save.load(), WITHIN_2, max_blocks=13)
    assert (decision.stop, decision.at_least) == (False, 1)
    for block in range(12):
        save(block=block, target="container", ablation="network", failed="no")
    assert should_stop_run(save.load(), WITHIN_2, max_blocks=13) == decision


def test_a_switch_is_held_against_its_own_target_and_never_mixed_into_it(save: Save) -> None:
    switched_blocks(save)
    comparison = save.compare()
    (group,) = comparison.groups
    assert [(summary.target, summary.ok) for summary in group.targets] == [("bare-metal", 8), ("container", 8)]
    assert group.of_target("container")["throughput"].ratio == pytest.approx(0.9, rel=0.01)
    (said,) = (line for line in answer(comparison).facts if line.startswith("Switched"))
    assert re.fullmatch(r"Switched in the same blocks: container, seccomp off: resnet50 5\.\d+ % faster\.", said)
    ((arm, switched),) = comparison.of_kind("ablation").items()
    assert (arm.target, arm.ablation) == ("container", "seccomp")
    assert set(switched) == {"throughput", "elapsed", "opening", "step-tail"}
    assert (switched["throughput"].ratio, switched["throughput"].blocks) == pytest.approx((9.5 / 9, 8), rel=0.01)
    assert {judged(switched[name]).name for name in ("throughput", "elapsed")} == {"faster"}
    assert "| container, seccomp off | 1.05" in as_markdown(comparison)
    page = save.page()
    assert "switched in the same blocks, over the same target as it is" in page
    assert "switched in the same blocks: container, seccomp off: throughput 1.05" in page, "beside the waterfall"


def test_the_answer_counts_the_models_that_it_does_not_name(save: Save) -> None:
    for model in ("resnet50", "alexnet", "inception_v3", "gan", "vae"):
        switched_blocks(partial(save, model=model))
    (sentence,) = (line for line in answer(save.compare()).facts if line.startswith("Switched"))
    assert sentence.count("faster") == 3
    assert sentence.endswith("faster and 2 more.")


def test_only_what_was_switched_may_differ(save: Save) -> None:
    for block in range(2):
        save(block=block)
        save(block=block, ablation="isa", capability="default")
        save(block=block, ablation="huge-pages", capability="default")
    records = save.load()
    refused, forced = compare(records), compare(records, force=True)
    assert [arm.ablation for arm in refused.of_kind("ablation")] == ["isa"]
    (found,) = refused.warnings
    difference = "CPU capability default against AVX2"
    what = "bare-metal, huge pages on is not comparable with the same target as it is, so no ratio is formed"
    assert (found.kind, found.message.endswith(f"{what}: {difference}")) == ("incomparable", True)
    notes = {one.arm.ablation: one.notes for one in forced.contrasts if one.kind == "ablation"}
    assert notes == {"huge-pages": (f"forced: {difference}",), "isa": ()}


def test_a_switch_of_a_newer_suite_and_one_without_its_target_are_no_error(save: Save) -> None:
    save()
    save(ablation="turbo")
    save(target="vm", ablation="disk-cache", substitutes=["accelerator:tcg"])
    save(target="container", ablation="seccomp", failed="no profile")
    comparison = save.compare()
    assert [(arm.target, arm.ablation) for arm in comparison.of_kind("ablation")] == [("bare-metal", "turbo")]
    (found,) = comparison.warnings
    assert found.kind == "failed-trials"
    assert "1 of 1 trials on container, seccomp off failed" in found.message
    assert "bare-metal, turbo switched" in as_markdown(comparison), "one that is not installed here"


def test_one_block_of_a_a_is_undecided_and_a_second_trial_that_failed_gives_none(save: Save) -> None:
    save()
    save(replica=1, throughput_per_s=11.0)
    (group,) = save.compare().groups
    again = only(group, "again")["throughput"]
    assert judged(again).withheld == ("at least 5 blocks are needed",)
    assert again.interval is None
    save("other")
    save("other", replica=1, failed="no")
    assert save.compare("other").of_kind("again") == {}
