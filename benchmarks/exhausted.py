"""Run benches where something is exhausted or jumps, and look for tracebacks, silence, and what is left behind.

space        results, home or TMPDIR, each on 64 MiB, have no byte left: from the beginning, or from a moment on
descriptors  the process may open 16 to 128 files
clock        the time of day jumps by an hour, forth or back, while bench runs (gcc makes the library that plays it)

Counted as wrong is an exit code other than 0, 1 and 2, a traceback, a failure without a sentence, what is left after
``bench clean``, and a command that fails once the cause is gone; and, for a clock, any failure at all. Needs root and
an image.

    python benchmarks/exhausted.py --kind space --kind clock
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parts.kills_machine import Family, forgotten, own_place
from parts.kills_runs import SMALL, SWEEP, run_to_keep

from provisioning.paths import home
from suite.results.store import PLAN

SPACE = "64m"
MEANWHILE_S = 4.0
DESCRIPTORS = (16, 32, 64, 128)
JUMPS_S = (3600, -3600)
WITHIN_S = 300.0
WORKS, FAILS = (0,), (0, 1, 2)
RUN = ("run", "--scenario", "synthetic", "--model", "gan", *SMALL, "--target", "bare-metal", "--profile", "smoke")
BLOCKS = ("--blocks", "2", "--warmup-blocks", "0", "--concurrent")
SHIFTED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
int clock_gettime(clockid_t id, struct timespec *now) {
    struct timespec up;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    real(CLOCK_MONOTONIC, &up);
    if (id == CLOCK_REALTIME && getenv("JUMP_AT_S") && up.tv_sec >= atol(getenv("JUMP_AT_S")))
        now->tv_sec += atol(getenv("JUMP_S"));
    return status;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@dataclass
class Case:
    """A command under a condition, and what was wrong."""

    name: str
    status: int = 0
    said: str = ""
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        last = " / ".join(self.said.strip().splitlines()[-2:])[-240:]
        return f"{self.name}: {self.status}, {'; '.join(self.findings) or 'well'} ({last})"


class Bench:
    """Runs bench commands of one place, and judges them."""

    def __init__(self, program: Sequence[str], place: Path, family: Family) -> None:
        self.program, self.place, self.family = program, place, family
        self.cases: list[Case] = []

    def commands(self, results: Path, retries: int = 1) -> dict[str, list[str]]:
        """Return the commands that write to a directory of results, or read the finished run.

        A trial of a sweep that has failed for want of space stays failed until there are more ``retries``.
        """
        plan = SWEEP.replace("blocks = 6", "blocks = 1").replace("retries = 20", f"retries = {retries}")
        (self.place / "plan.toml").write_text(plan)
        again = ["--repeat-failed"] if (results / "run" / PLAN).exists() else []
        return {
            "run": [*RUN, *BLOCKS, *again, "--out", str(results / "run")],
            "sweep": ["sweep", "run", str(self.place / "plan.toml"), "--concurrent", "--out", str(results / "sweep")],
            "report": ["report", str(results / "finished"), "--html", str(results / "report.html")],
            "compare": ["compare", str(results / "finished")],
            "export": ["results", "export", str(results / "finished"), "--out", str(results / "trials.csv")],
            "pack": ["results", "pack", str(results / "finished"), "--out", str(results / "runs.tar.gz")],
        }

    def judge(
        self,
        name: str,
        words: Sequence[str],
        expected: Sequence[int] = FAILS,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], object] | None = None,
    ) -> Case:
        """Run a command to its end, and note what is wrong with it."""
        done = subprocess.run(
            [*self.program, *words],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            preexec_fn=before,
            timeout=WITHIN_S,
        )
        case = Case(name, done.returncode, done.stdout.decode(errors="replace"))
        if case.status not in expected:
            case.findings.append(f"ended with {case.status}: {case.said[-1500:]}")
        if "Traceback" in case.said:
            case.findings.append(f"a traceback: {case.said[-1500:]}")
        if case.status and not case.said.strip():
            case.findings.append("failed in silence")
        self.cases.append(case)
        return case

    def clean(self, case: Case) -> None:
        """Run ``bench clean``, and note what is left after it."""
        self.family.bury()
        cleaned = self.judge(f"{case.name}, clean", ["clean"], WORKS)
        case.findings += cleaned.findings
        case.findings += [f"left: {each}" for each in forgotten()]
        case.findings += [f"left: process {each.pid} ({each.name()})" for each in self.family.members()]
        print(case, flush=True)


@contextmanager
def small(directory: Path) -> Iterator[None]:
    """Mount 64 MiB of memory on a directory, with what it holds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as aside:
        shutil.copytree(directory, Path(aside, "content"), symlinks=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SPACE},mode=755", "tmpfs", str(directory)], check=True)
        try:
            shutil.copytree(Path(aside, "content"), directory, symlinks=True, dirs_exist_ok=True)
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Leave no byte in a directory; return the file that takes them."""
    path = directory / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    return path


def space(bench: Bench) -> None:
    """Fill the results, the home and TMPDIR, before each command or meanwhile."""
    results = bench.place / "results"
    (home() / "images").rename(bench.place / "images")  # they are larger than 64 MiB, and may be elsewhere
    (home() / "images").symlink_to(bench.place / "images")
    places = {"results": results, "home": home(), "tmp": Path(os.environ["TMPDIR"])}
    for what, directory in places.items():
        for after_s in (0.0, MEANWHILE_S):
            results.mkdir(exist_ok=True)
            shutil.copytree(bench.place / "finished/run", results / "finished", dirs_exist_ok=True)
            with small(directory):
                for name, words in bench.commands(results).items():
                    full = threading.Timer(after_s, fill, [directory])
                    full.start()
                    if not after_s:
                        full.join()
                    case = bench.judge(f"{what} full after {after_s:g} s: {name}", words)
                    full.join()
                    if what == "home":  # what is left is removed when there is space again, if not before
                        bench.judge(f"{case.name}, clean while it is full", ["clean"])
                    (directory / "filler").unlink(missing_ok=True)
                    bench.clean(case)
                    words = bench.commands(results, retries=2)[name]
                    again = bench.judge(f"{case.name}, again with space", words, WORKS)
                    bench.clean(again)
            shutil.rmtree(results)


def descriptors(bench: Bench) -> None:
    """Allow few open files to each command."""
    results = bench.place / "results"
    results.mkdir(exist_ok=True)
    shutil.copytree(bench.place / "finished/run", results / "finished", dirs_exist_ok=True)
    for most in DESCRIPTORS:
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (most, most))
        for name, words in bench.commands(results).items():
            bench.clean(bench.judge(f"{most} descriptors: {name}", words, before=limit))
    for name, words in bench.commands(results, retries=2).items():
        bench.clean(bench.judge(f"as many descriptors as usual: {name}", words, WORKS))
    shutil.rmtree(results)


def clock(bench: Bench) -> None:
    """Let the time of day jump while each command runs; it works as ever, and its records pass the audit."""
    library, source = bench.place / "shifted.so", bench.place / "shifted.c"
    source.write_text(SHIFTED)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    for jump_s in JUMPS_S:
        results = bench.place / "results"
        results.mkdir(exist_ok=True)
        shutil.copytree(bench.place / "finished/run", results / "finished", dirs_exist_ok=True)
        for name, words in bench.commands(results).items():
            at_s = int(time.monotonic() + MEANWHILE_S)
            jump = {"LD_PRELOAD": str(library), "JUMP_AT_S": str(at_s), "JUMP_S": str(jump_s)}
            case = bench.judge(f"the clock jumps by {jump_s} s: {name}", words, WORKS, jump)
            case.findings += [f"the record {line}" for line in implausible(results)]
            bench.clean(case)
        bench.judge(f"the clock has jumped by {jump_s} s: audit", ["audit", str(results / "run")], WORKS)
        shutil.rmtree(results)


def implausible(results: Path) -> Iterator[str]:
    """Yield the records of trials whose time no job here takes."""
    for path in results.glob("**/trials/*.json"):
        record = json.loads(path.read_text())
        elapsed_s = record.get("elapsed_s") or 0.0
        if not 0 <= elapsed_s < WITHIN_S:
            yield f"{path.name} took {elapsed_s} s"


KINDS: dict[str, Callable[[Bench], None]] = {"space": space, "descriptors": descriptors, "clock": clock}


def exhaust(program: Sequence[str], kinds: Sequence[str]) -> list[Case]:
    """Run every command under these conditions; return all cases."""
    with own_place() as place, Family() as family:
        bench = Bench(program, place, family)
        prepared = bench.judge("prepare", run_to_keep(place), WORKS)
        if prepared.findings:
            sys.exit(str(prepared))
        for kind in kinds:
            KINDS[kind](bench)
    return bench.cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", action="append", choices=KINDS, help="repeatable (default: all)")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    options = parser.parse_args()
    cases = exhaust(options.bench.split(), options.kind or [*KINDS])
    wrong = [case for case in cases if case.findings]
    print("\n".join(map(str, wrong)))
    print(f"{len(cases)} commands, {len(wrong)} of them wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
