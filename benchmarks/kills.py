"""Kill parts of running benches at random moments, and look for anything that is lost, torn or left behind.

The scenarios run on every target that this machine carries; sweeps, comparisons, reports, pages and services run, too.
``kill -9`` hits the suite, the worker, process 1 of the container, its monitor or engine (conmon, podman, runc), QEMU,
or ssh. The suite also gets SIGINT twice, and SIGSTOP with SIGCONT after a while. After each, ``bench clean`` runs.
Counted as

lost    that a whole record is gone or has changed (of a block in turns: that fewer are ok), or that the same command
        does not go on;
torn    that a file is no record, that ``bench audit`` refuses one, or that a traceback or a mistake was recorded;
left    that a process, control group, namespace, mount, container, directory, file or ledger entry is still there,
        also in the home and in TMPDIR, which are this script's own.

What was left before ``bench clean`` is counted, too. A setting keeps one directory, so each run continues one that was
killed; in the end all are brought to their ends. Only descendants of this script are killed, and other benches of this
machine are left alone. Needs root and an image.

    python benchmarks/kills.py --kills 100 --seed 1 --json kills.json
"""

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from parts.kills_machine import Family, entries, forgotten, left, own_place
from parts.kills_runs import COMMANDS, SCENARIOS, TARGETS, Command, Setting, drawn, run_to_keep, settings

from provisioning.ledger import LedgerEntry

ENDS_WITHIN_S = 600.0
HALTED_S = 2.0
ENDED_BY_INTERRUPTION = (0, 130)
"""The exit codes of a command that was interrupted: pages and services end well."""


@dataclass
class Kill:
    """One kill, and what was found after it."""

    setting: str
    victim: str
    after_s: float
    killed: bool = False
    """False where the run ended before, or the victim never lived."""
    status: int = 0
    """The exit status of bench, negative for a signal."""
    records: int = 0
    failed: list[str] = field(default_factory=list)
    """The kinds of the failures in the records that are no whole ones: what was hit, and not torn."""
    before_clean: list[str] = field(default_factory=list)
    """What was left before ``bench clean``: no finding."""
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        what = f"{self.victim} hit" if self.killed else f"no {self.victim}: ended with {self.status}"
        found = "; ".join(self.findings) or "nothing lost, torn or left"
        before = f"{len(self.before_clean)} things before clean"
        records = ", ".join([f"{self.records} whole records", *(f"one failed ({kind})" for kind in self.failed)])
        return f"{self.setting}: {what} after {self.after_s:.1f} s, {records}, {before}: {found}"


class Killer:
    """Starts benches, kills parts of them, and looks at what is left."""

    def __init__(self, bench: Sequence[str], chance: random.Random, family: Family) -> None:
        self.bench, self.chance, self.family = bench, chance, family

    def kill_once(self, setting: Setting, victim: str) -> Kill:
        """Start the command, or go on with it; hit the victim at a random moment, and look at what that did."""
        kill = Kill(setting.name, victim, self.chance.uniform(0, setting.span_s))
        before, made = setting.kept(), dict[str, LedgerEntry]()
        with self._bench(setting.words) as (process, said):
            kill.killed = self._hit(process, victim, kill.after_s, made, said)
            self._await_next_record(process, setting, made)
            if process.poll() is None:  # the trial has become a record: the rest is for later runs
                process.send_signal(signal.SIGINT)
            kill.status = self._ended(process, made)
            # What is killed while the machine is looked at may make bench refuse the run: nothing was begun then.
            if (kill.status == 2 and not kill.killed) or "Traceback" in said():
                kill.findings.append(f"torn: bench ended with {kill.status}: {said()}")
            if victim == "interrupted twice" and kill.killed and kill.status not in ENDED_BY_INTERRUPTION:
                kill.findings.append(f"torn: bench ended with {kill.status} by SIGINT: {said()}")
        if kill.status == 0:
            setting.blocks += 1
            setting.span_s = max(kill.after_s, 3.0)
        kill.before_clean = [*self._left(process.pid, made), *forgotten()]
        kill.findings += self._inspect(setting, before)
        kill.findings += [f"left: {each}" for each in (*self._left(process.pid, made), *forgotten())]
        kill.records = len(setting.kept())
        kill.failed = setting.failed()
        return kill

    def complete(self, setting: Setting) -> list[str]:
        """Bring the run to its end by the same command; return what is wrong with it then."""
        before = setting.kept()
        with self._bench(setting.words) as (process, said):
            ended = [f"lost: {setting.name} does not go on: {said()}"] if self._ended(process, {}) else []
        return ended + self._inspect(setting, before)

    def prepare(self, words: Sequence[str]) -> None:
        """Run bench to its end. Raises SystemExit if it fails."""
        with self._bench(words) as (process, said):
            if status := self._ended(process, {}):
                sys.exit(f"bench {' '.join(words)} ended with {status}: {said()}")

    def _left(self, pid: int, made: dict[str, LedgerEntry]) -> list[str]:
        processes = [f"process {each.pid} ({each.name()})" for each in self.family.members()]
        return [*left(pid, made.values()), *processes]

    def _inspect(self, setting: Setting, before: dict[Path, bytes]) -> list[str]:
        found: list[str] = []
        for words in (["clean"], *([["audit", str(setting.out)]] if setting.files() else [])):
            with self._bench(words) as (process, said):
                if status := self._ended(process, {}):
                    found.append(f"torn: bench {words[0]} ended with {status}: {said()}")
        found += [f"lost: {path}" for path in setting.lost(before)]
        return [*found, *setting.torn(), *(f"left: {path}" for path in setting.out.rglob(".virtbench*.tmp"))]

    @contextmanager
    def _bench(self, words: Sequence[str]) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
        """Start a bench; yield it, and what returns the end of what it has said. It ends with the context."""

        def said() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")[-2000:]

        with tempfile.TemporaryFile(dir="/var/tmp") as log:
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

    def _hit(
        self,
        process: "subprocess.Popen[bytes]",
        victim: str,
        after_s: float,
        made: dict[str, LedgerEntry],
        said: Callable[[], str],
    ) -> bool:
        """Hit the victim once it is there after so many seconds; return whether it was."""
        asking = None
        begun_s = time.monotonic()
        while process.poll() is None:
            made |= self._look(process)
            address = re.search(r"http://\S+", said()) if asking is None else None
            if address:
                asking = threading.Thread(target=ask, args=(address[0], process), daemon=True)
                asking.start()
                begun_s = time.monotonic()
            # Python itself ends by a SIGINT that comes before the suite can.
            is_up = bool(made or said()) or victim != "interrupted twice"
            if time.monotonic() - begun_s >= after_s and is_up and self._is_hit(process, victim):
                return True
        return False

    def _is_hit(self, process: "subprocess.Popen[bytes]", victim: str) -> bool:
        if victim == "interrupted twice":
            process.send_signal(signal.SIGINT)
            time.sleep(self.chance.uniform(0, 0.5))
            process.send_signal(signal.SIGINT)
            return True
        if victim == "halted":
            process.send_signal(signal.SIGSTOP)
            time.sleep(HALTED_S)
            process.send_signal(signal.SIGCONT)
            return True
        with suppress(psutil.NoSuchProcess, IndexError):
            found = [psutil.Process(process.pid)] if victim == "suite" else self.family.victims(victim)
            self.chance.choice(found).kill()
            return True
        return False

    def _await_next_record(
        self, process: "subprocess.Popen[bytes]", setting: Setting, made: dict[str, LedgerEntry]
    ) -> None:
        """Wait until the command has ended or has written another record; a service is given a second."""
        known, begun_s = setting.files(), time.monotonic()
        within_s = 1.0 if setting.endless else ENDS_WITHIN_S
        while process.poll() is None and setting.files() == known and time.monotonic() - begun_s < within_s:
            made |= self._look(process)

    def _ended(self, process: "subprocess.Popen[bytes]", made: dict[str, LedgerEntry]) -> int:
        """Wait for its end, and return its exit status; kill it after a long time."""
        deadline = time.monotonic() + ENDS_WITHIN_S
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            made |= self._look(process)
        return process.wait()


def ask(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Ask pages or a service for what takes them longest, until they have ended."""
    place = urlsplit(address)
    body = json.dumps({"dataset": "synthetic", "model": "gan"})
    while process.poll() is None:
        with suppress(OSError, HTTPException), closing(HTTPConnection(place.netloc, timeout=10)) as peer:
            if not place.query:
                peer.request("POST", "/generate", body)
                peer.getresponse().read()
                continue
            peer.request("GET", f"{place.path}?{place.query}")
            welcome = peer.getresponse()
            welcome.read()
            cookie = str(welcome.headers["Set-Cookie"]).partition(";")[0]
            for page in ("runs/run", "compare?run=run", ""):
                peer.request("GET", place.path + page, headers={"Cookie": cookie})
                peer.getresponse().read()
        time.sleep(0.05)


def chosen(place: Path, options: argparse.Namespace) -> list[Setting]:
    """Return the settings that the options name; all scenarios and commands if they name neither."""
    names_none = not options.scenario and not options.command
    scenarios = [*SCENARIOS] if names_none else options.scenario or []
    commands = [*COMMANDS] if names_none else options.command or []
    among = settings(place, scenarios, options.target or [*TARGETS])
    if options.engine:
        among = [setting for setting in among if setting.engine in (None, *options.engine)]
    return among + [Command(name, "", None, place, port=20_000 + number) for number, name in enumerate(commands)]


def kill(options: argparse.Namespace) -> tuple[list[Kill], list[str]]:
    """Kill as often as the options say; return the kills, and what was wrong when all were brought to their ends."""
    chance = random.Random(options.seed)  # noqa: S311 - moments, no secrets
    with own_place() as place, Family() as family, ExitStack() as stack:
        killer, kills = Killer(options.bench.split(), chance, family), list[Kill]()
        stack.callback(killer.prepare, ["clean"])  # also after Ctrl-C: the home goes then, with its ledger
        killer.prepare(
            ["data", "make", "--images", "64", "--size", "small", "--classes", "8", "--out", f"{place}/data"]
        )
        killer.prepare(run_to_keep(place))
        among = chosen(place, options)
        for number, (setting, victim) in enumerate(islice(drawn(among, chance, options.victim), options.kills), 1):
            kills.append(killer.kill_once(setting, victim))
            print(f"{number:4} {kills[-1]}", flush=True)
            write(options, kills)  # what a later one ends stays
        begun = [setting for setting in among if setting.out.exists() and not setting.endless]
        unfinished = [each for setting in begun for each in killer.complete(setting)]
    return kills, unfinished


def write(options: argparse.Namespace, kills: Sequence[Kill], unfinished: Sequence[str] = ()) -> None:
    """Write the results so far, if they are wanted."""
    if options.json:
        told = {"seed": options.seed, "kills": [asdict(one) for one in kills], "unfinished": [*unfinished]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of settings, victims and moments")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="repeatable")
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable (default: all)")
    parser.add_argument("--engine", action="append", help="repeatable (default: all)")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="repeatable")
    parser.add_argument("--victim", action="append", default=[], help="repeatable (default: all), such as halted")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser.parse_args(words)


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no bench outlives this
    kills, unfinished = kill(options)
    found = [each for one in kills for each in one.findings] + unfinished
    done = sum(one.killed for one in kills)
    print("\n".join([*unfinished, f"{done} of {len(kills)} were hit (seed {options.seed}): {len(found)} findings"]))
    write(options, kills, unfinished)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
