"""Explanations: where the time goes, and what the probes and the collectives predict of it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.explain.explanation import Explanation, Predicted
from analysis.explain.prediction import _places
from analysis.report.elements import Notes
from analysis.report.waterfall import explanation_document, prediction_lines
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec
from suite.job.preemption import Preemption
from suite.job.profiles import Sizes
from suite.records.environment import Environment
from suite.records.fields import checked_part
from suite.records.record import MetricValue, Rank, Steps, Timeline
from tests.analysis.conftest import Save, bench_compare, edited, explained_by, known, printed, probe
from worker.spec import SERVERLESS

AROUND = ("launch", "imports", "build", "warm-up", "teardown", "exit")
IN_STEPS = ("data", "copy", "compute", "communicate")
PHASES = ("opening", *AROUND, *IN_STEPS)


def trial(rng: np.random.Generator, injured: str = "", by_s: float = 0.0) -> dict[str, Any]:
    """Fields of a record with noise everywhere, and ``by_s`` more seconds in one phase."""
    base = {name: 0.5 * float(rng.lognormal(0, 0.01)) + by_s * (name == injured) for name in PHASES}
    columns = {f"{name}_s": [base[name] / 4] * 4 for name in IN_STEPS}
    around = {f"{name.replace('-', '')}_s": base[name] for name in AROUND}
    steps_s = math.fsum(base[name] for name in IN_STEPS)
    return {
        "open_s": base["opening"],
        "elapsed_s": steps_s + 0.001 + math.fsum(around.values()),
        "timeline": Timeline(**around, measured_s=steps_s + 0.001),
        "steps": checked_part(Steps, {"elapsed_s": [steps_s / 4] * 4, **columns}),
    }


def explained(save: Save, *runs: str) -> Explanation:
    (one,) = save.explain(*runs).explanations
    return one


def test_an_injury_is_put_on_its_phase(save: Save) -> None:
    for injured in PHASES:
        rng = np.random.default_rng(1)
        for block in range(6):
            save(block=block, model=injured, **trial(rng))
            save(block=block, model=injured, target="vm", **trial(rng, injured, 1.0))
    explanations = save.explain().explanations
    assert {one.model for one in explanations} == {*PHASES}
    for one in explanations:
        found = {part.name: part for part in one.parts}
        assert found[one.model].difference_s >= 0.9 * 1.0, one.model
        low, high = known(found[one.model].interval)
        assert low < 1.0 < high, one.model
        others = [part.difference_s for part in one.parts if part.name != one.model]
        assert max(map(abs, others)) < 0.05, one.model


def test_of_bare_metal_measured_twice_both_trials_count(save: Save) -> None:
    rng = np.random.default_rng(1)
    slow, quick, own = trial(rng, "data", 2.0), trial(rng), trial(rng, "data", 1.0)
    save(replica=1, **slow)  # whose file comes first
    save(**quick)
    save(target="container", **own)
    one = explained(save)
    found = {part.name: part for part in one.parts}
    assert found["data"].difference_s == pytest.approx(0.0, abs=0.05)
    assert one.whole.baseline_s == pytest.approx(sum(side["open_s"] + side["elapsed_s"] for side in (slow, quick)) / 2)
    assert sum(part.difference_s for part in one.parts) == pytest.approx(one.whole.difference_s)


def test_the_parts_and_what_is_unexplained_sum_to_the_whole(save: Save) -> None:
    rng = np.random.default_rng(1)
    for block in range(3):
        save(block=block, **trial(rng))
        hidden = trial(rng)
        hidden["elapsed_s"] += 2.0
        save(block=block, target="vm", **hidden)
    one = explained(save)
    assert sum(part.difference_s for part in one.parts) == pytest.approx(one.whole.difference_s)
    assert one.parts[-1].name == "unexplained"
    assert one.parts[-1].difference_s == pytest.approx(2.0, abs=0.01)


def test_a_part_that_one_side_does_not_have_stays_unexplained(save: Save) -> None:
    rng = np.random.default_rng(2)
    save(**(trial(rng) | {"timeline": None}))
    save(target="vm", **trial(rng))
    one = explained(save)
    assert [part.name for part in one.parts] == ["opening", "data", "copy", "compute", "communicate", "unexplained"]
    assert one.whole.interval is None


def test_the_switches_are_rows_where_both_sides_counted_them(save: Save) -> None:
    rng = np.random.default_rng(4)
    for block in range(2):
        for target, voluntary in (("bare-metal", 40), ("container", 60)):
            counts = {"voluntary_switches": voluntary + block, "involuntary_switches": 300}
            if target == "bare-metal":
                counts["migrations"] = 6 + 2 * block
            save(block=block, target=target, details={"measured_usage": counts}, **trial(rng))
        save(block=block, target="vm", details={"measured_usage": {"voluntary_switches": "many"}}, **trial(rng))
    container, vm = save.explain().explanations
    assert vm.counts == ()
    counted = {row.name: (row.baseline, row.target, row.difference) for row in container.counts}
    assert counted == {"voluntary switches": (40.5, 60.5, 20.0), "involuntary switches": (300, 300, 0)}
    shown = [line.split() for line in printed(explanation_document(save.explain()), 200).splitlines()]
    assert ["voluntary", "switches", "40.5", "60.5", "+20.0", "+20.0", "to", "+20.0"] in shown
    assert not any("migrations" in line[:1] for line in shown)


def test_what_may_not_be_compared_is_not_explained_unless_forced(save: Save) -> None:
    rng = np.random.default_rng(3)
    save(**trial(rng))
    save(target="vm", capability="AVX512", substitutes=["accelerator:tcg"], **trial(rng))
    records = save.load()
    assert explained_by(records).explanations == ()
    (one,) = explained_by(records, force=True).explanations
    assert one.notes == ("accelerator:tcg", "forced: CPU capability AVX512 against AVX2")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_waterfall_is_readable_on_every_terminal(save: Save, width: int) -> None:
    rng = np.random.default_rng(5)
    for block in range(2):
        save(block=block, **trial(rng))
        save(block=block, target="container-vm", **trial(rng, "data", 1.0))
    text = printed(explanation_document(save.explain()), width)
    for word in (*PHASES, "unexplained", "whole", "p95", "jitter"):
        assert word in text
    assert max(map(len, text.splitlines())) <= width


def waterfall(save: Save, *runs: str) -> str:
    return printed(explanation_document(save.explain(*runs)), 80)


def test_no_share_is_told_of_a_whole_that_may_be_zero(save: Save) -> None:
    rng = np.random.default_rng(6)
    for block in range(5):
        save(block=block, **trial(rng))
        save(block=block, target="container", **trial(rng))
        save("apart", block=block, **trial(rng))
        save("apart", block=block, target="container", **trial(rng, "compute", 2.0))
    low, high = known(explained(save).whole.interval)
    assert low < 0 < high
    assert [line for line in waterfall(save).splitlines() if line.endswith(" %")] == []
    shares = [line.split()[-2:] for line in waterfall(save, "apart").splitlines() if line.endswith(" %")]
    assert ["100", "%"] in shares
    save("single", **trial(rng))
    save("single", target="container", **trial(rng, "compute", 2.0))
    assert not any(line.endswith(" %") for line in waterfall(save, "single").splitlines()), "one block says nothing"


def test_where_nothing_can_be_explained_it_says_so(save: Save) -> None:
    save()
    assert waterfall(save).startswith("Nothing to explain: no training on another target")


def test_the_opening_is_parted_into_its_phases(save: Save) -> None:
    rng = np.random.default_rng(7)
    for block in range(3):
        own, base = trial(rng), trial(rng)
        save(block=block, **base, opening={"tree": base["open_s"]})
        save(block=block, target="container-vm", **own, opening={"boot": own["open_s"] - 0.1, "container": 0.1})
    (opening,) = (part for part in explained(save).parts if part.name == "opening")
    assert [phase.name for phase in opening.phases] == ["tree", "boot", "container"]
    assert sum(phase.difference_s for phase in opening.phases) == pytest.approx(opening.difference_s)
    assert opening.phases[2].baseline_s == 0
    lines = waterfall(save).splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("opening"))
    assert [line.split()[0] for line in lines[place + 1 : place + 4]] == ["tree", "boot", "container"]


OPTIONS = {"engine": "runc", "isa": "shared"}


def training(rng: np.random.Generator, **seconds: float) -> dict[str, Any]:
    """A trial of 1 s of imports, 4 s of data and 10 s of computing on bare metal, unless told otherwise."""
    parts = {name: value * math.exp(rng.normal(0, 0.003)) for name, value in seconds.items()}
    data, compute = parts.get("data", 4.0), parts.get("compute", 10.0)
    timeline = Timeline(launch_s=0.1, imports_s=parts.get("imports", 1.0), build_s=0.2, warmup_s=0.0, teardown_s=0.01)
    steps = Steps(elapsed_s=[data + compute], data_s=[data], compute_s=[compute])
    elapsed = data + compute + parts.get("imports", 1.0) + 0.31
    return {"timeline": timeline, "steps": steps, "elapsed_s": elapsed, **OPTIONS, "parallel": "none"}


def probes(save: Save, block: int, target: str, rng: np.random.Generator, factor: float, **changes: Any) -> None:
    """The VM's CPU gives ``factor`` of bare metal's, its disk a half, and importing torch takes it 3 times as long."""
    here = 1.0 if target == "bare-metal" else factor
    there = {"block": block, "target": target, **OPTIONS, **changes}
    rate = 100 * here * math.exp(rng.normal(0, 0.003))
    save("probes", **probe("cpu", matrix_product_all_threads=(rate, "GFLOP/s", "more")), **there)
    disk = 500 * (1 if here == 1 else 0.5) * math.exp(rng.normal(0, 0.003))
    save("probes", **probe("disk", sequential_read_throughput=(disk, "MiB/s", "more")), **there)
    imports = (1 if here == 1 else 3) * math.exp(rng.normal(0, 0.003))
    save("probes", **probe("startup", import_torch=(imports, "s", "less")), **there)


def made(save: Save, *, state: str | None = None, compute: float = 12.5, **changes: Any) -> Explanation:
    rng = np.random.default_rng(0)
    for block in range(8):
        save(block=block, page_cache=state, **training(rng, imports=1.0, data=4.0, compute=10.0))
        save(block=block, page_cache=state, target="vm", **training(rng, imports=3.0, data=8.0, compute=compute))
        for target in ("bare-metal", "vm"):
            probes(save, block, target, rng, 0.8, **changes)
    return explained(save, "run", "probes")


def parts(one: Explanation) -> dict[str, Predicted]:
    return {found.part: found for found in known(one.prediction).predicted}


def test_each_part_is_predicted_by_its_own_probe_and_their_sum_stands_beside_the_measured_whole(save: Save) -> None:
    one = made(save, state="cold")
    found = parts(one)
    assert {name: each.by for name, each in found.items()} == {
        "opening": None,
        "imports": "startup/import-torch",
        "warm-up": "cpu/matrix-product-all-threads",
        "data": "disk/sequential-read-throughput",
        "compute": "cpu/matrix-product-all-threads",
    }
    whole = known(one.prediction)
    seconds = [each.difference_s for each in (found["imports"], found["data"], found["compute"], whole)]
    assert seconds == pytest.approx([2.0, 4.0, 2.5, 8.5], rel=0.02)
    low, high = known(whole.interval)
    assert low < 8.5 < high
    assert not whole.parts
    assert not any(each.parts for each in found.values())
    assert whole.silent == ("launch", "build", "teardown")


def test_data_that_come_from_the_page_cache_have_no_probe(save: Save) -> None:
    one = made(save, state="warm")
    assert "data" not in parts(one)
    assert "data" in known(one.prediction).silent


@pytest.mark.parametrize("mode", ["fsync", "on"])
def test_checkpoints_are_predicted_by_the_disk_where_they_wait_for_it(save: Save, mode: str) -> None:
    rng = np.random.default_rng(0)
    for block in range(8):
        for target, written_s, rate in (("bare-metal", 1.0, 500), ("vm", 2.0, 250)):
            own = training(rng)
            timeline = replace(own["timeline"], between_epochs_s=written_s)
            save(block=block, target=target, checkpoint=mode, **{**own, "timeline": timeline})
            disk = probe("disk", sequential_write_throughput=(rate * math.exp(rng.normal(0, 0.003)), "MiB/s", "more"))
            save("probes", block=block, target=target, **disk, **OPTIONS)
    one = explained(save, "run", "probes")
    if mode == "on":
        assert one.prediction is None
    else:
        assert parts(one)["between epochs"].by == "disk/sequential-write-throughput"
        assert parts(one)["between epochs"].difference_s == pytest.approx(1.0, rel=0.02)


def test_where_measurement_and_prediction_part_a_sentence_says_so(save: Save) -> None:
    one = made(save, state="cold", compute=20.0)
    assert [name for name, each in parts(one).items() if each.parts] == ["compute"]
    lines = list(prediction_lines(one))
    assert any(line.startswith("measurement and prediction differ: the cost of compute is +") for line in lines)
    assert "more than the +2.5" in " ".join(lines)
    assert lines[-1].startswith("measurement and prediction differ: the cost of the whole is")
    assert "predicted by the probes" in waterfall(save, "run", "probes")
    assert "measurement and prediction differ" in save.page("run", "probes")


ONE_CPU = {"envelope": Envelope(cpus=(0,), memory_bytes=2 * GIB, threads=1)}


@pytest.mark.parametrize("changes", [ONE_CPU, {"engine": "docker"}, {"accelerator": "kvm"}, {"provider": "another"}])
def test_probes_of_another_envelope_or_of_other_layers_predict_nothing(save: Save, changes: dict[str, Any]) -> None:
    assert made(save, **changes).prediction is None


def test_without_probes_or_a_fact_of_their_host_there_is_no_prediction_and_no_line(tmp_path: Path, save: Save) -> None:
    made(save)
    one = explained(save)
    assert one.prediction is None
    assert list(prediction_lines(one)) == []
    for path in (tmp_path / "probes" / "trials").iterdir():
        edited(path, lambda record: record["environment"]["host"].update(cpu_model=None))
    assert explained(save, "run", "probes").prediction is None


def test_one_block_predicts_without_an_interval_and_parts_from_nothing(save: Save) -> None:
    rng = np.random.default_rng(0)
    for target, compute in (("bare-metal", 10.0), ("vm", 99.0)):
        save(target=target, **training(rng, compute=compute))
        probes(save, 0, target, rng, 0.8)
    prediction = known(explained(save, "run", "probes").prediction)
    assert (prediction.interval, prediction.parts) == (None, False)


def test_what_was_switched_stands_beside_the_waterfall_of_its_target(save: Save) -> None:
    rng = np.random.default_rng(0)
    for block in range(3):
        save(block=block, **training(rng))
        save(block=block, ablation="huge-pages", **training(rng))
        for target in ("container", "vm"):
            save(block=block, target=target, **training(rng))
        save(block=block, target="container", ablation="seccomp", **training(rng))
    explained = save.explain()
    assert [one.blocks for one in explained.explanations] == [3, 3]
    container, vm = (part for part in explanation_document(explained) if isinstance(part, Notes))
    lines = [line.partition(":")[2].partition(":")[0] for line in container.lines if "switched" in line]
    assert lines == [" bare-metal, huge pages on", " container, seccomp off"]
    assert sum("switched" in line for line in vm.lines) == 1


def exchanging(save: Save, run: str, target: str, **network: Any) -> None:
    """All-reduce at 100 MB/s in messages of 2 MiB and at 120 MB/s in those of 64 MiB, on two workers."""
    rates = {"2MiB": 100.0, "64MiB": 120.0}
    metrics = {
        f"{operation}-{size}-bandwidth": MetricValue(value=times * rate, unit="MB/s", better="more")
        for operation, times in (("all-reduce", 1), ("point-to-point", 2))
        for size, rate in rates.items()
    }
    save(run, target=target, model="collectives", metrics=metrics, **joined(**network))


def joined(strategy: Any = "all-reduce", rate: str = "1gbit", sent_bytes: int | None = None) -> dict[str, Any]:
    """Two workers that send so many bytes in the warm-up step and the three measured ones, of 2 s with 1 s of it."""
    servers = 0 if strategy in SERVERLESS else 1
    lab = LabSpec(nodes=2 + servers, rate=rate)
    rank: dict[str, Any] = {"role": "worker", "address": "a", "interface": "lo", "environment": Environment()}
    ranks = [Rank(rank=number, sent_bytes=sent_bytes, **rank) for number in range(2)]
    steps = Steps(elapsed_s=[2.0] * 3, data_s=[0.0] * 3, compute_s=[1.0] * 3, communicate_s=[1.0] * 3)
    distributed = DistributedJob(strategy=strategy, workers=2, servers=servers, network="overlay", lab=lab)
    return {"scenario": "distributed", "distributed": distributed, "ranks": ranks, "steps": steps}


def shares(save: Save) -> list[Any]:
    return [one.communicating for one in save.explain("training", "exchange").explanations if one.model == "resnet50"]


@pytest.mark.parametrize(
    ("strategy", "step_bytes", "rate"),
    [("all-reduce", 2 << 20, 100.0), ("all-reduce", 50 << 20, 114.575), ("parameter-server", 50 << 20, 200.0)],
)
def test_collectives_predict_the_communicating_share_beside_the_measured_one(
    strategy: Any, step_bytes: int, rate: float, save: Save
) -> None:
    """The bandwidth is that at the size of a message: of buckets of 25 MiB, or of chunks of 2 MiB."""
    for target in ("bare-metal", "vm"):
        save("training", target=target, **joined(strategy, sent_bytes=4 * step_bytes))
        exchanging(save, "exchange", target)
    (share,) = shares(save)
    predicted_s = step_bytes / rate / 1e6
    assert (share.step_bytes, share.measured) == (step_bytes, 0.5)
    assert (share.bandwidth_mb_s, share.predicted) == pytest.approx((rate, predicted_s / (1 + predicted_s)), rel=1e-4)
    (one, *_) = save.explain("training", "exchange").explanations
    (line,) = prediction_lines(one)
    assert line.startswith(f"communication: a rank sends {step_bytes / 1e6:.3g} MB in a step")
    assert f"which takes 50% of the step's time; collectives at {rate:.3g} MB/s predict " in line
    assert line.endswith(f" {share.predicted:.0%} if nothing hides it")


def test_the_bytes_of_a_step_are_shown_by_shapes_and_by_the_interface(save: Save) -> None:
    for target in ("bare-metal", "vm"):
        numbers = joined("split", sent_bytes=4_000_000)
        ranks = [replace(rank, interface_sent_bytes=4_400_000) for rank in numbers["ranks"]]
        save("training", target=target, **(numbers | {"ranks": ranks}))
    (line,) = prediction_lines(explained(save, "training"))
    bytes_sent = "communication: a rank sends 1 MB in a step (1.1 MB by its interface)"
    assert line == f"{bytes_sent}, which takes 50% of the step's time"


def test_collectives_of_another_network_or_alone_predict_nothing(save: Save) -> None:
    for target in ("bare-metal", "vm"):
        save("training", target=target, **joined(sent_bytes=4 << 20))
        exchanging(save, "exchange", target, rate="10gbit")
    (share,) = shares(save)
    assert (share.step_bytes, share.interface_bytes, share.measured) == (1 << 20, None, 0.5)
    assert share.predicted is share.bandwidth_mb_s is None
    assert [one.communicating for one in save.explain("exchange").explanations] == [None]


def simulated(rng: np.random.Generator, start: float, interval: float, checkpoint: float, mean: float) -> list[float]:
    """The makespan, the openings and the lost steps of a job of ten intervals, whose steps take a second."""
    clock, done, openings, lost = 0.0, 0, 0, 0.0
    while done < 10:
        openings, left = openings + 1, rng.exponential(mean)
        worked = max(0.0, left - start)
        ended = min(int(worked // (interval + checkpoint)), 10 - done)
        done += ended
        clock += start + ended * (interval + checkpoint) if done == 10 else left
        # As the scenario counts them: a step has its share of the checkpoint.
        share = interval / (interval + checkpoint)
        lost += 0.0 if done == 10 else (worked - ended * (interval + checkpoint)) * share
    return [clock, openings, lost]


@pytest.mark.parametrize(
    ("slower", "more", "why"),
    [(1.0, {}, ""), (3.0, {}, ""), (3.0, {"profile": "smoke"}, "smoke run"), (3.0, {"blocks": 4}, "at least 5 blocks")],
)
def test_a_preempted_job_is_held_against_what_its_parts_predict(
    tmp_path: Path, save: Save, slower: float, more: dict[str, Any], why: str
) -> None:
    rng, start, interval, checkpoint, mean = np.random.default_rng(7), 8.0, 30.0, 3.0, 60.0
    sizes = Sizes(batch=1, image_px=32, warmup_steps=1, steps=300, epochs=10)
    spans = Timeline(launch_s=1, imports_s=2, build_s=1, warmup_s=0, measured_s=300, between_epochs_s=30)
    blocks = more.get("blocks", 40)
    for block in range(blocks):
        makespan, openings, lost = simulated(rng, start, interval, checkpoint, mean)
        metrics = {
            "makespan": MetricValue(value=makespan * slower, unit="s", better="less"),
            "openings": MetricValue(value=openings, unit="", better="less", compared="difference"),
            "lost-steps": MetricValue(value=lost, unit="steps", better="less", compared="difference"),
        }
        course = {
            "metrics": metrics,
            "preemption": Preemption(mean_s=mean),
            "checkpoint": "on",
            "profile": more.get("profile", "quick"),
        }
        save("r", block=block, target="bare-metal", sizes=sizes, timeline=spans, open_s=4.0, **course)
    words = (tmp_path / "r", "--explain", "--force")
    (found,) = json.loads(bench_compare(*words, "--json").stdout)["preempted"]
    assert (found["target"], found["blocks"], found["mean_s"]) == ("bare-metal", blocks, mean)
    differs = {number["name"]: number["differs"] for number in found["numbers"]}
    assert differs == {"makespan": slower > 1 and not why, "openings": False, "lost-steps": False}, found
    text = " ".join(bench_compare(*words).stdout.split())
    assert "preempted" in text
    assert ("measurement and prediction differ in makespan" in text) == (slower > 1 and not why)
    assert f"no verdict on whether measurement and prediction differ: {why}" in text or not why


def test_places_of_no_trials_are_no_table() -> None:
    columns = ["hostname", "kernel"]
    trials = pd.DataFrame({name: pd.Series(dtype=object) for name in (*columns, "settings")})
    assert _places(trials, columns, ("engine",)).to_list() == []
