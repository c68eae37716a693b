"""The stages T and G: what is seen of an intruder, whether counters are right, and what looking costs."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pynvml

from gpu_stages.day import BOTH, REHEARSED, REPOSITORY, Day, Facts, Found, ratio, text_of
from gpu_stages.loops import loop
from suite.plan import balanced

STARTS_WITHIN_S = 60.0
"""The seconds in which a program has imported torch and begun to compute."""
MULTIPLIES = """
import sys, time, torch
ones, end = torch.ones(2048, 2048, device=sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    (ones @ ones).sum().item()
"""
WRONG = (
    ("--gpus", "7"),
    ("--gpus", "0", "--devices", "2", "--parallel", "ddp"),
    ("--gpus", "nonsense"),
    ("--sync", "span", "--epochs", "2"),
)


def _intruder(day: Day, seconds: float) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", MULTIPLIES, day.device, str(seconds)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": day.path})


def truth(day: Day) -> Found:
    """Check the energy counter and what is seen of an intruder for 20 s, and requests that must be refused."""
    from provisioning.metrics.gpu_usage import GpuSampler

    seconds = 2 if day.options.rehearse else 20
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    sampler = GpuSampler([text_of(pynvml.nvmlDeviceGetUUID(handle))], lambda pid: pid == os.getpid())
    intruder = _intruder(day, seconds)
    latest_s = time.monotonic() + seconds + STARTS_WITHIN_S
    with day.answering(intruder.pid):
        sampler.start()
        power: list[tuple[float, float]] = []
        begun_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        while intruder.poll() is None and time.monotonic() < latest_s:
            power.append((time.monotonic(), pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))
            time.sleep(0.05)
        spent_j = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000 - begun_j
        _, usages = sampler.stop()
    intruder.kill()
    intruder.wait()
    integrated_j = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(power))
    usage = usages[0] if usages else None
    yield {
        "energy counter / integrated power": spent_j / integrated_j,
        "intruders that were missed": int(not (usage and usage.strangers)),
        "strangers": usage and usage.strangers,
        "strangers' share of the GPU": usage and usage.strangers_utilisation,
        "sampler_cpu_s": sampler.cpu_s,
    }
    yield accepted(day)


def accepted(day: Day) -> Facts:
    """Return how many wrong requests are accepted."""
    count = 0
    for words in WRONG:
        device = ("--device", "cuda", "--target", "bare-metal", "--image", str(day.facts["P"]["image"]), "--dry-run")
        count += day.program(str(REPOSITORY / "cli.py"), "run", *device, *words).returncode != 2
    return {"wrong requests that were accepted": count}


def intruders(day: Day) -> Found:
    """Start an intruder inside of trials, and measure what sampling costs."""
    yield beside_an_intruder(day)
    yield sampling(day)


@contextlib.contextmanager
def planted(day: Day) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start a process that multiplies matrices once a trial computes on the GPU; in a rehearsal after a second."""
    ended = threading.Event()
    started: list[subprocess.Popen[bytes]] = []
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def plant() -> None:
        while not ended.wait(1):
            if day.options.rehearse or pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                started.append(_intruder(day, 600))
                return

    planter = threading.Thread(target=plant)
    planter.start()
    try:
        yield started
    finally:
        ended.set()
        planter.join()
        for intruder in started:
            intruder.terminate()
            intruder.wait()


def beside_an_intruder(day: Day) -> Facts:
    """Run trials, start an intruder inside of the first, and see whether records name it and no verdict comes of it."""
    with planted(day) as started:
        words = (*BOTH, "--scenario", "synthetic", *day.models("resnet50"), *day.steps(500, 100))
        records = day.run("G", *words, "--blocks", "2", "--warmup-blocks", "0")
        if not started or started[0].poll() is not None:
            raise RuntimeError("the intruder was not there to the end of the trials")
    if day.options.rehearse:
        names = ("trials that do not name an intruder", "verdicts that an intruder did not spoil")
        return {"trials beside an intruder": len(records), **dict.fromkeys(names, REHEARSED)}
    missed = sum(not gpu["strangers"] for record in records for gpu in record["resources"]["gpus"])
    rows = day.throughputs("G")
    unspoilt = 0
    for row in rows:
        unspoilt += bool(row["verdict"]) or not any("on a GPU" in why for why in row["withheld"])
    return {
        "trials that do not name an intruder": missed,
        "verdicts that an intruder did not spoil": unspoilt if rows else None,
    }


def sampling(day: Day) -> Facts:
    """Return the rate of a loop while its GPU is sampled, over the rate while it is not, in drawn order."""
    from provisioning.metrics import gpu_usage

    uuid = text_of(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
    every_s = {"not": None, "2 Hz": 0.5, "20 Hz": 0.05}
    rates: dict[str, list[float]] = {side: [] for side in every_s}
    usual_s = gpu_usage.EVERY_S
    for number in range(1 if day.options.rehearse else 3):
        for side in balanced(tuple(rates), number, "gpu-day-sampler"):
            vars(gpu_usage)["EVERY_S"] = every_s[side]
            sampler = gpu_usage.GpuSampler([uuid] if every_s[side] else [], lambda _: None)
            sampler.start()
            rates[side].append(loop(day, "synchronised", "resnet50")[1])
            sampler.stop()
    vars(gpu_usage)["EVERY_S"] = usual_s
    ratios = {f"sampled at {side} / not sampled": ratio(rates[side], rates["not"]) for side in ("2 Hz", "20 Hz")}
    return {"rates beside the sampler": rates, **ratios}
