"""Press Ctrl-C in the terminal of a running bench at moments of every phase, and look for what is left behind.

In a terminal the key reaches all programs of the foreground, and not bench alone: clients of engines and hypervisors
must not end by it. One undisturbed run tells the phases of a setting and how long each takes; the moments are then
spread over them, and half of them over the closing, where the key is pressed twice every other time. Counted is

left    that a process, control group, namespace, mount, container, directory or ledger entry is still there which
        the last sentence of bench did not name, or which ``bench clean`` did not remove;
wrong   that bench ended with another exit code than 130 (0 where it had ended before), or with a traceback.

Benches run several at a time, for most of each is waiting. Needs root and an image.

    python benchmarks/interruptions.py --engine podman --moments 40 --times 3
"""

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from parts.kills_machine import Family, entries, left

from provisioning.ledger import LedgerEntry

CTRL_C = b"\x03"
PHASE = re.compile(r" on [a-z-]+: ([a-z -]+[a-z])")
CLOSING, STARTING = "closing", "starting"
ENDS_WITHIN_S = 400.0
BENCH = (sys.executable, str(Path(__file__).parents[1] / "cli.py"))


class AtTerminal:
    """A bench in the foreground of a terminal of its own, and when each of its phases came."""

    def __init__(self, argv: Sequence[str]) -> None:
        keyboard, screen = pty.openpty()
        # An object, for it knows when it is closed: its number may be a pipe of another program by then.
        self._keyboard = os.fdopen(keyboard, "r+b", buffering=0)
        self.said, self.phases = b"", {STARTING: time.monotonic()}
        self.made: dict[str, LedgerEntry] = {}
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        words = ["setsid", "--ctty", *argv]
        self.process = subprocess.Popen(words, stdin=screen, stdout=screen, stderr=screen, env=environment)
        os.close(screen)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self._keyboard, suppress(OSError):  # the other end is closed
            while said := self._keyboard.read(1 << 16):
                self.said += said
                for name in PHASE.findall(self.text()):
                    self.phases.setdefault(name, time.monotonic())

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.said.decode(errors="replace"))

    def look(self) -> bool:
        """Note what it has in the ledger; return whether it runs."""
        self.made |= entries(self.process.pid)
        return self.process.poll() is None

    def press(self) -> None:
        with suppress(OSError, ValueError):  # it has ended, and its terminal is closed
            self._keyboard.write(CTRL_C)


@dataclass
class Moment:
    """A moment to press the key at: a phase, and how long after its begin."""

    phase: str
    after_s: float
    twice: bool
    pressed: bool = False
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        key = "pressed" + (" twice" if self.twice else "") if self.pressed else "ended before"
        return f"{key} {self.after_s:.2f} s into {self.phase}: {'; '.join(self.findings) or 'nothing left'}"


def phases_of(words: Sequence[str]) -> dict[str, float]:
    """Run a bench undisturbed; return its phases, and how many seconds each takes."""
    bench = AtTerminal([*BENCH, *words])
    while bench.look():
        time.sleep(0.02)
    if bench.process.returncode or CLOSING not in bench.phases:
        sys.exit(f"bench {' '.join(words)}: {bench.text()}")
    begins = [*bench.phases.values(), time.monotonic()]
    return {name: begins[n + 1] - begins[n] for n, name in enumerate(bench.phases)}


def spread(phases: dict[str, float], count: int) -> Iterator[Moment]:
    """Yield moments: every other one in the closing, the rest over the other phases in turn, each at even distances."""
    others = [name for name in phases if name != CLOSING]
    for names, share in ([CLOSING], (count + 1) // 2), (others, count // 2):
        for number in range(share):
            name, of = names[number % len(names)], -(-share // len(names))
            yield Moment(name, phases[name] * (number // len(names) + 0.5) / of, twice=number % 2 == 1)


def press_all(words: Sequence[str], moments: Sequence[Moment], family: Family, place: Path) -> None:
    """Run a bench for each moment, all at once, and press the key there; then look at what they left."""
    benches = [AtTerminal([*BENCH, *words, "--out", str(place / f"{id(each)}")]) for each in moments]
    deadline, numbers = time.monotonic() + ENDS_WITHIN_S, [each.process.pid for each in benches]
    while sum([each.look() for each in benches]) and time.monotonic() < deadline:
        for bench, moment in zip(benches, moments, strict=True):
            began_s = bench.phases.get(moment.phase)
            if not moment.pressed and began_s and time.monotonic() - began_s >= moment.after_s:
                moment.pressed = bench.process.poll() is None
                bench.press()
                if moment.twice:
                    threading.Timer(0.1, bench.press).start()
        family.bury(*numbers)
        time.sleep(0.02)  # each look goes through all processes of the machine
    for bench, moment in zip(benches, moments, strict=True):
        moment.findings += _judged(bench, moment)


def _judged(bench: AtTerminal, moment: Moment) -> Iterator[str]:
    status = bench.process.poll()
    # Before its first line bench has no handler yet: Python itself ends by the key, and nothing is made.
    expected = {130} if moment.phase != STARTING else {130, 1, -2}
    if status not in (expected if moment.pressed else {0}) and not (status == 0 and "measured" in bench.text()):
        yield f"wrong: bench ended with {status}: {bench.text()[-300:]}"
    if "Traceback" in bench.text() and moment.phase != STARTING:
        yield f"wrong: {bench.text()[-2000:]}"
    if found := left(bench.process.pid, bench.made.values()):
        told = "bench clean" in bench.text()
        subprocess.run([*BENCH, "clean"], check=False, capture_output=True)
        after = left(bench.process.pid, bench.made.values())
        yield from (f"left: {each}" for each in (after if told else found))


def words_of(target: str, engine: str, more: Sequence[str] = ()) -> list[str]:
    """Return the words of a short run. What a job computes does not matter here, only that there is one."""
    of_engine = ["--engine", engine, *more] if "container" in target else []
    job = ["--scenario", "command", "--command", "sleep 1", "--target", target, *of_engine]
    return ["run", *job, "--profile", "smoke", "--blocks", "1", "--warmup-blocks", "0", "--concurrent"]


def interruptions(words: Sequence[str], count: int, together: int) -> list[Moment]:
    """Press the key at so many moments of such a run, and return what was found."""
    with tempfile.TemporaryDirectory(prefix="interruptions-") as name, Family() as family:
        place = Path(name)
        moments = list(spread(phases_of([*words, "--out", str(place / "undisturbed")]), count))
        for begin in range(0, count, together):
            group = moments[begin : begin + together]
            press_all(words, group, family, place)
            group[-1].findings += [f"left: process {each.pid} ({each.name()})" for each in family.members()]
            print(*group, sep="\n", flush=True)
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", default="container", help="(default %(default)s)")
    parser.add_argument("--engine", action="append", help="repeatable (default: runc, podman)")
    parser.add_argument("--moments", type=int, default=40, help="how many (default %(default)s)")
    parser.add_argument("--times", type=int, default=1, help="how often each (default %(default)s)")
    parser.add_argument("--together", type=int, default=4, help="benches at a time (default %(default)s)")
    parser.add_argument("more", nargs="*", help="further options of bench run, after --: -- --node n1 --cpus 1")
    options = parser.parse_args()
    wrong = 0
    for engine in options.engine or ["runc", "podman"]:
        for time_ in range(1, options.times + 1):
            print(f"{engine}, {time_} of {options.times}", flush=True)
            found = interruptions(words_of(options.target, engine, options.more), options.moments, options.together)
            wrong += sum(bool(each.findings) for each in found)
            print(f"{sum(each.pressed for each in found)} pressed, {wrong} findings so far", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
