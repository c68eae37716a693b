"""Kill parts of running benches at random moments, and look for anything that is lost, torn or left behind.

The scenarios run on every target that this machine carries. ``kill -9`` hits the suite, the worker, process 1 of the
container, its monitor or engine (conmon, podman, runc), QEMU, or ssh. After each, ``bench clean`` runs. Counted as

lost    that a whole record is gone or has changed (of a block in turns: that fewer are ok), or that the same command
        does not go on;
torn    that a file is no record, that ``bench audit`` refuses one, or that a traceback or a mistake was recorded;
left    that a process, control group, namespace, mount, container, directory, file or ledger entry is still there.

A setting keeps one directory, so each run continues one that was killed; in the end all are brought to their ends. Only
descendants of this script are killed, and other benches of this machine are left alone. Needs root and an image.

    python benchmarks/kills.py --kills 100 --seed 1 --json kills.json
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import psutil
from parts.kills_machine import Family, entries, left
from parts.kills_runs import SCENARIOS, TARGETS, Setting, drawn, settings

from provisioning.ledger import LedgerEntry

ENDS_WITHIN_S = 600.0


@dataclass
class Kill:
    """One kill, and what was found after it."""

    setting: str
    victim: str
    after_s: float
    killed: bool = False
    """False where the run ended before, or the victim never lived."""
    records: int = 0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        what = f"kill -9 {self.victim}" if self.killed else f"no {self.victim}"
        found = "; ".join(self.findings) or "nothing lost, torn or left"
        return f"{self.setting}: {what} after {self.after_s:.1f} s, {self.records} whole records: {found}"


class Killer:
    """Starts benches, kills parts of them, and looks at what is left."""

    def __init__(self, bench: Sequence[str], chance: random.Random, family: Family) -> None:
        self.bench, self.chance, self.family = bench, chance, family

    def kill_once(self, setting: Setting, victim: str) -> Kill:
        """Start the run, or go on with it; kill the victim at a random moment, and look at what that did."""
        kill = Kill(setting.name, victim, self.chance.uniform(0, setting.span_s))
        before, made = setting.kept(), dict[str, LedgerEntry]()
        with self._bench(setting.words) as (process, said):
            began = time.monotonic()
            while process.poll() is None and not kill.killed:
                made |= self._look(process)
                if time.monotonic() - began >= kill.after_s:
                    kill.killed = self._kill(process, victim)
            kill.after_s, known = time.monotonic() - began, setting.files()
            while process.poll() is None and setting.files() == known and time.monotonic() - began < ENDS_WITHIN_S:
                made |= self._look(process)
            if process.poll() is None:  # the trial has become a record: the rest is for later runs
                process.send_signal(signal.SIGINT)
            status = self._ended(process)
            # What is killed while the machine is looked at may make bench refuse the run: nothing was begun then.
            if (status == 2 and not kill.killed) or "Traceback" in said():
                kill.findings.append(f"torn: bench ended with {status}: {said()}")
        if status == 0:
            setting.blocks, setting.span_s = setting.blocks + 1, kill.after_s
        kill.findings += self._inspect(setting, before)
        kill.findings += [f"left: {each}" for each in left(process.pid, made.values())]
        kill.findings += [f"left: process {each.pid} ({each.name()})" for each in self.family.members()]
        kill.records = len(setting.kept())
        return kill

    def complete(self, setting: Setting) -> list[str]:
        """Bring the run to its end by the same command; return what is wrong with it then."""
        before = setting.kept()
        with self._bench(setting.words) as (process, said):
            ended = [f"lost: {setting.name} does not go on: {said()}"] if self._ended(process) else []
        return ended + self._inspect(setting, before)

    def _inspect(self, setting: Setting, before: dict[Path, bytes]) -> list[str]:
        found: list[str] = []
        for words in (["clean"], *([["audit", str(setting.out)]] if setting.files() else [])):
            with self._bench(words) as (process, said):
                if status := self._ended(process):
                    found.append(f"torn: bench {words[0]} ended with {status}: {said()}")
        found += [f"lost: {path}" for path in setting.lost(before)]
        return [*found, *setting.torn(), *(f"left: {path}" for path in setting.out.rglob(".virtbench.*.tmp"))]

    @contextmanager
    def _bench(self, words: Sequence[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
        """Start a bench; yield it, and what returns the end of what it has said. It ends with the context."""

        def said() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")[-2000:]

        with tempfile.TemporaryFile() as log:
            argv = [*self.bench, *words]
            process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                yield process, said
            finally:
                process.kill()
                process.wait()

    def _look(self, process: "subprocess.Popen[bytes]") -> dict[str, LedgerEntry]:
        """Wait a moment; return what the bench has in the ledger."""
        time.sleep(0.02)
        self.family.bury(process.pid)
        return entries(process.pid)

    def _kill(self, process: "subprocess.Popen[bytes]", victim: str) -> bool:
        with suppress(psutil.NoSuchProcess, IndexError):
            found = [psutil.Process(process.pid)] if victim == "suite" else self.family.victims(victim)
            self.chance.choice(found).kill()
            return True
        return False

    def _ended(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for its end, and return its exit status; kill it after a long time."""
        deadline = time.monotonic() + ENDS_WITHIN_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            self._look(process)
        return process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of settings, victims and moments")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="repeatable (default: all)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable (default: all)")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no bench outlives this
    chance = random.Random(options.seed)  # noqa: S311 - moments, no secrets
    with tempfile.TemporaryDirectory(prefix="kills-") as place, Family() as family:
        among = settings(Path(place), options.scenario or [*SCENARIOS], options.target or [*TARGETS])
        make = ["data", "make", "--images", "64", "--size", "small", "--classes", "8", "--out", f"{place}/data"]
        subprocess.run([*options.bench.split(), *make], check=True)
        killer, kills = Killer(options.bench.split(), chance, family), list[Kill]()
        for number, (setting, victim) in enumerate(islice(drawn(among, chance), options.kills), 1):
            kills.append(killer.kill_once(setting, victim))
            print(f"{number:4} {kills[-1]}", flush=True)
        unfinished = [each for setting in among if setting.out.exists() for each in killer.complete(setting)]
    found = [each for kill in kills for each in kill.findings] + unfinished
    done = sum(kill.killed for kill in kills)
    print("\n".join([*unfinished, f"{done} of {len(kills)} were killed (seed {options.seed}): {len(found)} findings"]))
    if options.json:
        told = {"seed": options.seed, "kills": [asdict(kill) for kill in kills], "unfinished": unfinished}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
