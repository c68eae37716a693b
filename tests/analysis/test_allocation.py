"""Allocation: what CPUs by stage gain at equal CPU time, from forged records of known serial shares."""

import json
import math
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from analysis.compare.allocation import best_plan, log_ratios, stage_seconds
from analysis.compare.comparison import compare
from analysis.compare.contrast_kinds import ALLOCATION_BLOCKS
from analysis.compare.published import judge_claims
from analysis.compare.results import Comparison, Contrast
from analysis.load.records import load
from analysis.statistics.ratios import locate
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.job.envelope import GIB, Envelope
from suite.job.profiles import Sizes
from suite.records.record import Steps
from tests.analysis.conftest import Save, bench_compare, known, timeline

STEPS = 25
SHARES = (1.0, 0.5, 0.1, 0.8, 0.0)
"""The serial share of each stage of a progressive GAN of 16 px: Amdahl's law, with one second for a step on one CPU."""
STEPS_OF_STAGES = [4, 5, 5, 5, 6]
"""Step i of n is of stage floor(5 (i + 1) / n), and the last one of the last stage."""
WORKED = np.array([[1.0, 1.0, 1.0], [1.0, 0.75, 0.5], [1.0, 0.625, 0.25]])
"""Seconds on 1, 2 and 4 CPUs, of a stage that is serial, one in between, and one that is parallel."""


def forge(save: Save, shares: Any = SHARES, model: str = "progressive-gan", noise: float = 0.0, **changes: Any) -> Path:
    """Save a sweep of cells with 1 and 2 CPUs: eight blocks, whose steps take what Amdahl's law gives the stages."""
    rng = np.random.default_rng(1)
    for cpus, block in product((1, 2), range(8)):
        weather = 1 + 0.1 * math.sin(block)
        by_stage = [weather * (share + (1 - share) / cpus) * math.exp(rng.normal(0, noise)) for share in shares]
        steps_s = np.repeat(by_stage, STEPS_OF_STAGES if len(shares) > 1 else STEPS).tolist()
        values = {
            "envelope": Envelope(cpus=tuple(range(cpus)), memory_bytes=2 * GIB, threads=cpus),
            "sizes": Sizes(batch=2, image_px=16, warmup_steps=1, steps=STEPS),
            "steps": Steps(elapsed_s=steps_s, data_s=[0.0] * STEPS, compute_s=steps_s),
            "timeline": timeline(sum(steps_s), 50.0),
            "throughput_per_s": 2 * STEPS / sum(steps_s),
            "elapsed_s": 50.0,
        }
        save(f"sweep/{model}-{cpus}", block=block, model=model, **values | changes)
    (save.path / "sweep/sweep.json").write_text("{}")
    return save.path / "sweep"


def judged(sweep: Path) -> Comparison:
    return judge_claims(compare(load(sorted(path.parent for path in sweep.glob("*/trials")))))


def gain_of(comparison: Comparison) -> Contrast:
    (gain,) = (one for one in comparison.contrasts if one.kind == "allocation" and one.members)
    return gain


def bench_allocation(sweep: Path, *words: str) -> Result:
    return bench_compare(*sorted(sweep.glob("progressive*")), "--force", "--allocation", *words, columns=200)


def by_brute_force(seconds: Any, cpus: Any) -> Any:
    """Return the largest ratio of all plans, over the fastest mixture of any two numbers with their CPU time."""
    fixed = seconds.sum(axis=1)
    found = []
    for plan in product(range(len(cpus)), repeat=seconds.shape[1]):
        staged = [seconds[level, stage] for stage, level in enumerate(plan)]
        spent = sum(cpus[level] * time for level, time in zip(plan, staged, strict=True))
        times = []
        for few, many in combinations(range(len(cpus)), 2):
            least, most = cpus[few] * fixed[few], cpus[many] * fixed[many]
            if least <= spent <= most:
                part = (spent - least) / (most - least)
                times.append((1 - part) * fixed[few] + part * fixed[many])
        found.append(min(times) / sum(staged))
    return max(found)


def test_the_best_plan_is_that_of_every_plan_there_is() -> None:
    cpus = np.array([1, 2, 4])
    plan, ratio = best_plan(WORKED, cpus)
    # By hand: 1 + 0.75 + 0.25 s take 1 + 1.5 + 1 CPU-seconds. Fixed, 1 CPU takes 3 s for 3, and 2 take 2.25 s for 4.5.
    assert cpus[plan].tolist() == [1, 2, 4]
    assert ratio == pytest.approx((3 - 0.75 / 3) / 2)
    for seed in range(20):
        shares = np.random.default_rng(seed).uniform(0.05, 1, size=5)
        seconds = np.array([shares + (1 - shares) / number for number in cpus])
        assert best_plan(seconds, cpus)[1] == pytest.approx(by_brute_force(seconds, cpus)), seed


def test_steps_are_of_the_stage_that_the_workload_trained_in_them() -> None:
    assert list(stage_seconds([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "progressive-gan", 16)) == [1, 2, 7, 5, 13]
    assert list(stage_seconds([1.0, 2.0], "dcgan", 16)) == list(stage_seconds([1.0, 2.0], "mine", math.nan)) == [3]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_known_serial_shares_give_the_known_optimum(save: Save, noise: float) -> None:
    comparison = judged(forge(save, noise=noise))
    gain = gain_of(comparison)
    by_cpus = np.array([[share + (1 - share) / cpus for share in SHARES] for cpus in (1, 2)])
    largest = by_brute_force(by_cpus * STEPS_OF_STAGES, [1, 2])
    low, high = known(gain.interval)
    assert gain.ratio == pytest.approx(largest, rel=noise + 1e-9)
    assert low - 1e-9 <= largest <= high + 1e-9
    assert (gain.members, gain.verdict and gain.verdict.name) == (("1", "1", "2", "1", "2"), "faster")
    stages = {one.arm.cell: one for one in comparison.contrasts if one.kind == "allocation" and one.arm.cell}
    assert len(stages) == 2 * 6
    assert stages["stage=5", "cpus=2"].ratio == pytest.approx(0.5, rel=2 * noise + 1e-9)
    claims = {row.claim.paper.split()[1]: row.verdict for row in comparison.claims if "resource" in row.claim.paper}
    assert claims == {"R1": "undecided", "R2": "confirmed in part", "R3": "not testable", "R5": "contradicted"}


def test_stages_without_a_step_have_no_cpus_and_leave_no_verdict_on_the_whole(save: Save) -> None:
    # Two steps are of stages 3 and 5, which gain most of all; nothing is known of the three others.
    for cpus, block in product((1, 2), range(8)):
        steps_s = [1.0, 1.0 / cpus]
        save(
            f"sweep/cell-{cpus}",
            block=block,
            model="progressive-gan",
            envelope=Envelope(cpus=tuple(range(cpus)), memory_bytes=2 * GIB, threads=cpus),
            sizes=Sizes(batch=2, image_px=16, warmup_steps=1, steps=2),
            steps=Steps(elapsed_s=steps_s, data_s=[0.0] * 2, compute_s=steps_s),
            timeline=timeline(sum(steps_s), 50.0),
            throughput_per_s=4 / sum(steps_s),
            elapsed_s=50.0,
        )
    (save.path / "sweep/sweep.json").write_text("{}")
    comparison = judged(save.path / "sweep")
    gain = gain_of(comparison)
    assert gain.members == ("-", "-", "1", "-", "2")
    assert gain.verdict == replace(known(gain.verdict), name=None, withheld=("3 of 5 stages had no step",))
    verdicts = {row.claim.paper[-2:]: row.verdict for row in comparison.claims if row.evidence}
    assert verdicts["R5"] == "undecided"
    told = bench_compare(*sorted((save.path / "sweep").glob("cell*")), "--force", "--allocation", columns=200).stdout
    assert "no verdict: 3 of 5 stages had no step" in told


@pytest.mark.parametrize(("model", "shares", "noise"), [("dcgan", [0.4], 0.05), ("progressive-gan", [0.4] * 5, 0.02)])
def test_stages_that_scale_alike_gain_nothing(save: Save, model: str, shares: list[float], noise: float) -> None:
    gain = gain_of(comparison := judged(forge(save, shares, model, noise)))
    low, high = gain.interval or (0.0, 0.0)
    assert low <= 1 <= high
    if model == "dcgan":
        assert (gain.ratio, gain.verdict and gain.verdict.name) == (1, "equivalent")
        verdicts = {row.claim.paper[-2:]: row.verdict for row in comparison.claims if row.claim.kind == "allocation"}
        assert verdicts == {"R1": "contradicted", "R2": "contradicted", "R5": "undecided"}


def test_the_interval_of_stages_that_scale_alike_contains_1_in_some_95_of_100_sweeps() -> None:
    rng, cpus = np.random.default_rng(0), np.array([1, 2])
    covered = 0
    for _ in range(400):
        noise = rng.normal(0, 0.02, (8, 2, 7)) + rng.normal(0, 0.01, (8, 2, 1))
        _, logs = log_ratios(np.array([[1.0], [0.7]]) * np.exp(noise), cpus)
        low, high = ((place := locate(logs)) and place.interval) or (0.0, 0.0)
        covered += low <= 0 <= high
    assert covered / 400 > 0.92


def test_the_command_shows_the_gain_and_the_stages_in_every_form(save: Save) -> None:
    sweep = forge(save, profile="smoke")

    def run(*words: str) -> str:
        result = bench_allocation(sweep, *words)
        assert result.exit_code == 0, result.output
        return result.stdout

    for form in ([], ["--markdown"]):
        shown = run(*form, "--claims")
        for words in ("1, 1, 2, 1, 2", "smoke run: not a measurement", "resource-aware-gan R5"):
            assert words in shown
    (gain,) = (row for row in json.loads(run("--json"))["rows"] if row["kind"] == "allocation" and row["members"])
    assert (gain["verdict"], gain["withheld"]) == (None, ["smoke run: not a measurement"])


@pytest.mark.parametrize("same", [{"envelope": Envelope(cpus=(0,), memory_bytes=GIB, threads=1)}, {"steps": None}])
def test_cells_with_equal_cpus_or_without_steps_are_refused(save: Save, same: dict[str, Any]) -> None:
    result = bench_allocation(forge(save, **same))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no two cells of a sweep differ only in cpus" in result.stderr
    assert "bench sweep run allocation" in result.stderr


def test_the_least_blocks_of_an_allocation_leave_enough_to_judge_the_plan() -> None:
    for blocks, judging in ((ALLOCATION_BLOCKS, LEAST_BLOCKS), (ALLOCATION_BLOCKS - 1, LEAST_BLOCKS - 1)):
        _, logs = log_ratios(np.ones((blocks, 2, 1)), np.array([1, 2]))
        assert len(logs) == judging
