"""Scaling: which jobs are put together, and what is known of them; and what further instances add."""

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.compare.comparison import compare
from analysis.compare.results import Comparison
from analysis.compare.scaling import amdahl, karp_flatt
from analysis.figures.plots import pictures
from analysis.load.records import Records, load
from analysis.report.document import document
from analysis.report.formatting import notes_of
from analysis.report.sweeps.scaling import scaling_document
from suite.job.distributed import SHARED_CPUS, DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.job.profiles import Sizes
from suite.records.environment import Environment
from suite.records.record import MetricValue, Rank, Steps
from suite.records.usage import Conditions
from tests.analysis.conftest import Save, as_markdown, bench_compare, json_of, judged, known, printed

NOISE = (-0.01, 0.0, 0.0, 0.01)
"""The logarithm of each block's speed over that of the whole."""
FEW = "at least 5 blocks are needed"
STRONG, WEAK = {1: 32, 2: 16, 4: 8}, dict.fromkeys((1, 2, 4), 32)
"""The batch of a rank by the number of workers."""


def steps_of(count: int) -> Steps:
    """Steps of which a quarter is communication."""
    seconds = {"elapsed_s": 4.0, "data_s": 0.0, "compute_s": 3.0, "communicate_s": 1.0}
    columns: dict[str, Any] = {name: [value] * count for name, value in seconds.items()}
    return Steps(**columns, losses={"generator": [0.5] * count})


def job(
    save: Save,
    workers: int,
    speed: float,
    *,
    batch: int = 32,
    cpus: int | None = None,
    strategy: Any = "all-reduce",
    rate: str = "1gbit",
    steps: int = 3,
    blocks: Sequence[int] = range(len(NOISE)),
    night: str = "",
    **changes: Any,
) -> None:
    """Four blocks of so many workers with a CPU and 1 GiB each, of whose time a quarter is communication."""
    spans = {"measured_s": 12.0, "data_s": 0.0, "compute_s": 9.0, "communicate_s": 3.0, "sent_bytes": 0}
    rank: dict[str, Any] = {"role": "worker", "address": "a", "interface": "lo", "environment": Environment(), **spans}
    own = tuple(range(cpus or workers))
    lab = LabSpec(nodes=max(2, workers), rate=rate)
    values = {
        "scenario": "distributed",
        "model": "dcgan",
        "distributed": DistributedJob(strategy=strategy, workers=workers, servers=0, network="host", lab=lab),
        "envelope": Envelope(cpus=own, memory_bytes=workers * GIB, threads=len(own)),
        "sizes": Sizes(batch=batch, image_px=32, warmup_steps=1, steps=steps),
        "ranks": [Rank(rank=number, throughput_per_s=speed / workers, **rank) for number in range(workers)],
        "steps": steps_of(steps),
        **changes,
    }
    run = f"{night}{workers}-{batch}-{cpus or ''}{changes.get('target', '')}{strategy}{steps}"
    for block in blocks:
        save(run, block=block, throughput_per_s=speed * math.exp(NOISE[block % len(NOISE)]), **values)


def rows_of(comparison: Comparison, *kinds: str) -> list[Any]:
    """Return the kind, the fields of the arm and of its division, and what was measured."""
    return [
        SimpleNamespace(kind=kind, **arm._asdict(), **arm.division._asdict(), values=found, notes=notes_of(found))
        for kind in kinds
        for arm, found in comparison.of_kind(kind).items()
        if arm.division
    ]


def everything(save: Save) -> Records:
    return load([*save.path.iterdir()])


def scalings(save: Save) -> list[Any]:
    return rows_of(compare(everything(save)), "strong", "weak")


def values(rows: list[Any], name: str) -> list[float | None]:
    found = [row.values.get(name) for row in rows]
    return [one and (one.ratio if one.value is None else one.value) for one in found]


def test_the_serial_share_and_the_fit_to_it_are_those_of_amdahls_law() -> None:
    factors = [2.0, 4.0, 8.0]
    exact = [1 / (0.2 + 0.8 / factor) for factor in factors]
    assert [karp_flatt(*pair) for pair in zip(exact, factors, strict=True)] == pytest.approx([0.2] * 3)
    assert amdahl(exact, factors) == pytest.approx(0.2)
    # The paper of Karp and Flatt, Table 2: speed-up 1.95 on 2 processors, (0.5128 - 0.5) / 0.5.
    assert karp_flatt(1.95, 2) == pytest.approx(0.0256, abs=1e-4)


@pytest.fixture
def strong(save: Save) -> Save:
    for workers, speed in {1: 100.0, 2: 160.0, 4: 200.0}.items():
        job(save, workers, speed, batch=STRONG[workers])
    return save


def test_one_global_batch_is_strong_scaling(strong: Save) -> None:
    rows = scalings(strong)
    of = [(row.kind, row.workers, row.batch, row.global_batch) for row in rows]
    assert of == [("strong", 1, 32, 32), ("strong", 2, 16, 32), ("strong", 4, 8, 32)]
    expected = {"speed-up": (1.6, 2), "efficiency": (0.8, 0.5), "serial share": (0.25, 1 / 3)}
    for name, shares in expected.items():
        assert values(rows, name) == [None, *map(pytest.approx, shares)]
    assert values(rows, "throughput") == pytest.approx([100, 160, 200])
    # By hand: (1/2 (1/1.6 - 1/2) + 3/4 (1/2 - 1/4)) / (1/4 + 9/16) = (0.0625 + 0.1875) / 0.8125.
    assert values(rows, "fitted serial share") == [None, None, pytest.approx(0.25 / 0.8125)]
    assert values(rows, "communicating") == [0.25] * 3
    assert rows[1].losses == (("generator", 0.5),)
    assert {row.job.variant for row in rows} == {rows[0].job.variant}
    for row in rows[1:]:
        for name in expected:
            low, high = row.values[name].interval or (0.0, 0.0)
            assert low < (values([row], name)[0] or 0.0) < high
    # Welch: two samples of variance 2e-4 / 3, four blocks each, six degrees of freedom.
    half = 2.4469 * math.sqrt(2 * 2e-4 / 3 / 4)
    assert rows[1].values["speed-up"].interval == pytest.approx((1.6 * math.exp(-half), 1.6 * math.exp(half)), rel=1e-4)
    low, high = rows[2].values["fitted serial share"].interval or (0.0, 0.0)
    assert low < 0.25 / 0.8125 < high


def test_a_figure_is_drawn_of_five_blocks_and_of_no_fewer(save: Save) -> None:
    for blocks, expected in ((range(4), set[str]()), (range(4, 5), {"Strong scaling of dcgan"})):
        for workers, speed in {1: 100.0, 2: 160.0, 4: 200.0}.items():
            job(save, workers, speed, batch=STRONG[workers], blocks=blocks)
        comparison = compare(everything(save))
        drawn = {one.stem: one.caption for one in pictures(comparison, comparison.jobs[0], {})}
        assert {caption for name, caption in drawn.items() if name.endswith("dcgan-strong-scaling")} == expected


def test_every_renderer_shows_it(tmp_path: Path, strong: Save) -> None:
    records = everything(strong)
    comparison = compare(records)
    efficiencies = [row for row in json_of(comparison)["rows"] if row["metric"] == "efficiency"]
    assert [(row["workers"], row["value"]) for row in efficiencies][1:] == [(4, pytest.approx(0.5))]
    table = as_markdown(comparison)
    assert "dcgan: strong scaling" in table
    assert "| bare-metal, 2 workers | 16 / 32 | 160 (158 to 162) | 1.60 (" in table
    assert table.count(f"- {FEW}\n") == 1, "once below the table, for all rows"
    assert "dcgan: strong scaling" in strong.page(*(run.name for run in records.directories))
    shown = printed(scaling_document(comparison))
    assert ("80 % (7" in shown, "Nothing to compare" in shown) == (True, False)
    (alone, *_) = tmp_path.glob("*-*-*")
    assert "Nothing scales" in bench_compare(alone, "--scaling", "--force").output


@pytest.mark.parametrize(("nights", "known_spread"), [(1, False), (3, True)])
def test_several_runs_of_a_number_of_workers_show_how_runs_differ(save: Save, nights: int, known_spread: bool) -> None:
    for workers, speed in {1: 100.0, 2: 160.0}.items():
        for night, level in zip(range(nights), (1.0, 1.05, 0.96), strict=False):
            job(save, workers, speed * level, batch=STRONG[workers], night=f"night{night}-")
    found = compare(everything(save))
    _, second = rows_of(found, "strong")
    speed_up = second.values["speed-up"]
    low, high = known(speed_up.interval)
    assert (speed_up.runs, speed_up.spread is not None) == ((nights, nights), known_spread)
    assert (high / low > 1.15) == known_spread
    assert ("spread-unknown" in [one.kind for one in found.warnings]) != known_spread


def test_one_batch_of_a_rank_is_weak_scaling_which_has_no_serial_share(save: Save) -> None:
    for workers, speed in {1: 100.0, 2: 180.0, 4: 320.0}.items():
        job(save, workers, speed, batch=WEAK[workers])
    rows = scalings(save)
    of = [(row.kind, row.workers, row.global_batch) for row in rows]
    assert of == [("weak", 1, 32), ("weak", 2, 64), ("weak", 4, 128)]
    assert values(rows, "efficiency") == [None, pytest.approx(0.9), pytest.approx(0.8)]
    assert not any("serial share" in name for row in rows for name in row.values)


def test_a_job_may_be_the_smallest_of_both_and_what_is_neither_is_not_put_together(save: Save) -> None:
    job(save, 1, 100.0, batch=32)
    job(save, 2, 160.0, batch=24)
    assert scalings(save) == []
    job(save, 2, 160.0, batch=16)
    job(save, 2, 180.0, batch=32)
    of = [(row.kind, row.workers, row.batch) for row in scalings(save)]
    assert of == [("strong", 1, 32), ("strong", 2, 16), ("weak", 1, 32), ("weak", 2, 32)]


@pytest.mark.parametrize(
    "other",
    [
        {"cpus": 4},  # two for each instance
        {"profile": "paper"},
        {"userland": "b" * 64},
        {"target": "container"},
        {"model": "gan"},
        {"rate": "10gbit"},
    ],
)
def test_jobs_that_differ_in_anything_else_are_not_put_together(save: Save, other: Any) -> None:
    job(save, 1, 100.0)
    job(save, 2, 160.0, batch=16, **other)
    assert scalings(save) == []


def test_instances_that_share_cpus_have_no_efficiency_and_the_reason(save: Save) -> None:
    job(save, 1, 100.0)
    job(save, 2, 90.0, batch=16, cpus=1, substitutes=[SHARED_CPUS])
    first, second = scalings(save)
    assert [*first.notes, *second.notes] == [FEW, SHARED_CPUS, "efficiency withheld: instances share CPUs", FEW]
    assert {*second.values} == {"throughput", "speed-up", "communicating"}
    table = as_markdown(compare(everything(save)))
    assert "| bare-metal, 2 workers | 16 / 32 | 90.0" in table
    for why in (SHARED_CPUS, "efficiency withheld: instances share CPUs"):
        assert f"- bare-metal, 2 workers: {why}\n" in table


def test_a_single_block_has_no_interval_and_disturbed_trials_are_named(save: Save) -> None:
    busy = Conditions(interval_s=20.0, other_cpu_s=20.0)
    job(save, 1, 100.0, blocks=(0,))
    job(save, 2, 160.0, batch=16, blocks=(0,), conditions=busy)
    first, second = scalings(save)
    assert values([first, second], "speed-up") == [None, pytest.approx(160 / 100)]
    assert (second.values["speed-up"].interval, first.notes) == (None, (FEW,))
    why = "the CPUs were busy with other work (over 10 % of the CPU time in 1 of 1 trials with 2 workers)"
    assert second.notes == (FEW, why)


def learned(save: Save, workers: int, distance: float, **changes: Any) -> None:
    """Six seeds, whose images are about so far from the real ones."""
    for block, noise in enumerate((-0.02, -0.01, 0.0, 0.0, 0.01, 0.02)):
        metrics = {"own-frechet": MetricValue(value=distance * math.exp(noise), unit="", better="less")}
        job(save, workers, 100.0, metrics=metrics, blocks=(block,), seed=block, **changes)


def test_ways_to_divide_the_work_are_compared_by_their_images_at_an_equal_number_seen(save: Save) -> None:
    """All see 128 images, warm-up included. What sees more, as two workers with as many steps do, is left out."""
    learned(save, 1, 10.0)
    learned(save, 2, 10.1, batch=16)
    learned(save, 2, 13.0, steps=1)
    learned(save, 2, 9.0)
    learned(save, 2, 7.0, strategy="split")
    comparison = compare(everything(save), margin=0.05)
    rows = rows_of(comparison, "division")
    assert [(row.workers, row.strategy, row.batch, row.global_batch, row.images_seen) for row in rows] == [
        (1, "all-reduce", 32, 32, 128),
        (2, "all-reduce", 16, 32, 128),
        (2, "all-reduce", 32, 64, 128),
        (2, "split", 32, 32, 128),
    ]
    found = [row.values["own-frechet"] for row in rows]
    assert [one.value for one in found] == pytest.approx([10, 10.1, 13, 7])
    assert [one.ratio for one in found] == [None, *map(pytest.approx, (1.01, 1.3, 0.7))]
    assert [one.verdict and one.verdict.name for one in found] == [None, "equivalent", "slower", "faster"]
    assert {(row.losses, row.job) for row in rows} == {((("generator", 0.5),), rows[0].job)}
    table = as_markdown(comparison)
    assert "| bare-metal, 2 workers, all-reduce | 32 / 64 | 128 / 2 | 13.0; 1.300x (1.2" in table
    assert [f", {word} |" in table for word in ("worse", "better")] == [True, True]
    last = json_of(comparison)["rows"][-1]
    assert (last["strategy"], last["metric"], last["ratio"]) == ("split", "own-frechet", pytest.approx(0.7))
    assert "dcgan: quality of the images" in printed(scaling_document(comparison))


@pytest.mark.parametrize("seeds", [(0,) * 4, (0, 1, 2, 3, 0, 1)])
def test_fewer_than_five_seeds_decide_nothing_about_images_however_many_trials(
    save: Save, seeds: tuple[int, ...]
) -> None:
    for workers in (1, 2):
        for block, seed in enumerate(seeds):
            metrics = {
                "own-frechet": MetricValue(value=10.0 * workers + block, unit="", better="less"),
                "time-to-quality": MetricValue(value=10.0, unit="s", better="less"),
            }
            job(save, workers, 100.0, batch=STRONG[workers], metrics=metrics, blocks=(block,), seed=seed)
    _, second = rows_of(compare(everything(save)), "division")
    assert {*second.values} == {"own-frechet"}, "times are no quality of images"
    verdict = judged(second.values["own-frechet"])
    assert (verdict.name, verdict.withheld) == (None, (FEW,))


def opened(save: Save, target: str, block: int, number: int, run: str, failed: int = 0) -> None:
    """Ready after 0.1 s and 0.05 s for each instance, 1 % more in every block; 10 MB together and 3 MB for each."""
    ready = (0.1 + 0.05 * number) * (1 + 0.01 * block) * (2 if target == "container" else 1)
    values = {"ready-median": (ready, "s"), "memory-per-instance": (10 / number + 3, "MB")}
    metrics = {name: MetricValue(value=value, unit=unit, better="less") for name, (value, unit) in values.items()}
    metrics["failed-instances"] = MetricValue(value=failed, unit="", better="less", compared="difference")
    model = f"{number}-instance{'s' * (number > 1)}"
    save(run, scenario="startup", model=model, target=target, block=block, metrics=metrics, sizes=None, steps=None)


def test_the_slope_of_each_block_is_found_and_a_failure_is_told(save: Save) -> None:
    for block in range(6):
        for target in ("bare-metal", "container"):
            for number in (1, 5, 20):
                opened(save, target, block, number, "r", failed=2 if (target, number) == ("container", 20) else 0)
    comparison = save.compare("r")
    slopes = {(row["target"], row["metric"]): row for row in json_of(comparison)["rows"] if row["kind"] == "growth"}
    mean = 1 + 0.01 * 2.5
    assert slopes["bare-metal", "ready-median"]["value"] == pytest.approx(0.05 * mean)
    assert slopes["container", "ready-median"]["value"] == pytest.approx(0.10 * mean)
    assert slopes["container", "memory-per-instance"]["value"] == pytest.approx(3)
    text = " ".join(printed(document(comparison)).split())
    assert "each further instance of bare-metal: 0.0513 s (0.0503 to 0.0522), 3.00 MB (3.00 to 3.00)" in text, text
    assert "12.0 of 120 instances did not open" in text
    assert "startup-together" in [one.stem for one in pictures(comparison, comparison.jobs[0], {})]


def test_the_blocks_of_two_runs_have_slopes_of_their_own(save: Save) -> None:
    for run in ("first", "second"):
        for block in range(3):
            for number in (1, 5):
                opened(save, "bare-metal", block, number, run)
    rows = json_of(save.compare("first", "second"))["rows"]
    (slope,) = [row for row in rows if (row["kind"], row["metric"]) == ("growth", "ready-median")]
    assert slope["value"] == pytest.approx(0.05 * 1.01)
    assert {row["trials"] for row in rows if (row["kind"], row["metric"]) == ("together", "ready-median")} == {6}


def test_without_bare_metal_the_command_with_it_has_the_numbers(save: Save) -> None:
    for number in (1, 5):
        opened(save, "vm", 0, number, "r")
    assert "--instances 1,5" in as_markdown(save.compare("r"))


def test_one_number_of_instances_has_no_slope(save: Save) -> None:
    for block in range(3):
        opened(save, "bare-metal", block, 5, "r")
        opened(save, "container", block, 5, "r")
    shown = as_markdown(save.compare("r"))
    assert ("opened together" in shown, "each further" in shown) == (True, False)
