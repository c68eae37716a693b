"""Values of a key against each other: where blocks are shared, where they are not, and machines among others."""

import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.compare.by import compare_by, settings_of
from analysis.compare.comparison import compare
from analysis.compare.results import Comparison, Contrast
from analysis.figures.plots import draw
from analysis.load.records import load
from analysis.report.markdown import markdown
from analysis.report.sweeps.by import by_document, slow_machines
from suite.errors import RequestError
from suite.job.datasets import Dataset
from suite.job.envelope import Envelope
from suite.job.profiles import Sizes
from suite.records.environment import Environment, Environments
from suite.records.record import MetricValue
from suite.request.request import RunRequest
from tests.analysis.conftest import Save, bench_compare, judged, known, measured, probe
from tests.jobs import plan_of

FACTS = {"userland_sha256": "a" * 64, "torch_cpu_capability": "AVX2", "cpu_model": "a CPU"}


def on(host: str, machine: str | None = None, **changes: Any) -> dict[str, Any]:
    """Fields of a record of a host, and of the machine of an inventory."""
    facts = FACTS | changes
    target = Environment(**facts, machine=machine)
    return {"environment": Environments(host=Environment(hostname=host, **facts), target=target)}


def noisy(rng: np.random.Generator, speed: float, share: float = 0.005) -> dict[str, Any]:
    return measured(speed * math.exp(share * rng.normal()))


def ratios(found: Comparison, metric: str = "throughput", kind: str = "by") -> Mapping[tuple[str, ...], Contrast]:
    """The contrasts of one metric on one target, by the values of the keys."""
    rows = [one for one in found.contrasts if (one.kind, one.metric.name) == (kind, metric)]
    assert len({one.target for one in rows}) == 1
    return {one.arm.cell: one for one in rows}


def names(contrast: Contrast) -> str | None:
    return contrast.verdict.name if contrast.verdict else None


def test_hosts_of_two_runs_are_rows_of_their_own_unless_they_are_pooled(tmp_path: Path, save: Save) -> None:
    for host in ("a", "b"):
        for block, run in product(range(3), (host, f"sweep/{host}")):
            save(run, block=block, **on(host), **measured(10))
    (tmp_path / "sweep/sweep.json").write_text("{}")
    assert [group.job.variant for group in compare(save.load("a", "b")).groups] == ["host=a", "host=b"]
    pool = save.load("sweep/a", "sweep/b")
    assert [group.job.variant for group in compare(pool).groups] == [""], "the machines of a sweep are equal"
    shown = bench_compare(tmp_path / "a", tmp_path / "b", "--json")
    assert {row["variant"] for row in json.loads(shown.stdout)["rows"]} == {"host=a", "host=b"}
    pooled = bench_compare(tmp_path / "a", tmp_path / "b", "--json", "--pool", "host")
    assert {(row["variant"], row["trials"]) for row in json.loads(pooled.stdout)["rows"] if row["value"]} == {("", 6)}


def test_a_host_of_half_the_speed_is_slower_and_what_else_differs_is_named(save: Save) -> None:
    rng = np.random.default_rng(1)
    for host, speed, changes in (("a", 10.0, {}), ("b", 5.0, {"kernel": "6.18", "cpu_model": "another"})):
        place = on(host, **{"kernel": "6.1", **changes})
        for block in range(8):
            for target, cost in (("bare-metal", 1.0), ("container", 0.9)):
                save(host, block=block, target=target, **place, **noisy(rng, speed * cost))
            copied = probe("memory", copy=(speed * math.exp(0.001 * rng.normal()), "GiB/s", "more"))
            save(host, block=block, **place, **copied)
    found = compare_by(save.load("a", "b"), ("host",))
    rows = [one for one in found.contrasts if one.metric.name == "throughput" and one.arm.cell == ("host=b",)]
    assert [(one.target, names(one)) for one in rows] == [("bare-metal", "slower"), ("container", "slower")]
    for one in rows:
        assert one.ratio == pytest.approx(0.5, rel=0.02)
        assert one.base == ("host=a",)
        assert "kernel 6.1 -> 6.18" in one.notes
    text = markdown(by_document(found))
    assert "CPU model a CPU -> another" in text
    assert "probes: memory copy 0.5" in text
    assert "overhead" not in text


def test_two_hosts_are_refused_by_the_gate_and_answered_by_host(tmp_path: Path, save: Save) -> None:
    for host, speed in (("a", 10.0), ("b", 5.0)):
        for block in range(5):
            save(host, block=block, **on(host), **measured(speed + 0.01 * block))
    refused = bench_compare(tmp_path / "a", tmp_path / "b", "--fail-above", "5%")
    assert refused.exit_code == 2
    assert "--by host" in refused.output
    shown = bench_compare(tmp_path / "a", tmp_path / "b", "--by", "host", "--markdown")
    assert shown.exit_code == 0, shown.output
    assert "host=b | 0.501x host=a (" in shown.stdout


def test_cells_of_a_sweep_are_paired_by_block_and_cells_of_two_are_not(tmp_path: Path, save: Save) -> None:
    rng = np.random.default_rng(2)
    weather = np.exp(0.2 * rng.normal(size=8))
    for sweep, factor in (("s", 1.0), ("other", 1.05)):
        for cell, batch in (("small", 2), ("large", 4)):
            speed = 10 * factor * (1.1 if batch == 4 else 1.0)
            sizes = Sizes(batch=batch, image_px=32, warmup_steps=1, steps=3)
            for block in range(8):
                save(f"{sweep}/{cell}", block=block, sizes=sizes, **noisy(rng, speed * weather[block]))
    for sweep in ("s", "other"):
        (tmp_path / sweep / "sweep.json").write_text("{}")
    together = compare_by(save.load("s/small", "s/large"), ("batch",))
    apart = compare_by(save.load("s/small", "other/large"), ("batch",))
    paired, independent = (ratios(found)["batch=4",] for found in (together, apart))
    assert (names(paired), names(independent)) == ("faster", "undecided")
    (low, high), (lowest, highest) = (known(one.interval) for one in (paired, independent))
    assert high / low < 1.02 < highest / lowest
    turned = ratios(compare_by(save.load("s/small", "s/large"), ("batch",), ("4",)))["batch=2",]
    assert turned.ratio == pytest.approx(1 / known(paired.ratio))


@pytest.mark.parametrize("seed", range(10))
def test_the_same_machine_under_two_names_is_never_slower(save: Save, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in ("one", "two"):
        for block in range(8):
            save(name, block=block, **on("a", name), **noisy(rng, 10, 0.01))
    found = compare_by(save.load("one", "two"), ("machine",))
    assert names(ratios(found)["machine=two",]) in ("equivalent", "undecided")


@pytest.mark.parametrize("slow", ["m07", ""])
def test_of_twelve_machines_the_slow_one_is_named_alone_with_the_probe_that_shows_it(
    tmp_path: Path, save: Save, slow: str
) -> None:
    rng = np.random.default_rng(3)
    for name in (f"m{number:02}" for number in range(12)):
        for block in range(6):
            factor = 0.92 if name == slow else 1.0
            save(name, block=block, **on("a", name), **noisy(rng, 10 * factor))
            copied, sums = np.exp(0.002 * rng.normal(size=2)) * (20 * factor, 3)
            save(name, block=block, **on("a", name), **probe("memory", copy=(copied, "GiB/s", "more")))
            save(name, block=block, **on("a", name), **probe("cpu", sums=(sums, "GFLOP/s", "more")))
    directories = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    (sentence,) = slow_machines(compare_by(load(directories), ("machine",)))
    if slow:
        assert sentence.startswith("machine=m07 (by throughput on bare-metal 0.92")
        assert "the probe memory, copy on bare-metal 0.92" in sentence
        assert "cpu" not in sentence
        assert sentence.count("machine=") == 1
    else:
        assert sentence.startswith("None of 12 machines differs from the median of the others by more than 2 %")


def test_too_few_blocks_and_disturbed_trials_are_withheld_here_too(save: Save) -> None:
    for host, speed in (("a", 10.0), ("b", 5.0)):
        for block in range(4):
            save(host, block=block, **on(host), **measured(speed + 0.01 * block))
    found = compare_by(save.load("a", "b"), ("host",))
    verdict = judged(ratios(found)["host=b",])
    assert (verdict.name, verdict.withheld) == (None, ("at least 5 blocks are needed",))
    told = markdown(by_document(found))
    assert "why: at least 5 blocks are needed" in told
    assert told.count("at least 5 blocks are needed") == 1


def sets(save: Save, rng: np.random.Generator) -> None:
    """GAN and DCGAN on MNIST and CIFAR-10, in an environment each for bare metal and container."""
    epochs = {("gan", "mnist"): 12.0, ("gan", "cifar10"): 20.0, ("dcgan", "mnist"): 30.0, ("dcgan", "cifar10"): 55.0}
    for (model, data), epoch_s in epochs.items():
        sizes = Sizes(batch=2, image_px=28 if data == "mnist" else 32, warmup_steps=0, steps=3, epochs=3)
        digest = ("b" if data == "mnist" else "c") * 64
        dataset = Dataset(kind=data, digest="contents", sha256=digest, listing_sha256=digest, images=6, size_bytes=100)
        job = {"scenario": "real", "data": data, "dataset": dataset, "page_cache": "warm", "sizes": sizes}
        for block, (target, cost) in product(range(6), (("bare-metal", 1.0), ("container", 1.1))):
            value = epoch_s * cost * math.exp(0.01 * rng.normal())
            own = measured(6 / value) | {"metrics": {"epoch": MetricValue(value=value, unit="s", better="less")}}
            save(f"s/{model}-{data}", block=block, target=target, model=f"{model}-published", **job, **own)


def test_models_by_data_sets_are_a_table_and_one_picture(tmp_path: Path, save: Save) -> None:
    sets(save, np.random.default_rng(4))
    (tmp_path / "s/sweep.json").write_text("{}")
    records = load(sorted(path for path in (tmp_path / "s").iterdir() if path.is_dir()))
    assert {group.job.variant for group in compare(records).groups} == {""}, "what follows from the data"
    found = compare_by(records, ("model", "data"), ("gan-published", "mnist"))
    rows = [one for one in found.contrasts if one.metric.name == "epoch" and one.target == "container"]
    assert {one.arm.cell: round(one.ratio or 0, 1) for one in rows} == {
        ("model=gan-published", "data=mnist"): 1.0,
        ("model=gan-published", "data=cifar10"): 1.7,
        ("model=dcgan-published", "data=mnist"): 2.5,
        ("model=dcgan-published", "data=cifar10"): 4.5,
    }
    assert "| epoch | data=mnist | data=cifar10 |" in markdown(by_document(found))
    drawn = [path.name for path in draw(found, tmp_path / "plots") if "epoch" in path.name]
    assert drawn == ["by-model-data-epoch.png", "by-model-data-epoch.svg"]
    over_first = compare_by(records, ("data",))
    assert {one.base for one in over_first.contrasts} == {("data=cifar10",)}, "the first that was measured"
    assert {one.model for one in over_first.contrasts} == {"gan-published", "dcgan-published"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--by", "colour"], "--by 'colour' is unknown"),
        (["--by", "engine"], "--by engine: all records have runc"),
        (["--by", "engine"], "host (a, b)"),
        (["--by", "host", "--base", "c"], "--base 'c': no record has this host"),
        (["--base", "a"], "--base needs --by"),
        (["--by", "host", "--costs"], "--costs has no effect with --by"),
    ],
)
def test_a_key_or_a_base_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, save: Save, words: list[str], expected: str
) -> None:
    for host in ("a", "b"):
        save(host, engine="runc", **on(host), **measured(10))
    refused = bench_compare(tmp_path / "a", tmp_path / "b", *words)
    assert refused.exit_code == 2
    assert expected in refused.output.replace("\n", " ")


@pytest.mark.parametrize(("key", "values"), [("inventory", ["one.toml", "two.toml"]), ("context", ["none", "rack"])])
def test_the_inventory_and_the_context_of_a_run_are_those_of_its_plan(
    tmp_path: Path, save: Save, key: str, values: list[str]
) -> None:
    wanted: list[dict[str, object]] = [{"inventory": "one.toml"}, {"inventory": "two.toml", "context": "rack"}]
    for number, options in enumerate(wanted):
        save(f"r{number}", started_at=f"2026-01-0{number + 1}T00:00:00+00:00", **on("a"), **measured(10))
        request = RunRequest.of({"target": ("bare-metal",), **options})
        plan = plan_of(request=request, envelope=Envelope(cpus=(0,), memory_bytes=1 << 30, threads=1))
        (tmp_path / f"r{number}/plan.json").write_text(plan.model_dump_json())
    records = save.load("r0", "r1")
    assert [values for (values,) in ratios(compare_by(records, (key,)))] == [f"{key}={value}" for value in values]
    assert len(ratios(compare_by(records, ("place",)))) == 2


def test_rows_hold_the_values_and_those_of_the_base(tmp_path: Path, save: Save) -> None:
    for host in ("a", "b"):
        save(host, **on(host), **measured(10))
    shown = bench_compare(tmp_path / "a", tmp_path / "b", "--by", "place", "--json")
    _, row = (one for one in json.loads(shown.stdout)["rows"] if one["metric"] == "throughput")
    assert (row["kind"], row["values"], row["base"]) == ("by", ["place=b"], ["place=a"])
    table = bench_compare(tmp_path / "a", tmp_path / "b", "--by", "host", "--csv").stdout
    assert ",host=b,host=a,throughput," in table


def machine(name: str, machine_id: str | None) -> dict[str, Any]:
    return {"environment": Environments(host=Environment(hostname=name, machine_id=machine_id), target=Environment())}


def test_a_machine_of_an_inventory_is_its_machine_id_whatever_the_inventory_calls_it(save: Save) -> None:
    listed = (("first", "n1", "1" * 16), ("renamed", "n2", "1" * 16), ("namesake", "n2", "2" * 16))
    for number, (run, name, key) in enumerate(listed):
        place = Environment(machine=name, machine_key=key)
        changes = {"environment": Environments(host=Environment(hostname="a"), target=place)}
        save(run, started_at=f"2026-01-0{number + 1}T00:00:00+00:00", **changes)
    settings = [job["machine"] for job in settings_of(save.load("first", "renamed", "namesake").trials)]
    assert settings == ["n2 (111111)", "n2 (111111)", "n2 (222222)"]


def test_a_host_is_its_machine_id_whatever_it_is_called(save: Save) -> None:
    for run, place in (
        ("first", machine("a", "1" * 16)),
        ("renamed", machine("b", "1" * 16)),
        ("namesake", machine("b", "2" * 16)),
        ("unknown", machine("b", None)),
    ):
        save(run, started_at=f"2026-01-0{1 + (run == 'renamed')}T00:00:00+00:00", **place)
    trials = save.load("first", "renamed", "namesake", "unknown").trials
    assert list(trials["hostname"]) == ["b (111111)", "b (111111)", "b (222222)", "b (unknown)"]
    assert list(save.load("first", "renamed").trials["hostname"]) == ["b", "b"]
    assert list(save.load("first", "namesake").trials["hostname"]) == ["a", "b"]


def nights(save: Save, side: str, runs: int, spread: float, rng: np.random.Generator) -> list[str]:
    """Save runs of one host, each of 5 blocks and with a level of its own."""
    names = [f"{side}{night}" for night in range(runs)]
    for name in names:
        level = 10 * math.exp(spread * rng.normal())
        for block in range(5):
            save(name, block=block, target="container", **on(side), **noisy(rng, level, 0.002))
    return names


def test_one_run_of_each_side_says_what_its_interval_cannot_know(save: Save) -> None:
    rng = np.random.default_rng(1)
    found = compare_by(save.load(*nights(save, "a", 1, 0.0, rng), *nights(save, "b", 1, 0.0, rng)), ("host",))
    row = ratios(found)["host=b",]
    assert (row.runs, row.spread) == ((1, 1), None)
    text = markdown(by_document(found))
    assert " in these runs alone)" in text
    assert "the spread between runs is unknown" in text


def test_from_three_runs_on_the_interval_between_hosts_holds_the_spread_between_runs(save: Save) -> None:
    rng = np.random.default_rng(2)
    records = save.load(*nights(save, "a", 3, 0.03, rng), *nights(save, "b", 3, 0.03, rng))
    row = ratios(compare_by(records, ("host",)))["host=b",]
    low, high = known(row.interval)
    assert row.runs == (3, 3)
    assert known(row.spread) > 0.01
    assert high / low > 1.05, "six runs that vary by 3 % know no more"
    assert judged(row).more_blocks is None, "more blocks of the same runs do not narrow it"
    assert "runs of the same differ by" in markdown(by_document(compare_by(records, ("host",))))


def test_the_value_of_a_cell_holds_the_spread_between_its_runs(save: Save) -> None:
    rng = np.random.default_rng(2)
    records = save.load(*nights(save, "a", 3, 0.03, rng), *nights(save, "b", 3, 0.03, rng))
    for row in ratios(compare_by(records, ("host",))).values():
        low, high = known(row.value_interval)
        assert high / low > 1.05, "15 blocks of three nights are no 15 nights"


@pytest.mark.parametrize(("runs", "known_spread"), [(1, False), (3, True)])
def test_a_machine_and_the_median_of_the_others_are_compared_as_runs_are(
    save: Save, runs: int, known_spread: bool
) -> None:
    rng = np.random.default_rng(5)
    names = [name for machine in "abcd" for name in nights(save, machine, runs, 0.03, rng)]
    found = compare_by(save.load(*names), ("machine",))
    for row in ratios(found, kind="machine").values():
        low, high = known(row.interval)
        assert row.runs == (3 * runs, runs)
        assert (row.spread is not None and row.spread > 0.01) == known_spread
        assert (high / low > 1.05) == known_spread, "one night shows nothing of how nights differ"
    assert ("spread-unknown" in [one.kind for one in found.warnings]) != known_spread


def test_failed_trials_of_a_value_are_counted_and_named(save: Save) -> None:
    rng = np.random.default_rng(3)
    nights(save, "a", 1, 0.0, rng)
    nights(save, "b", 1, 0.0, rng)
    for block in range(5, 8):
        save("b0", block=block, target="container", failed="it died")
    found = compare_by(save.load("a0", "b0"), ("host",))
    assert {cell: row.failed for cell, row in ratios(found).items()} == {("host=a",): 0, ("host=b",): 3}
    assert "3 of 8 trials on container, host=b failed" in markdown(by_document(found))


def test_a_value_of_which_every_trial_failed_is_named(save: Save) -> None:
    nights(save, "a", 1, 0.0, np.random.default_rng(3))
    save("b0", target="container", failed="it died", **on("b"))
    with pytest.raises(RequestError, match="1 of 1 trials on container, host=b failed"):
        compare_by(save.load("a0", "b0"), ("host",))


def test_the_quality_of_images_is_a_table_of_its_own_in_words_for_quality(save: Save) -> None:
    for place, frechet in (("a", 20.0), ("b", 10.0)):
        for block in range(8):
            metrics = {"own-frechet": MetricValue(value=frechet + 0.01 * block, unit="", better="less")}
            save(place, block=block, metrics=metrics, **on(place), **measured(10 + 0.01 * block))
    text = markdown(by_document(compare_by(save.load("a", "b"), ("host",))))
    table = text.partition("Quality of the images")[2]
    assert "| images | own-frechet |" in table
    assert "better" in table or "0.500x" in table
    assert "faster" not in table.partition("\n\n")[0]
