"""The victims of ``kills.py``: runs of every scenario, target and engine of this machine, and other commands."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from provisioning.doctor import examine
from suite.records.record import TrialRecord
from suite.results.store import MODELS, PLAN, TRIALS, read_record

SMALL = ("--steps", "1", "--warmup-steps", "0")
TURNS = ("--scenario", "synthetic", "--design", "alternating", "--aa", "--rounds", "2", "--burst-steps", "1")
GENERATING = ("--scenario", "synthetic", "--model", "dcgan", "--generate", "4096", "--keep-model", "last")
PREEMPTED = ("--scenario", "synthetic", "--model", "gan", "--steps", "100", "--checkpoint", "on")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "synthetic": ("--scenario", "synthetic", *SMALL),
    "alternating": (*TURNS, "--target", "bare-metal"),
    "real": ("--scenario", "real", *SMALL),
    "generating": (*GENERATING, *SMALL),
    "preempt": (*PREEMPTED, "--checkpoint-every", "10", "--preempt", "mean=15s"),
    "probe": ("--scenario", "probe", "--probe", "cpu", "--probe", "disk"),
    "resize": ("--scenario", "probe", "--probe", "resize"),
    "distributed": ("--scenario", "distributed", "--strategy", "all-reduce", *SMALL),
    "shared": ("--scenario", "shared", *SMALL),
    "command": ("--scenario", "command", "--command", "sleep 1"),
}
TARGETS: dict[str, tuple[str, ...]] = {
    "bare-metal": ("suite", "worker", "container"),
    "container": ("suite", "worker", "container", "monitor"),
    "vm": ("suite", "guest", "ssh"),
    "container-vm": ("suite", "guest", "ssh"),
}
"""What can be killed, by target. What runs inside of a guest is out of reach."""
SIGNALS = ("interrupted twice", "halted")
"""What else can be done to the suite: SIGINT twice; SIGSTOP, and SIGCONT after a while."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": ("suite", "worker", *SIGNALS),
    "compare": ("suite", "halted"),
    "report": ("suite", "halted"),
    "web": ("suite", *SIGNALS),
    "serve": ("suite", "worker", *SIGNALS),
}
"""The other commands, and what can be killed of each."""
SWEEP = """name = "killed"
targets = ["bare-metal", "container"]
blocks = 6
warmup_blocks = 0
[options]
engine = "runc"
steps = 1
warmup_steps = 0
[budget]
retries = 20
[matrix]
scenario = ["synthetic"]
model = ["gan", "vae"]
profile = ["smoke"]
"""


@dataclass
class Setting:
    """A scenario on a target, and its run."""

    scenario: str
    target: str
    engine: str | None
    place: Path
    blocks: int = 1
    """More with each run that came to its end, so that there is always something to kill."""
    span_s: float = 10.0
    """The time that a run takes; learned from those that ended."""

    @property
    def endless(self) -> bool:
        """Return whether it ends by a signal alone."""
        return False

    @property
    def name(self) -> str:
        return f"{self.scenario} on {self.target}" + (f" ({self.engine})" if self.engine else "")

    @property
    def victims(self) -> tuple[str, ...]:
        return (*TARGETS[self.target], *SIGNALS)

    @property
    def out(self) -> Path:
        return self.place / "-".join(filter(None, (self.scenario, self.target, self.engine)))

    @property
    def words(self) -> list[str]:
        engine = ["--engine", self.engine] if self.engine else []
        data: list[str] = []
        if self.scenario == "real":
            data = ["--data", f"generated:{self.place / 'data'}"]
        if self.scenario == "command":
            data = ["--command-files", self._mine()]
        what = [*SCENARIOS[self.scenario], *data, "--target", self.target, *engine, "--profile", "smoke"]
        blocks = ["--blocks", str(self.blocks), "--warmup-blocks", "0", "--concurrent"]
        again = ["--repeat-failed"] if (self.out / PLAN).exists() else []  # trials whose parts were killed
        return ["run", *what, *blocks, *again, "--out", str(self.out)]

    def _mine(self) -> str:
        """Return a user's directory, of which each run takes a snapshot."""
        mine = self.place / "mine"
        mine.mkdir(exist_ok=True)
        for number in range(16):
            (mine / f"{number}.bin").write_bytes(bytes(4 << 20))
        return str(mine)

    def files(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.out.rglob(f"{TRIALS}/*.json")}

    def kept(self) -> dict[Path, bytes]:
        """Return the records that are ok, which no later run may change."""
        records = {path: read_record(path) for path in self.files()}
        return {path: path.read_bytes() for path, record in records.items() if record and record.outcome.status == "ok"}

    def failed(self) -> list[str]:
        """Return the kinds of the failures in the records that have failed."""
        outcomes = [record.outcome for record in map(read_record, self.files()) if record]
        return [str(outcome.kind) for outcome in outcomes if outcome.status == "failed"]

    def lost(self, before: dict[Path, bytes]) -> list[Path]:
        """Return which of the records that were kept are gone or have changed.

        A block of trials in turns is made again as a whole: of it none is lost while as many are ok.
        """
        after = {path: path.read_bytes() for path in before if path.exists()}
        gone = [path for path, content in before.items() if after.get(path) != content]
        if self.scenario == "alternating":
            were, are = (Counter(map(_block, each.values())) for each in (before, self.kept()))
            gone = [path for path in gone if are[_block(before[path])] < were[_block(before[path])]]
        return gone

    def torn(self) -> Iterator[str]:
        for path in self.files():
            record = read_record(path)
            if record is None or record.outcome.kind == "mistake":
                yield f"torn: {path}: {record.outcome.message if record else 'no record'}"


@dataclass
class Command(Setting):
    """Another command than ``bench run``, with a run that it reads, or the sweep that it makes."""

    port: int = 0

    def __post_init__(self) -> None:
        if self.scenario in ("compare", "report"):
            self.span_s = 4.0

    @property
    def name(self) -> str:
        return self.scenario

    @property
    def victims(self) -> tuple[str, ...]:
        return COMMANDS[self.scenario]

    @property
    def endless(self) -> bool:
        return self.scenario in ("web", "serve")

    @property
    def out(self) -> Path:
        # A sweep that has ended is begun anew elsewhere.
        return self.place / (f"sweep-{self.blocks}" if self.scenario == "sweep" else "finished/run")

    @property
    def words(self) -> list[str]:
        if self.scenario == "sweep":
            (self.place / "killed.toml").write_text(SWEEP)
            return ["sweep", "run", str(self.place / "killed.toml"), "--concurrent", "--out", str(self.out)]
        if self.scenario == "web":
            return ["web", "--port", str(self.port), "--results", str(self.out.parent)]
        if self.scenario == "serve":
            return ["serve", str(min((self.out / MODELS).iterdir())), "--port", str(self.port)]
        # What has been kept is printed within a moment: after each that has ended, another is asked for.
        return [self.scenario, str(self.out), "--margin", f"{5 + 0.1 * self.blocks:.1f}%"]


def _block(content: bytes) -> int:
    return TrialRecord.model_validate_json(content).block


def settings(place: Path, scenarios: Sequence[str], targets: Sequence[str]) -> list[Setting]:
    """Return every scenario on every target, and engine, that this machine carries."""
    usable = [(check.kind, check.name) for check in examine() if check.usable]
    engines = [name for kind, name in usable if kind == "engine"]
    found = []
    for scenario, target in product(scenarios, targets):
        if ("target", target) in usable:
            found += [Setting(scenario, target, each, place) for each in (engines if "container" in target else [None])]
    return found


def run_to_keep(place: Path) -> list[str]:
    """Return the words of the run that the other commands read, with the model that is served."""
    words = ["--scenario", "synthetic", "--model", "gan", "--target", "bare-metal", "--profile", "smoke", *SMALL]
    more = ["--keep-model", "last", "--generate", "16", "--blocks", "2", "--warmup-blocks", "0", "--concurrent"]
    return ["run", *words, *more, "--out", str(place / "finished/run")]


def drawn(
    among: Sequence[Setting], chance: random.Random, victims: Sequence[str] = ()
) -> Iterator[tuple[Setting, str]]:
    """Yield settings and victims, of these alone if there are any: all in a random order, then all in another."""
    pairs = [(setting, victim) for setting in among for victim in setting.victims if not victims or victim in victims]
    while True:
        yield from chance.sample(pairs, len(pairs))
