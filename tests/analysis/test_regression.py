import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.compare.matching import other_hosts
from analysis.compare.regression import FAILED, Change, Outcome, Regression, regress
from analysis.load.records import load
from analysis.report.gate import answer, gate_document
from analysis.statistics.tails import Mean
from analysis.statistics.two_samples import mean_shift
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB
from suite.job.lab import LabSpec
from suite.records.environment import Environment, Environments
from suite.records.usage import Conditions
from tests.analysis.conftest import Save, judged, known, measured, printed, probe


def runs(save: Save, fail_above: float | None = 0.05, *, open_ended: bool = False) -> Regression:
    return regress(save.load("old"), save.load("new"), fail_above, open_ended=open_ended)


def make(save: Save, run: str, speed: float, blocks: int = 8, seed: int = 0, noise: float = 0.005, **more: Any) -> None:
    rng = np.random.default_rng(seed)
    for block in range(blocks):
        now = speed * math.exp(rng.normal(0, noise))
        save(run, block=block, **{"throughput_per_s": now, "elapsed_s": 100 / now} | more)


def the(found: Regression, metric: str = "throughput", *, kind: str = "run", target: str = "vm") -> Change:
    wanted = (metric, kind, target)
    (one,) = (change for change in found.changes if (change.metric.name, change.kind, change.target) == wanted)
    return one


def test_a_run_that_became_slower_by_more_than_the_bound_is_slower(tmp_path: Path, save: Save) -> None:
    make(save, "old", 10.0, target="vm")
    make(save, "new", 9.0, seed=1, target="vm")
    found = runs(save)
    change = the(found)
    outcomes = (found.outcome, found.exit_code, change.outcome, the(found, "elapsed").outcome)
    assert outcomes == ("slower", 3, "slower", "slower")
    low, high = known(change.interval)
    assert low < 0.9 < high
    assert change.ratio == pytest.approx(0.9, abs=0.01)
    assert change.slower == pytest.approx(1 - known(change.ratio))
    told = answer(found)
    assert (str(told.rows[0])[:35], told.rows[0].word) == ("resnet50 on vm, throughput: 0.900x ", "slower")
    assert told.why.startswith("beyond the bound of 5 %")
    assert str(told.next) == f"bench compare {tmp_path}/new --explain  # where the time goes"


@pytest.mark.parametrize("speed", [9.9, 10.0, 12.0])
def test_a_change_within_the_bound_or_for_the_better_is_not_slower(save: Save, speed: float) -> None:
    make(save, "old", 10.0, target="vm")
    make(save, "new", speed, seed=1, target="vm")
    found = runs(save)
    assert (found.exit_code, {found.outcome, *(row.word for row in answer(found).rows)}) == (0, {"not slower"})
    assert answer(found).why.startswith("within the bound of 5 %")


def test_a_wide_interval_cannot_tell_and_says_what_it_could_have_seen_and_what_it_takes(save: Save) -> None:
    make(save, "old", 10.0, 6, noise=0.3)
    make(save, "new", 9.5, 6, seed=1, noise=0.3)
    found = runs(save)
    change = the(found, target="bare-metal")
    assert (found.outcome, found.exit_code, change.outcome) == ("cannot tell", 4, "cannot tell")
    verdict = judged(change)
    assert (known(verdict.detectable) > 0.2, known(verdict.more_blocks) > 5) == (True, True)
    shown = printed(gate_document(found))
    assert "6 against 6 blocks could have shown a slowdown of " in shown
    assert f"{verdict.more_blocks} more blocks in each run would decide" in shown


@pytest.mark.parametrize("blocks", [5, 8, 20])
def test_one_noisy_block_is_not_slower(save: Save, blocks: int) -> None:
    make(save, "old", 10.0, blocks)
    make(save, "new", 10.0, blocks, seed=1)
    save("new", block=2, throughput_per_s=3.0, elapsed_s=33.0)
    assert runs(save).outcome in ("not slower", "cannot tell")


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_fewer_than_five_blocks_cannot_tell_however_clear_they_look(save: Save, blocks: int) -> None:
    make(save, "old", 10.0, 9)
    make(save, "new", 5.0, blocks, seed=1)
    found = runs(save, open_ended=True)
    assert found.outcome == "cannot tell"
    assert (judged(the(found, target="bare-metal")).more_blocks or 0) >= 5 - blocks
    assert answer(found).why.startswith("at least 5 blocks are needed")


@pytest.mark.parametrize(("speed", "outcome"), [(0.746, "slower"), (0.755, "not slower")])
def test_per_cent_are_those_of_the_answer(save: Save, speed: float, outcome: Outcome) -> None:
    make(save, "old", 10.0, noise=0.0005)
    make(save, "new", 10.0 * speed, seed=1, noise=0.0005, elapsed_s=10.0)
    change = the(runs(save, 0.25), target="bare-metal")
    assert change.outcome == outcome
    assert change.slower == pytest.approx(1 - speed, abs=0.001)


@pytest.mark.parametrize(("disturbed", "outcome"), [(8, "cannot tell"), (2, "cannot tell"), (1, "slower")])
def test_disturbed_trials_cannot_tell_and_are_named(save: Save, disturbed: int, outcome: Outcome) -> None:
    make(save, "old", 10.0)
    make(save, "new", 7.0, seed=1)
    for block in range(disturbed):
        save("new", block=block, **measured(7.0), conditions=Conditions(interval_s=20.0, other_cpu_s=20.0))
    found = runs(save)
    change = the(found, target="bare-metal")
    assert (change.outcome, judged(change).more_blocks) == (outcome, None)
    if outcome == "cannot tell":
        load_of_others = "the CPUs were busy with other work (over 10 % of the CPU time"
        reason = f"{load_of_others} in {disturbed} of 8 trials of the new run)"
        assert (judged(change).withheld, reason in answer(found).why, found.exit_code) == ((reason,), True, 4)


@pytest.mark.parametrize(("others_s", "outcome"), [(7.0, "slower"), (12.0, "cannot tell")])
def test_beside_other_work_a_run_is_slower_only_by_more_than_that_work_can_delay_it(
    save: Save, others_s: float, outcome: Outcome
) -> None:
    for run, speed, seed in (("old", 10.0, 0), ("new", 5.0, 1)):
        busy = Conditions(interval_s=100 / speed, other_cpu_s=others_s)
        make(save, run, speed, seed=seed, conditions=busy)
    found = runs(save)
    elapsed = the(found, "elapsed", target="bare-metal")
    assert (elapsed.outcome, elapsed.beside_load) == (outcome, outcome == "slower")
    assert found.outcome == outcome
    # Its span is not known to hold the CPU time that others took.
    assert the(found, target="bare-metal").outcome == "cannot tell"
    assert ("took too little CPU time to explain it" in answer(found).why) == (outcome == "slower")
    steal = Conditions(interval_s=20.0, steal_s=others_s, thermal_throttles=3)
    make(save, "new", 5.0, seed=1, conditions=steal)
    assert the(runs(save), "elapsed", target="bare-metal").outcome == "cannot tell", "heat delays by any time"


def test_a_probes_number_that_is_called_elapsed_is_not_the_time_of_its_job(save: Save) -> None:
    for run, seconds in (("old", 10.0), ("new", 20.0)):
        busy = Conditions(interval_s=seconds, other_cpu_s=7.0)
        for block in range(8):
            number = seconds * (1 + 0.001 * block)
            save(run, block=block, **probe("disk", elapsed=(number, "s", "less")), conditions=busy, elapsed_s=number)
    change = the(runs(save), "elapsed", target="bare-metal")
    assert (change.outcome, change.beside_load) == ("cannot tell", False)


def test_slow_trials_that_trimming_leaves_out_cannot_tell(save: Save) -> None:
    make(save, "old", 10.0, 5)
    make(save, "new", 10.0, 5, seed=1)
    save("new", block=2, throughput_per_s=10 / 60, elapsed_s=600.0)
    found = runs(save)
    assert {change.outcome for change in found.changes if change.outcome} == {"cannot tell"}
    assert "with slow trials the mean may be" in answer(found).why


def test_the_profile_that_only_proves_the_path_cannot_tell(save: Save) -> None:
    make(save, "old", 10.0, profile="smoke")
    make(save, "new", 5.0, seed=1, profile="smoke")
    found = runs(save)
    told = (found.outcome, answer(found).why, answer(found).next)
    assert told == ("cannot tell", "smoke run: not a measurement", None)


def test_a_cell_has_one_number_in_a_comparison_and_in_the_gate(save: Save) -> None:
    make(save, "old", 10.0, 7, noise=0.1)
    make(save, "new", 10.0, 7, seed=1, noise=0.1)
    change = the(runs(save), target="bare-metal")
    for run, value in (("old", change.old), ("new", change.value)):
        (group,) = save.compare(run).groups
        assert group.of_target("bare-metal")["throughput"].value == pytest.approx(value)


def test_a_host_that_became_slower_as_a_whole_leaves_the_ratio_to_bare_metal(save: Save) -> None:
    for run, speed, seed in (("old", 10.0, 0), ("new", 8.0, 2)):
        make(save, run, speed, seed=seed)
        make(save, run, speed * 0.9, seed=seed + 1, target="vm")
    found = runs(save)
    relative = the(found, kind="run-relative")
    assert (the(found).outcome, relative.outcome) == ("slower", None)
    assert relative.ratio == pytest.approx(1, abs=0.02)
    unbound = runs(save, None)
    assert (unbound.outcome, unbound.exit_code) == (None, 0)


def test_runs_without_any_variation_are_shifted_by_the_ratio_of_their_means() -> None:
    assert mean_shift([math.log(10)] * 3, [math.log(8)] * 4) == Mean(math.log(8) - math.log(10), 0, 0, 6)


def test_opening_times_are_shown_and_fail_nothing_and_what_differs_between_the_runs_is_named(save: Save) -> None:
    make(save, "old", 10.0, open_s=1.0)
    make(save, "new", 10.0, open_s=9.0, capability="AVX512")
    found = runs(save)
    opening = the(found, "opening", target="bare-metal")
    assert opening.ratio == pytest.approx(9.0)
    told = (opening.outcome, opening.notes, found.outcome)
    assert told == (None, ("CPU capability AVX2 -> AVX512",), "not slower")


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("new", "no trial was finished; 1 failed: out of memory"),
        ("old", "the baseline has no finished trial; 1 failed: out of memory"),
    ],
)
def test_a_target_that_one_run_did_not_finish_is_named_and_fails(save: Save, lacks: str, why: str) -> None:
    for run in ("old", "new"):
        make(save, run, 10.0)
        save(run, target="vm", failed="out of memory" if run == lacks else None)
    found = runs(save)
    assert ([one.why for one in found.missing], found.outcome, found.exit_code) == ([why], "incomplete", 1)
    if lacks == "new":
        assert [(one.what, one.name) for one in found.missing] == [("target", "resnet50 on vm")]
        assert str(answer(found).rows[0]) == "resnet50 on vm: incomplete"
        assert f"resnet50 on vm: {why}" in answer(found).why
        assert {change.target for change in found.changes if change.metric != FAILED} == {"bare-metal"}


def test_trials_that_are_missing_are_counted_with_their_blocks(save: Save) -> None:
    make(save, "old", 10.0, 8)
    make(save, "new", 10.0, 6, seed=1)
    save("new", block=3, failed="killed")
    found = runs(save)
    (missing,) = found.missing
    assert (missing.what, found.outcome) == ("trials", "incomplete")
    assert missing.why == "2 of 8 trials are missing (block 6, 7); 1 failed: killed"
    assert runs(save, open_ended=True).missing == (), "a stop rule has ended it after block 5, and what failed is there"


def with_failures(save: Save, run: str, failed: int, blocks: int, seed: int = 0) -> None:
    make(save, run, 10.0, blocks, seed=seed)
    for block in range(failed):
        save(run, block=block, failed="time-out")


@pytest.mark.parametrize(
    ("old", "new", "blocks", "outcome", "code"),
    [
        (0, 6, 12, "fails more", 3),
        (0, 1, 12, "cannot tell", 4),
        (0, 1, 150, "not slower", 0),
        (1, 1, 12, "not slower", 0),
        (3, 0, 12, "not slower", 0),
        (0, 0, 12, "not slower", 0),
    ],
)
def test_failed_trials_of_the_new_run_are_a_finding_and_none_is_good_news(
    save: Save, old: int, new: int, blocks: int, outcome: str, code: int
) -> None:
    with_failures(save, "old", old, blocks)
    with_failures(save, "new", new, blocks, seed=1)
    found = runs(save)
    assert (found.outcome, found.exit_code, found.missing) == (outcome, code, ())
    rows = {row.subject: row for row in answer(found).rows}
    shown = rows.get("resnet50 on bare-metal, failed-trials")
    assert (shown is not None) == bool(old + new)
    if shown:
        assert shown.word == outcome
        assert shown.failed.startswith(f"{new or 'none'} of {blocks} failed (")
        assert f"{old or 'none'} of {blocks} before, p = " in shown.failed
    if code:
        assert next(iter(rows)) == "resnet50 on bare-metal, failed-trials", "the first line has the share"
        assert the(found, target="bare-metal").outcome == "cannot tell", "what failed may have been slow"
        assert str(answer(found).next).endswith("each failure in full")


def test_a_row_is_not_called_slower_than_old_trials_of_which_a_quarter_failed(save: Save) -> None:
    with_failures(save, "old", 3, 12)
    make(save, "new", 8.0, 12, seed=1)
    change = the(runs(save), target="bare-metal")
    assert (change.outcome, change.left_open_by_failures) == ("cannot tell", True)


def test_ablations_and_aggressors_are_rows_of_their_own(save: Save) -> None:
    for run, speed in (("old", 10.0), ("new", 5.0)):
        make(save, run, 10.0, seed=int(speed), target="container")
        make(save, run, speed, seed=int(speed) + 1, target="container", ablation="seccomp")
    found = runs(save)
    outcomes = {change.arm.ablation: change.outcome for change in found.changes if change.metric.name == "throughput"}
    assert outcomes == {"": "not slower", "seccomp": "slower"}
    assert answer(found).rows[0].subject == "resnet50 on container (ablation seccomp), throughput"


def test_the_two_trials_of_an_a_a_block_are_one_sample(save: Save) -> None:
    for run in ("old", "new"):
        make(save, run, 10.0)
        make(save, run, 10.0, replica=1, seed=3)
    assert the(runs(save), target="bare-metal").samples == (8, 8)


def test_the_interval_is_the_one_of_scipy(save: Save) -> None:
    make(save, "old", 10.0, 4)
    make(save, "new", 9.0, 3, seed=5)
    samples = [np.log(save.load(run).trials["throughput_per_s"].to_numpy(dtype=float)) for run in ("new", "old")]
    expected = stats.ttest_ind(*samples, equal_var=False).confidence_interval(0.95)
    interval = known(the(runs(save), target="bare-metal").interval)
    assert np.log(interval) == pytest.approx([expected.low, expected.high])


def test_a_cell_that_one_sweep_lacks_is_named_with_its_settings(tmp_path: Path, save: Save) -> None:
    for run, engines in (("old", ("podman", "runc")), ("new", ("runc",))):
        for engine, target in itertools.product(engines, ("bare-metal", "container")):
            make(save, f"{run}-{engine}", 10.0, 6, target=target, engine=engine, image=f"{run} image")
    old, new = (load(sorted(tmp_path.glob(f"{run}-*"))) for run in ("old", "new"))
    found = regress(old, new, 0.05)
    (missing,) = found.missing  # another image is what the comparison is about
    assert (missing.what, found.outcome) == ("cell", "incomplete")
    assert (missing.name[:21], missing.name[-16:]) == ("resnet50 (synthetic, ", ", engine=podman)")
    assert missing.why == "no trial was finished on bare-metal, container"
    assert {change.job.variant for change in found.changes} == {"engine=runc"}


def test_another_engine_or_setting_is_another_cell(save: Save) -> None:
    distributed = DistributedJob(strategy="all-reduce", workers=2, servers=0, network="host", lab=LabSpec(nodes=2))
    save("old", scenario="distributed", distributed=distributed)
    save("new", scenario="distributed", distributed=distributed.model_copy(update={"network": "overlay"}))
    found = runs(save)
    assert (found.changes, found.outcome) == ((), "incomplete")
    assert [one.name[-15:] for one in found.missing] == [", network=host)"]
    assert found.added == ("resnet50 on bare-metal (network=overlay)",)


def host(name: str, cpu_model: str, cpus: int = 2) -> dict[str, Any]:
    place = Environment(hostname=name, cpu_model=cpu_model, cpus=list(range(cpus)), memory_bytes=8 * GIB)
    inside = Environment(userland_sha256="a" * 64, torch_cpu_capability="AVX2", cpu_model=cpu_model)
    return {"environment": Environments(host=place, target=inside)}


@pytest.mark.parametrize(
    ("new", "same"), [(("a", "Xeon"), True), (("b", "Xeon"), False), (("a", "EPYC"), False), (("a", "Xeon", 4), False)]
)
def test_other_hosts_are_told_with_their_cpu_models(save: Save, new: Any, same: bool) -> None:
    save("old", **host("a", "Xeon"))
    save("new", **host(*new))
    found = other_hosts(save.load("old").trials, save.load("new").trials)
    assert found == "" if same else f"a (Xeon, 2 CPUs, 8 GiB) and {new[0]} ({new[1]}, " in found
