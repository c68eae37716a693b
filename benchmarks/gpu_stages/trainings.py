"""The stages B, R, D, E, V and U: trainings on bare metal and in a container, by recipe, design and profile."""

import math
from collections.abc import Sequence

import pynvml

from gpu_stages.day import BOTH, REHEARSED, Day, Facts, Found, about, early_loss, name_of

FIRST_MODELS = ("resnet50", "dcgan")
OTHER_MODELS = ("alexnet", "inception_v3", "transformer")


def models_on_both(day: Day) -> Found:
    """Train the first models on bare metal and runc, one block."""
    yield _trained(day, "B", FIRST_MODELS, *day.steps(300, 100))


def other_models_on_both(day: Day) -> Found:
    """Train the other models on bare metal and runc, one block."""
    yield _trained(day, "R", OTHER_MODELS, *day.steps(200, 50))


def _trained(day: Day, name: str, models: Sequence[str], *words: str) -> Facts:
    """Return what trainings on bare metal and runc show, one block."""
    records = day.run(name, *BOTH, "--scenario", "synthetic", *day.models(*models), *words)
    found = about(records)
    rounding = [record for record in records if (record["environment"] or {})["target"].get("tf32")]
    found["trials in fp32 that may round to TF32"] = len(rounding)
    if day.options.rehearse:  # on a GPU weights differ in bits
        found["models with other weights"] = found["others"]
    return found


def alternating(day: Day) -> Found:
    """Let bare metal and runc take turns on the one device: a ratio with an interval."""
    rounds, blocks = ("2", "2") if day.options.rehearse else ("8", "3")
    words = ("--design", "alternating", "--rounds", rounds, "--blocks", blocks)
    found = about(day.run("D", *BOTH, "--scenario", "synthetic", *day.models(*FIRST_MODELS), *words))
    rows = day.throughputs("D")
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    worst = max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None)
    intervals = [[row["model"], row["low"], row["high"]] for row in rows]
    yield {**found, "container / bare metal": worst, "intervals": intervals}
    where = str(day.options.state / "runs/D")
    yield {flag: day.bench("compare", where, flag)[-4000:] for flag in ("--explain", "--costs")}


def tuned(day: Day) -> Found:
    """Train ResNet-50 by the recipe tuned, to see whether it compiles and learns as reference does."""
    yield _tuned(day, "E", ("resnet50",))


def more_tuned(day: Day) -> Found:
    """Train the other models by the recipe tuned."""
    yield _tuned(day, "V", ("dcgan", "transformer"))


def _tuned(day: Day, name: str, models: Sequence[str]) -> Facts:
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models(*models), *day.steps(300, 100))
    records = day.run(name, *words, "--recipe", "tuned")
    kept = [*day.kept("B"), *day.kept("R")]
    before = {name_of(record): record for record in kept if record["target"] == "bare-metal"}
    speed: dict[str, float] = {}
    losses: list[float] = []
    for record in records:
        base = before.get(name_of(record))
        if base is None or {record["outcome"]["status"], base["outcome"]["status"]} != {"ok"}:
            continue
        speed[name_of(record)] = record["throughput_per_s"] / base["throughput_per_s"]
        loss = early_loss(record) / early_loss(base)
        if math.isfinite(loss):
            losses.append(loss)
    worst = max(losses, key=lambda ratio: abs(ratio - 1), default=None)
    return {**about(records), "speed-up over reference": speed, "loss of tuned / loss of reference": worst}


def profile_gpu(day: Day) -> Found:
    """Train by the profile gpu, which settles the clocks first; measure launches and copies by probes."""
    for name in ("gpu-latency", "memory"):
        probe = day.run(f"U-{name}", *BOTH, "--scenario", "probe", "--probe", name)
        yield {f"{name} probe": [[record["target"], record["metrics"]] for record in probe]}
    if day.options.rehearse:
        yield {"profile gpu": REHEARSED, "ranks of collectives": REHEARSED}
        return
    words = ("--scenario", "synthetic", "--model", "resnet50", "--profile", "gpu", "--steps", "300")
    records = day.run("U", *BOTH, *words)
    found = about(records)
    yield {
        "profile gpu": found,
        "settled": [record["details"].get("settled") for record in records],
        "steps": sorted({record["job"]["sizes"]["steps"] for record in records}),
        "trials that failed": found["trials that failed"],
    }
    if pynvml.nvmlDeviceGetCount() < 2:
        yield {"ranks of collectives": "not tried: one GPU, and NCCL takes one for each rank"}
        return
    two = ("--gpus", "0,1", "--devices", "2", "--parallel", "ddp", "--model", "collectives")
    yield {"ranks of collectives": about(day.run("U-ranks", *BOTH, "--scenario", "synthetic", *two, "--steps", "5"))}
