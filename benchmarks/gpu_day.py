"""Shows on a machine with one GPU what is true of the suite there, in stages of a minute or five, by order of worth.

    python benchmarks/gpu_day.py --minutes 14 --state DIR --out DIR [--site DIR]... [--stages AP] [--rehearse]

Needs root, bubblewrap, runc, and a Python that has torch and the suite's dependencies. OUT has facts.json, which is
written with each fact, and after each stage summary.md, records.tar.gz and log. A second call with the same --state
goes on where the first ended, or was killed; stages that failed come last, and one whose estimate does not fit into the
minutes left is skipped. Nothing changes the GPU's settings. BOUNDS were fixed before the first day. ``--rehearse`` runs
all stages on any machine, on the CPU, with stand-ins for NVML and libcuda: its numbers mean nothing, and of the bounds
only counts are judged. It first prints which stages fit into 15 and 30 minutes.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))  # as a script, this file is not part of the installed suite

import pynvml  # noqa: E402

from suite.plan import balanced  # noqa: E402
from tests.stand_ins.nvml_state import Nvml  # noqa: E402

BOUNDS = {
    "trials that failed": (0.0, 0.0),
    "targets without libcuda": (0.0, 0.0),
    "models with other weights": (0.0, 0.0),
    "suite / synchronised loop: resnet50": (0.98, 1.02),
    "suite / synchronised loop: dcgan": (0.98, 1.02),
    "gain by --sync span / gain of the free loop: resnet50": (0.97, 1.03),
    "gain by --sync span / gain of the free loop: dcgan": (0.97, 1.03),
    "container / bare metal": (0.97, 1.03),
    "loss of tuned / loss of reference": (0.90, 1.10),
    "copy phase / probe: synthetic": (0.90, 1.10),
    "copy phase / probe: JPEG": (0.90, 1.10),
    "energy counter / integrated power": (0.95, 1.05),
    "sampled at 2 Hz / not sampled": (0.98, 1.02),
    "intruders that were missed": (0.0, 0.0),
    "trials that do not name an intruder": (0.0, 0.0),
    "verdicts that an intruder did not spoil": (0.0, 0.0),
    "wrong requests that were accepted": (0.0, 0.0),
    "spread of losses of equal trials": (0.0, 0.10),
    "trials in fp32 that may round to TF32": (0.0, 0.0),
    "loss in TF32 / loss in fp32": (0.90, 1.10),
}
"""The lowest and highest value that is accepted, by the name of the fact. A rehearsal judges counts alone."""
STARTS_WITHIN_S = 60.0
"""The seconds in which a program has imported torch and begun to compute."""
REHEARSED = "rehearsed: it takes a GPU"
LOOPS = {"resnet50": (32, 224, 100, 200), "dcgan": (128, 64, 200, 1000)}
"""Batch, pixels, warm-up and measured steps of the loops by hand."""
FIRST_MODELS, OTHER_MODELS = ("resnet50", "dcgan"), ("alexnet", "inception_v3", "transformer")
NVML = (
    *("Name", "UUID", "PciInfo", "MemoryInfo", "UtilizationRates", "TotalEnergyConsumption", "PowerUsage"),
    *("EnforcedPowerLimit", "PersistenceMode", "EccMode", "MigMode", "CurrentClocksEventReasons"),
    *("CudaComputeCapability", "ComputeRunningProcesses", "GraphicsRunningProcesses", "MinorNumber"),
)
FIRST_CONVOLUTION = """
import json, sys, time
begin = time.monotonic(); import torch; imported = time.monotonic()
images = torch.rand(8, 3, 64, 64, device=sys.argv[1]); placed = time.monotonic()
torch.nn.Conv2d(3, 8, 3).to(sys.argv[1])(images).sum().item(); done = time.monotonic()
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps({"import_s": imported - begin, "init_s": placed - imported, "convolution_s": done - placed,
                  "host_memory_kib": int(peak), "torch": torch.__version__, "cuda": torch.version.cuda}))
"""
MULTIPLIES = """
import sys, time, torch
ones, end = torch.ones(2048, 2048, device=sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    (ones @ ones).sum().item()
"""
TOUCHES = """
import mmap, os, sys
held = mmap.mmap(-1, int(sys.argv[1]))
held.madvise(mmap.MADV_POPULATE_WRITE) if hasattr(mmap, "MADV_POPULATE_WRITE") else held.write(bytes(len(held)))
"""
WANTED_BYTES = 24 << 30
"""The host memory that is touched at first: on a lent machine MemTotal may begin small and grow with its use."""
LIBCUDA = "import ctypes, json, os; print(json.dumps([ctypes.CDLL('libcuda.so.1').cuInit(0), os.geteuid()]))"
STUB = "int cuInit(unsigned flags) { return (int)flags; }\n"
WRONG = (
    ("--gpus", "7"),
    ("--gpus", "0", "--devices", "2", "--parallel", "ddp"),
    ("--gpus", "nonsense"),
    ("--sync", "span", "--epochs", "2"),
)
Facts = dict[str, Any]
Found = Iterator[Facts]
"""The facts of a stage, as they come."""


@dataclass
class Day:
    """The state of a day: what was found so far, and how stages run the suite."""

    options: argparse.Namespace
    end_s: float
    facts: dict[str, Facts] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.options.rehearse else "cuda"

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    @property
    def memory_gib(self) -> int:
        """Return the GiB that a trial is given: 16, or half of what the machine has."""
        total = re.search(r"^MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return max(2, min(16, int(total[1]) >> 21)) if total else 8

    def program(self, *argv: str, timeout_s: float | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program of this Python to its end, or until the minutes are spent; its output goes to the log, too."""
        own = {"PYTHONPATH": self.path, "VIRTBENCH_HOME": str(self.options.state / "home"), **self.variables}
        how: dict[str, Any] = {"env": {**os.environ, **own}, "timeout": timeout_s or max(10.0, self.left_s)}
        with (self.options.out / "log").open("a") as log:
            print("$", *(word if len(word) < 200 else "..." for word in argv), file=log, flush=True)
            ended = subprocess.run([sys.executable, *argv], check=False, capture_output=True, text=True, **how)
            print(ended.stdout, ended.stderr, file=log)
        return ended

    @property
    def path(self) -> str:
        places = [str(REPOSITORY), *map(str, self.options.sites), os.environ.get("PYTHONPATH")]
        return os.pathsep.join(filter(None, places))

    def bench(self, *words: str) -> str:
        ended = self.program(str(REPOSITORY / "cli.py"), *words)
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"bench {' '.join(words[:2])}: {ended.stderr.strip()[-500:]}")
        return ended.stdout

    def run(self, name: str, *words: str) -> list[Facts]:
        """Run the suite and return its records; a run that was cut off goes on, and a rehearsal is the smallest."""
        sizes: tuple[str, ...] = ("--profile", "paper", "--memory", f"{self.memory_gib}G")
        if self.options.rehearse:
            sizes = ("--profile", "smoke")
        gpus = () if self.options.rehearse else ("--gpus", "0")
        image = ("--image", str(self.facts["P"]["image"]), "--device", self.device, *gpus, "--wait")
        engine = ("--engine", "runc") if "container" in words else ()
        self.bench("run", *engine, *image, "--out", str(self.options.state / "runs" / name), *sizes, *words)
        return self.kept(name)

    def kept(self, name: str) -> list[Facts]:
        trials = (self.options.state / "runs" / name).glob("trials/*.json")
        return [json.loads(path.read_text()) for path in sorted(trials)]

    def models(self, *names: str) -> list[str]:
        return [word for name in (("gan",) if self.options.rehearse else names) for word in ("--model", name)]

    @contextlib.contextmanager
    def answering(self, pid: int) -> Iterator[None]:
        """Let the stand-in of a rehearsal count 100 W and show a process; a real GPU answers for itself."""
        if not self.options.rehearse:
            yield
            return
        ended, begin_s = threading.Event(), time.monotonic()

        def play() -> None:
            while not ended.wait(0.01):
                joules = 100 * (time.monotonic() - begin_s)
                self.options.nvml.answer(_gpu(energy=int(1000 * joules), compute=pid))

        player = threading.Thread(target=play)
        player.start()
        time.sleep(0.1)
        try:
            yield
        finally:
            ended.set()
            player.join()

    def steps(self, count: int, warmup: int) -> tuple[str, ...]:
        count, warmup = (2, 0) if self.options.rehearse else (count, warmup)
        return "--steps", str(count), "--warmup-steps", str(warmup)


BOTH = ("--target", "bare-metal", "--target", "container")


def about(records: Sequence[Facts]) -> Facts:
    """Return what the records of one run show: failures, rates, and whether all targets computed the same."""
    failed = [record["outcome"]["message"] for record in records if record["outcome"]["status"] != "ok"]
    rates = {f"{name_of(record)} on {record['target']}": record["throughput_per_s"] for record in records}
    weights: dict[str, set[str]] = {}
    for record in records:
        weights.setdefault(name_of(record), set()).add(record["weights_sha256"])
    others = sum(len(digests) > 1 for digests in weights.values())
    counts = {"trials": len(records), "trials that failed": len(failed), "others": others}
    return {**counts, "failures": failed, "rates": rates}


def name_of(record: Facts) -> str:
    return str(record["job"].get("model") or record["trial_id"])


def facts_of_the_machine(day: Day) -> Found:
    """Touch the memory; record NVML's answers, device files, and torch on the device."""
    day.program("-c", TOUCHES, str((64 << 20) if day.options.rehearse else WANTED_BYTES), timeout_s=60.0)
    yield {"memory that trials are given, GiB": day.memory_gib, "driver": pynvml.nvmlSystemGetDriverVersion()}
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    answers = {}
    for name in NVML:
        try:
            answers[name] = str(getattr(pynvml, f"nvmlDeviceGet{name}")(handle))
        except pynvml.NVMLError as error:
            answers[name] = f"error: {error}"
    yield {"nvml": answers, "devices": sorted(str(path) for path in Path("/dev").glob("nvidia*"))}
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=False, capture_output=True, text=True).stdout
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if " / " in line or "cgroup" in line]
    yield {"libraries": re.findall(r"(lib(?:cuda|nvidia-ml)\.so\S*) .*=> (\S+)", cache), "mounts": mounts}
    torch = day.program("-c", FIRST_CONVOLUTION, day.device)
    yield {"torch": json.loads(torch.stdout) if torch.returncode == 0 else torch.stderr[-500:]}


def adopted(day: Day) -> Found:
    """Adopt an image of this machine's Python, and look for libcuda inside of the targets."""
    sites = [word for site in day.options.sites for word in ("--site", str(site))]
    image = day.bench("image", "adopt", "--python", sys.executable, *sites).strip()
    yield {"image": image}
    words = ("--state", str(day.options.state), "--image", image, *(["--rehearse"] if day.options.rehearse else []))
    found: Facts = {}
    for target in ("bare-metal", "container"):
        ended = day.program(__file__, "--libcuda", target, *words)
        found[f"libcuda in {target}: cuInit, uid"] = (ended.stdout or ended.stderr).strip()[-300:]
    reached = [answer.startswith("[0,") for answer in found.values()]
    yield {**found, "targets without libcuda": reached.count(False)}


def _trained(day: Day, name: str, models: Sequence[str], *words: str) -> Facts:
    """Return what trainings on bare metal and runc show, one block."""
    given = (*BOTH, "--scenario", "synthetic", *day.models(*models), *words, "--blocks", "1")
    found = about(records := day.run(name, *given))
    # On a GPU weights differ in bits.
    only = {"models with other weights": found["others"]} if day.options.rehearse else {}
    rounding = [record for record in records if (record["environment"] or {})["target"].get("tf32")]
    return {**found, "trials in fp32 that may round to TF32": len(rounding), **only}


def models_on_both(day: Day) -> Found:
    """Train the first models on bare metal and runc, one block."""
    yield _trained(day, "B", FIRST_MODELS, *day.steps(300, 100))


def other_models_on_both(day: Day) -> Found:
    """Train the other models on bare metal and runc, one block."""
    yield _trained(day, "R", OTHER_MODELS, *day.steps(300, 100))


def profile_gpu(day: Day) -> Found:
    """Train by the profile gpu, which settles the clocks first; measure launches and copies by probes."""
    for name in ("gpu-latency", "memory"):
        probe = day.run(f"U-{name}", *BOTH, "--scenario", "probe", "--probe", name)
        yield {f"{name} probe": [[record["target"], record["metrics"]] for record in probe]}
    if day.options.rehearse:
        yield {"profile gpu": REHEARSED, "ranks of collectives": REHEARSED}
        return
    records = day.run("U", *BOTH, "--scenario", "synthetic", "--model", "resnet50", "--profile", "gpu", "--blocks", "1")
    settled = [record["details"].get("settled") for record in records]
    yield {
        "profile gpu": about(records),
        "settled": settled,
        "trials that failed": about(records)["trials that failed"],
    }
    if pynvml.nvmlDeviceGetCount() < 2:
        yield {"ranks of collectives": "not tried: one GPU, and NCCL takes one for each rank"}
        return
    two = ("--gpus", "0,1", "--devices", "2", "--parallel", "ddp", "--model", "collectives")
    yield {"ranks of collectives": about(day.run("U-ranks", *BOTH, "--scenario", "synthetic", *two, "--steps", "5"))}


def loop(day: Day, side: str, model: str) -> tuple[float, float]:
    """Return the last loss and the images per second of ``cuda_loop.py``."""
    sizes = (2, 64, 0, 1) if day.options.rehearse else LOOPS[model]
    script = str(REPOSITORY / "benchmarks/parts/cuda_loop.py")
    ended = day.program(script, side, model, day.device, *map(str, sizes))
    if ended.returncode:
        raise RuntimeError(f"cuda_loop.py {side} {model}: {ended.stderr.strip()[-500:]}")
    loss, rate = map(float, ended.stdout.split()[-2:])
    return loss, rate


def ratio(own: Sequence[float], base: Sequence[float]) -> float:
    return math.exp(fmean(math.log(one / other) for one, other in zip(own, base, strict=True)))


def harness(day: Day) -> Found:
    """Compare the suite with loops by hand, synchronised and free-running, in one pair of drawn order."""
    yield from _pairs(day, 1, "gpu-day")


def more_pairs(day: Day) -> Found:
    """Compare the suite with loops by hand in more pairs, and with --sync span."""
    found: Facts = {}
    for part in _pairs(day, 1 if day.options.rehearse else 3, "gpu-day-more"):
        found |= part
        yield part
    yield waiting(day, found)


def _pairs(day: Day, pairs: int, label: str) -> Found:
    for model in LOOPS:
        rates: dict[str, list[float]] = {"free": [], "synchronised": [], "suite": []}
        for number in range(pairs):
            for side in balanced(tuple(rates), number, f"{label}-{model}"):
                rates[side].append(loop(day, side, model)[1])
        yield {
            f"rates of {model}": rates,
            f"suite / synchronised loop: {model}": ratio(rates["suite"], rates["synchronised"]),
            f"free-running / synchronised loop: {model}": ratio(rates["free"], rates["synchronised"]),
        }


def waiting(day: Day, loops: Facts) -> Facts:
    """Return what the suite gains if it does not wait after each step, and the same over what the loops gain."""
    name = "gain by --sync span / gain of the free loop: {}"
    if day.options.rehearse:
        return dict.fromkeys(map(name.format, LOOPS), REHEARSED)
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models(*LOOPS), *day.steps(1000, 200))
    rates = {sync: about(day.run(f"C-{sync}", *words, "--sync", sync))["rates"] for sync in ("step", "span")}
    found: Facts = {"rates by --sync": rates}
    for model in LOOPS:
        gain = rates["span"][f"{model} on bare-metal"] / rates["step"][f"{model} on bare-metal"]
        found[f"--sync span / --sync step: {model}"] = gain
        found[name.format(model)] = gain / loops[f"free-running / synchronised loop: {model}"]
    return found


def alternating(day: Day) -> Found:
    """Let bare metal and runc take turns on the one device: a ratio with an interval."""
    rounds = "2" if day.options.rehearse else "8"
    words = ("--design", "alternating", "--rounds", rounds, "--blocks", "2" if day.options.rehearse else "3")
    found = about(day.run("D", *BOTH, "--scenario", "synthetic", *day.models("resnet50", "dcgan"), *words))
    where = str(day.options.state / "runs/D")
    rows = _throughputs(day, "D")
    worst = max((row["ratio"] for row in rows if row["ratio"]), key=lambda ratio: abs(math.log(ratio)), default=None)
    intervals = [[row["model"], row["low"], row["high"]] for row in rows]
    yield {**found, "container / bare metal": worst, "intervals": intervals}
    yield {flag: day.bench("compare", where, flag)[-4000:] for flag in ("--explain", "--costs")}


def _throughputs(day: Day, name: str) -> list[dict[str, Any]]:
    """Return how the container's throughput compares with bare metal's, by model."""
    rows = json.loads(day.bench("compare", str(day.options.state / "runs" / name), "--json"))["rows"]
    return [row for row in rows if (row["kind"], row["target"], row["metric"]) == ("target", "container", "throughput")]


def tuned(day: Day) -> Found:
    """Train ResNet-50 by the recipe tuned, to see whether it compiles and learns as reference does."""
    yield _tuned(day, "E", ("resnet50",))


def more_tuned(day: Day) -> Found:
    """Train the other models by the recipe tuned."""
    yield _tuned(day, "V", ("dcgan", "transformer"))


def _tuned(day: Day, name: str, models: Sequence[str]) -> Facts:
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models(*models), *day.steps(300, 100))
    found = about(records := day.run(name, *words, "--recipe", "tuned"))
    kept = [*day.kept("B"), *day.kept("R")]
    before = {name_of(record): record for record in kept if record["target"] == "bare-metal"}
    speed, losses = {}, []
    for record in records:
        if (base := before.get(name_of(record))) and record["outcome"]["status"] == base["outcome"]["status"] == "ok":
            speed[name_of(record)] = record["throughput_per_s"] / base["throughput_per_s"]
            losses += [pair for pair in [_early_loss(record) / _early_loss(base)] if math.isfinite(pair)]
    worst = max(losses, key=lambda ratio: abs(ratio - 1), default=None)
    return {**found, "speed-up over reference": speed, "loss of tuned / loss of reference": worst}


def several_ways(day: Day) -> Found:
    """Train with parameters on the CPU, with one rank of NCCL, and on JPEG files, whose copies are held to a probe."""
    small = ("--scenario", "synthetic", *day.models("resnet50"), *day.steps(100, 20), "--target", "bare-metal")
    failed = 0
    for way in () if day.options.rehearse else ("parameter-cpu", "ddp"):
        found = about(day.run(f"F-{way}", *small, "--parallel", way, "--devices", "1"))
        failed += found["trials that failed"]
        yield {way: found, "trials that failed": failed}
    probe = day.run("F-memory", "--scenario", "probe", "--probe", "memory", "--target", "bare-metal")
    images = ("--images", "8", "--size", "small") if day.options.rehearse else ("--images", "2048")
    day.bench("data", "make", *images)
    words = ("--scenario", "real", "--data", "generated", "--cache", "warm", "--model", "alexnet")
    read = day.run("F-JPEG", *words, "--target", "bare-metal", *day.steps(100, 20))
    failed += sum(record["outcome"]["status"] != "ok" for record in (*probe, *read))
    yield {"JPEG": about(read), "trials that failed": failed}
    drawn = day.run("F-drawn", "--scenario", "synthetic", "--model", "alexnet", *day.steps(100, 20), *small[-2:])
    # Drawn images are copied as floats, those of files as bytes, which the device makes floats of.
    for kind, records, pixel_bytes in (("synthetic", drawn, 4), ("JPEG", read, 1)):
        rate = REHEARSED if day.options.rehearse else copied(records, pixel_bytes, probe)
        yield {f"copy phase / probe: {kind}": rate}


def copied(records: Sequence[Facts], pixel_bytes: int, probe: Sequence[Facts]) -> float | None:
    """Return the rate of the copy phase of a training over that of the memory probe; None if one is not measured."""
    if not (records and probe and records[0]["steps"] and probe[0]["metrics"]):
        return None
    sizes, seconds = records[0]["job"]["sizes"], median(records[0]["steps"]["copy_s"])
    moved_bytes = sizes["batch"] * 3 * sizes["image_px"] ** 2 * pixel_bytes
    return float(moved_bytes / seconds / 1e9 / probe[0]["metrics"]["host-to-device-pinned"]["value"])


def sampling(day: Day) -> Facts:
    """Return the rate of a loop while its GPU is sampled, over the rate while it is not, in drawn order."""
    from provisioning.metrics import gpu_usage

    uuid = _text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))
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


def truth(day: Day) -> Found:
    """Check the energy counter and what is seen of an intruder for 20 s, and requests that must be refused."""
    from provisioning.metrics.gpu_usage import GpuSampler

    seconds = 2 if day.options.rehearse else 20
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    sampler = GpuSampler([_text(pynvml.nvmlDeviceGetUUID(handle))], lambda pid: pid == os.getpid())
    intruder = subprocess.Popen(
        [sys.executable, "-c", MULTIPLIES, day.device, str(seconds)], env={**os.environ, "PYTHONPATH": day.path}
    )
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
    yield {
        "energy counter / integrated power": spent_j / integrated_j,
        "intruders that were missed": int(not (usages and usages[0].strangers)),
        "strangers": usages and usages[0].strangers,
        "strangers' share of the GPU": usages and usages[0].strangers_utilisation,
        "sampler_cpu_s": sampler.cpu_s,
    }
    accepted = 0
    for words in WRONG:
        device = ("--device", "cuda", "--target", "bare-metal", "--image", str(day.facts["P"]["image"]), "--dry-run")
        accepted += day.program(str(REPOSITORY / "cli.py"), "run", *device, *words).returncode != 2
    yield {"wrong requests that were accepted": accepted}


def intruders(day: Day) -> Found:
    """Start an intruder inside of trials, and measure what sampling costs."""
    yield beside_an_intruder(day)
    yield sampling(day)


@contextlib.contextmanager
def planted(day: Day) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Start a process that multiplies matrices once a trial computes on the GPU; in a rehearsal after a second."""
    ended, started, handle = threading.Event(), list["subprocess.Popen[bytes]"](), pynvml.nvmlDeviceGetHandleByIndex(0)

    def plant() -> None:
        while not ended.wait(1):
            if day.options.rehearse or pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                argv = [sys.executable, "-c", MULTIPLIES, day.device, "600"]
                started.append(subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": day.path}))
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
    names = ("trials that do not name an intruder", "verdicts that an intruder did not spoil")
    with planted(day) as started:
        words = (*BOTH, "--scenario", "synthetic", *day.models("resnet50"), *day.steps(1000, 100), "--blocks", "2")
        records = day.run("G", *words)
        if not started or started[0].poll() is not None:
            raise RuntimeError("the intruder was not there to the end of the trials")
    if day.options.rehearse:
        return {"trials beside an intruder": len(records), **dict.fromkeys(names, REHEARSED)}
    missed = sum(not gpu["strangers"] for record in records for gpu in record["resources"]["gpus"])
    stands = [row["verdict"] or not any("on a GPU" in why for why in row["withheld"]) for row in _throughputs(day, "G")]
    return dict(zip(names, (missed, sum(map(bool, stands)) if stands else None), strict=True))


def same_work(day: Day) -> Found:
    """Repeat a trial, to see how far equal trials differ, and a loop with and without TF32."""
    words = ("--target", "bare-metal", "--scenario", "synthetic", *day.models("resnet50"), "--blocks", "3")
    found = about(records := day.run("H", *words, *day.steps(100, 20)))
    losses = [_early_loss(record) for record in records if record["outcome"]["status"] == "ok"]
    spread = (max(losses) - min(losses)) / abs(fmean(losses)) if losses else None
    digests = len({record["weights_sha256"] for record in records})
    yield {**found, "spread of losses of equal trials": spread, "different weights": digests}
    sides = {side: loop(day, side, "resnet50") for side in ("synchronised", "tf32")}
    loss, rate = (tf32 / fp32 for tf32, fp32 in zip(sides["tf32"], sides["synchronised"], strict=True))
    yield {"loss in TF32 / loss in fp32": loss, "speed in TF32 / speed in fp32": rate}


@dataclass(frozen=True)
class Stage:
    """A stage and the seconds that it is expected to take on a GPU, and in a rehearsal."""

    run: Callable[[Day], Found]
    seconds: tuple[int, int]


STAGES = {
    "A": Stage(facts_of_the_machine, (45, 30)),
    "P": Stage(adopted, (55, 30)),
    "B": Stage(models_on_both, (110, 25)),
    "D": Stage(alternating, (180, 40)),
    "T": Stage(truth, (45, 15)),
    "C": Stage(harness, (100, 40)),
    "E": Stage(tuned, (100, 20)),
    "U": Stage(profile_gpu, (150, 40)),
    "R": Stage(other_models_on_both, (180, 25)),
    "F": Stage(several_ways, (240, 60)),
    "H": Stage(same_work, (110, 40)),
    "V": Stage(more_tuned, (150, 20)),
    "W": Stage(more_pairs, (300, 40)),
    "G": Stage(intruders, (290, 50)),
}
"""The stages by what they decide, the most first."""
NEEDED = {"A": (), "P": ()}
"""The stages that need no image; all others need that of P."""
SPARE_S = 20.0
"""What starting, cleaning up and copying the results take of a call."""


def packed(minutes: float) -> tuple[list[str], list[str]]:
    """Return the stages that fit into the minutes of one call on a GPU, by their estimates, and those left out."""
    left_s = 60 * minutes - SPARE_S
    fitting, omitted = list[str](), list[str]()
    for name, stage in STAGES.items():
        if stage.seconds[0] <= left_s:
            left_s -= stage.seconds[0]
            fitting.append(name)
        else:
            omitted.append(name)
    return fitting, omitted


def print_packed() -> None:
    for minutes in (15, 30):
        fitting, omitted = packed(minutes)
        print(f"{minutes} minutes hold {' '.join(fitting)}; left out: {' '.join(omitted) or 'none'}", flush=True)
        for name in omitted:
            print(f"  {name}: {STAGES[name].run.__doc__}", flush=True)


def in_order(day: Day) -> list[str]:
    """Return the stages to run: those never tried first, and then those that failed or were cut off."""
    wanted = [name for name in STAGES if name in day.options.stages]
    tried = [name for name in wanted if name in day.facts and not day.facts[name].get("whole")]
    return [*(name for name in wanted if name not in day.facts), *tried]


def _gpu(**more: object) -> dict[int, dict[str, object]]:
    """Return the answers of the stand-in: driver 580 and one GPU at 100 W."""
    whole: dict[str, object] = {"uuid": "GPU-000000a0", "name": "stand-in", "pci": "00000000:01:00.0"}
    whole |= {"memory": 80 << 30, "capability": "9.0"}
    return {-1: {"driver": "580.0", "cuda": 13000}, 0: {**whole, "power": 100_000, "energy": 0, "mig": 0, **more}}


def _text(value: Any) -> str:  # noqa: ANN401 (pynvml returns bytes or text)
    return value.decode() if isinstance(value, bytes) else str(value)


def _early_loss(record: Facts) -> float:
    """Return the losses of the first ten steps: their mean, summed over the networks."""
    return sum(fmean(values[:10]) for values in record["steps"]["losses"].values())


def libcuda(target: str, digest: str, state: Path, *, rehearse: bool) -> None:
    """Print what cuInit answers inside a target, by /run/nvidia, and the user; a rehearsal plays the library."""
    from provisioning.gpu_driver import collected
    from provisioning.gpus import Edits
    from provisioning.images.image import find, mounted
    from provisioning.layers import container, userland
    from provisioning.nodes import local_node
    from provisioning.targets import Choices, layers
    from scenarios.job import clean_environment
    from suite.interfaces import open_stack
    from suite.job.envelope import GIB, Envelope

    image = find(digest)
    if rehearse:
        os.environ["LD_LIBRARY_PATH"] = str(state / "stub")
        libraries = str(collected(str(state / "driver")))
        edits = Edits((), ((libraries, "/run/nvidia"),), {"LD_LIBRARY_PATH": "/run/nvidia"})
        for module in (userland, container):
            vars(module)["edits_for"] = lambda *_, **__: edits
    else:
        pynvml.nvmlInit()
    gpus = () if rehearse else (_text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))),)
    envelope = Envelope(cpus=tuple(sorted(os.sched_getaffinity(0)))[:2], memory_bytes=8 * GIB, threads=1)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mounted(image, image.tree))
        machine = stack.enter_context(local_node(envelope.cpus, str(image.tree), None, image.python))
        node = stack.enter_context(open_stack(machine, layers(target, Choices(image, "runc", "tcg", gpus), envelope)))
        print(node.run([*clean_environment(1, "reference", **node.variables), node.python[0], "-c", LIBCUDA]).stdout)


def rehearsal(options: argparse.Namespace) -> dict[str, str]:
    """Build the stand-ins and load NVML's into this process; return the variables that give it to others."""
    stub = options.state / "stub"
    shutil.rmtree(stub, ignore_errors=True)
    stub.mkdir()
    (stub / "cuda.c").write_text(STUB)
    library = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.580.0", "cuda.c"]
    subprocess.run([str(shutil.which("gcc")), *library], check=True, cwd=stub)
    (stub / "libcuda.so.1").symlink_to("libcuda.so.580.0")
    options.nvml = Nvml(stub)
    options.nvml.load()
    os.environ["NVML_ANSWERS"] = str(options.nvml.answers)
    options.nvml.answer(_gpu())
    return {"NVML_ANSWERS": str(options.nvml.answers), "LD_LIBRARY_PATH": str(stub)}


def judged(day: Day, stage: str) -> dict[str, bool]:
    """Return whether each bounded fact of a stage is inside of its bounds."""
    bounded = {name: value for name, value in day.facts[stage].items() if name in BOUNDS and value != REHEARSED}
    bounds = {name: BOUNDS[name] for name in bounded if not day.options.rehearse or BOUNDS[name][1] == 0}
    return {name: bounded[name] is not None and low <= bounded[name] <= high for name, (low, high) in bounds.items()}


def keep(day: Day) -> None:
    """Write the facts so far: the state for a later call, and what goes back."""
    text = json.dumps({"rehearsal": day.options.rehearse, "bounds": BOUNDS, "stages": day.facts}, indent=1, default=str)
    for directory in (day.options.state, day.options.out):
        new = directory / "facts.json.new"
        new.write_text(text)
        new.replace(directory / "facts.json")


def write(day: Day) -> None:
    """Write what was found so far, with a summary and the records."""
    keep(day)
    lines = ["# GPU day" + (" (a rehearsal: no number means anything)" if day.options.rehearse else ""), ""]
    for name, facts in day.facts.items():
        title = str(STAGES[name].run.__doc__)
        error = f" FAILED: {facts['error']}" if "error" in facts else ""
        lines.append(f"- **{name}** ({facts['took_s']:.0f} s) {title}{error}")
        for bound, inside in judged(day, name).items():
            lines.append(f"  - {'ok' if inside else 'NOT OK'}: {bound} = {facts[bound]}, bounds {BOUNDS[bound]}")
        lines += [f"  - {bound}: {REHEARSED}" for bound, value in facts.items() if value == REHEARSED]
    (day.options.out / "summary.md").write_text("\n".join(lines) + "\n")
    with tarfile.open(day.options.out / "records.tar.gz", "w:gz") as archive:
        for pattern in ("runs/*/*.json", "runs/*/trials/*.json"):
            for path in sorted(day.options.state.glob(pattern)):
                archive.add(path, path.relative_to(day.options.state))


def take(day: Day, name: str) -> None:
    """Run a stage, and write each of its facts as it comes."""
    begin_s = time.monotonic()
    facts = day.facts[name] = {}
    try:
        for part in STAGES[name].run(day):
            facts |= {**part, "took_s": time.monotonic() - begin_s}
            keep(day)
        facts["whole"] = True
    except Exception as error:  # noqa: BLE001 (a stage that fails must not end the day)
        facts["error"] = f"{type(error).__name__}: {error}"
    facts["took_s"] = time.monotonic() - begin_s
    write(day)


def main() -> None:
    options = parse()
    if options.libcuda:
        libcuda(options.libcuda, options.image, options.state, rehearse=options.rehearse)
        return
    for directory in (options.state, options.out):
        directory.mkdir(parents=True, exist_ok=True)
    kept = options.state / "facts.json"
    earlier = json.loads(kept.read_text()) if kept.exists() else {"rehearsal": options.rehearse, "stages": {}}
    if earlier["rehearsal"] != options.rehearse:
        sys.exit(
            f"{options.state} is of {'a rehearsal' if earlier['rehearsal'] else 'a GPU day'}: name another directory"
        )
    if options.rehearse:
        print_packed()
    day = Day(options, time.monotonic() + 60 * options.minutes, earlier["stages"])
    day.variables = rehearsal(options) if options.rehearse else {}
    pynvml.nvmlInit()
    for name in in_order(day):
        if name not in NEEDED and "image" not in day.facts.get("P", {}):
            continue
        if STAGES[name].seconds[options.rehearse] > day.left_s:
            print(f"{name} is left for the next call: {day.left_s:.0f} s are left", flush=True)
            continue
        take(day, name)
    day.program(str(REPOSITORY / "cli.py"), "clean", timeout_s=60.0)
    if (summary := options.out / "summary.md").exists():
        print(summary.read_text())
    sys.exit(any("error" in facts or not all(judged(day, name).values()) for name, facts in day.facts.items()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=14.0, help="the time of this call (default %(default)s)")
    parser.add_argument("--state", type=Path, required=True, help="the directory of what a later call goes on with")
    parser.add_argument("--out", type=Path, help="the directory of what goes back")
    parser.add_argument("--stages", default="".join(STAGES), help="the stages to run (default %(default)s)")
    parser.add_argument("--site", dest="sites", type=Path, action="append", help="a directory of Python packages")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU with stand-ins for the driver")
    parser.add_argument("--libcuda", help=argparse.SUPPRESS)
    parser.add_argument("--image", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sites = options.sites or [Path(sysconfig.get_path("purelib"))]
    options.state = options.state.absolute()
    options.out = (options.out or options.state / "out").absolute()
    return options


if __name__ == "__main__":
    main()
