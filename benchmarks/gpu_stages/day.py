"""A GPU day while it goes on: what was found so far, and how its stages run the suite."""

import argparse
import contextlib
import ctypes
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

REPOSITORY = Path(__file__).parents[2]
REHEARSED = "rehearsed: it takes a GPU"
LEAST_S = 10.0
"""What a program may take that a stage begins with its last seconds."""
UNDONE_WITHIN_S = 40.0
"""How long a program that is ended may take to undo what it began."""
_PR_SET_PDEATHSIG = 1
BOTH = ("--target", "bare-metal", "--target", "container")
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
    stage_end_s: float = math.inf
    """When the stage that runs is cut off, so that others have their turn."""

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

    @property
    def path(self) -> str:
        places = [str(REPOSITORY), *map(str, self.options.sites), os.environ.get("PYTHONPATH")]
        return os.pathsep.join(filter(None, places))

    def program(self, *argv: str, timeout_s: float | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a program of this Python to its end; its output goes to the log, too.

        It ends with this process. Raises TimeoutExpired once the time of its stage, or of the call, is over.
        """
        limit_s = timeout_s or max(LEAST_S, min(self.left_s, self.stage_end_s - time.monotonic()))
        variables = {"PYTHONPATH": self.path, "VIRTBENCH_HOME": str(self.options.state / "home"), **self.variables}
        with (self.options.out / "log").open("a") as log:
            print("$", *(word if len(word) < 200 else "..." for word in argv), file=log, flush=True)
            process = subprocess.Popen(
                [sys.executable, *argv],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **variables},
                preexec_fn=_ends_with_its_parent,
            )
            try:
                outputs = process.communicate(timeout=limit_s)
            except BaseException:
                print(*_ended(process), file=log)
                raise
            print(*outputs, file=log)
        return subprocess.CompletedProcess(argv, process.returncode, *outputs)

    def bench(self, *words: str) -> str:
        ended = self.program(str(REPOSITORY / "cli.py"), *words)
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"bench {' '.join(words[:2])}: {ended.stderr.strip()[-500:]}")
        return ended.stdout

    def run(self, name: str, *words: str) -> list[Facts]:
        """Run the suite, one block unless words say more, and return its records; a run that was cut off goes on.

        A rehearsal is as small as it can be.
        """
        if self.options.rehearse:
            sizes: tuple[str, ...] = ("--profile", "smoke")
        else:
            sizes = ("--profile", "paper", "--memory", f"{self.memory_gib}G", "--gpus", "0")
        image = ("--image", str(self.facts["P"]["image"]), "--device", self.device, "--wait")
        engine = ("--engine", "runc") if "container" in words else ()
        where = ("--out", str(self.options.state / "runs" / name), "--blocks", "1")
        self.bench("run", *engine, *image, *where, *sizes, *words)
        return self.kept(name)

    def kept(self, name: str) -> list[Facts]:
        trials = (self.options.state / "runs" / name).glob("trials/*.json")
        return [json.loads(path.read_text()) for path in sorted(trials)]

    def throughputs(self, name: str) -> list[dict[str, Any]]:
        """Return how the container's throughput compares with bare metal's in a run, by model."""
        rows = json.loads(self.bench("compare", str(self.options.state / "runs" / name), "--json"))["rows"]
        wanted = ("target", "container", "throughput")
        return [row for row in rows if (row["kind"], row["target"], row["metric"]) == wanted]

    def models(self, *names: str) -> list[str]:
        return [word for name in (("gan",) if self.options.rehearse else names) for word in ("--model", name)]

    def steps(self, count: int, warmup: int) -> tuple[str, ...]:
        if self.options.rehearse:
            return "--steps", "2", "--warmup-steps", "0"
        return "--steps", str(count), "--warmup-steps", str(warmup)

    @contextlib.contextmanager
    def answering(self, pid: int) -> Iterator[None]:
        """Let the stand-in of a rehearsal count 100 W and show a process; a real GPU answers for itself."""
        if not self.options.rehearse:
            yield
            return
        ended = threading.Event()
        begin_s = time.monotonic()

        def play() -> None:
            while not ended.wait(0.01):
                joules = 100 * (time.monotonic() - begin_s)
                self.options.nvml.answer(stand_in(energy=int(1000 * joules), compute=pid))

        player = threading.Thread(target=play)
        player.start()
        time.sleep(0.1)
        try:
            yield
        finally:
            ended.set()
            player.join()


def _ends_with_its_parent() -> None:
    """Let the kernel end this process, which undoes what it began, once the day is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _ended(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """End a program that undoes what it began, and return its output."""
    process.terminate()
    try:
        return process.communicate(timeout=UNDONE_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def stand_in(**more: object) -> dict[int, dict[str, object]]:
    """Return the answers of the stand-in for NVML: driver 580 and one GPU at 100 W."""
    whole: dict[str, object] = {"uuid": "GPU-000000a0", "name": "stand-in", "pci": "00000000:01:00.0"}
    whole |= {"memory": 80 << 30, "capability": "9.0"}
    return {-1: {"driver": "580.0", "cuda": 13000}, 0: {**whole, "power": 100_000, "energy": 0, "mig": 0, **more}}


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


def early_loss(record: Facts) -> float:
    """Return the losses of the first ten steps: their mean, summed over the networks."""
    return sum(fmean(values[:10]) for values in record["steps"]["losses"].values())


def ratio(own: Sequence[float], base: Sequence[float]) -> float:
    return math.exp(fmean(math.log(one / other) for one, other in zip(own, base, strict=True)))


def text_of(value: bytes | str) -> str:
    """Return an answer of pynvml's, which is bytes or text."""
    return value.decode() if isinstance(value, bytes) else value
