"""The runs that ``kills.py`` kills: every scenario on every target and engine of this machine, and their records."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from provisioning.doctor import examine
from suite.records.record import TrialRecord
from suite.results.store import TRIALS, read_record

SMALL = ("--steps", "1", "--warmup-steps", "0")
TURNS = ("--scenario", "synthetic", "--design", "alternating", "--aa", "--rounds", "2", "--burst-steps", "1")
GENERATING = ("--scenario", "synthetic", "--model", "dcgan", "--generate", "4096", "--keep-model", "last")
SCENARIOS: dict[str, tuple[str, ...]] = {
    "synthetic": ("--scenario", "synthetic", *SMALL),
    "alternating": (*TURNS, "--target", "bare-metal"),
    "real": ("--scenario", "real", *SMALL),
    "generating": (*GENERATING, *SMALL),
    "probe": ("--scenario", "probe", "--probe", "cpu", "--probe", "disk"),
    "distributed": ("--scenario", "distributed", "--strategy", "all-reduce", *SMALL),
    "shared": ("--scenario", "shared", *SMALL),
}
TARGETS: dict[str, tuple[str, ...]] = {
    "bare-metal": ("suite", "worker", "container"),
    "container": ("suite", "worker", "container", "monitor"),
    "vm": ("suite", "guest", "ssh"),
    "container-vm": ("suite", "guest", "ssh"),
}
"""What can be killed, by target. What runs inside of a guest is out of reach."""


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
    def name(self) -> str:
        return f"{self.scenario} on {self.target}" + (f" ({self.engine})" if self.engine else "")

    @property
    def out(self) -> Path:
        return self.place / "-".join(filter(None, (self.scenario, self.target, self.engine)))

    @property
    def words(self) -> list[str]:
        engine = ["--engine", self.engine] if self.engine else []
        data = ["--data", f"generated:{self.place / 'data'}"] if self.scenario == "real" else []
        what = [*SCENARIOS[self.scenario], *data, "--target", self.target, *engine, "--profile", "smoke"]
        blocks = ["--blocks", str(self.blocks), "--warmup-blocks", "0", "--concurrent"]
        return ["run", *what, *blocks, "--out", str(self.out)]

    def files(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (self.out / TRIALS).glob("*.json")}

    def kept(self) -> dict[Path, bytes]:
        """Return the records that are ok, which no later run may change."""
        records = {path: read_record(path) for path in self.files()}
        return {path: path.read_bytes() for path, record in records.items() if record and record.outcome.status == "ok"}

    def lost(self, before: dict[Path, bytes]) -> list[Path]:
        """Return which of the records that were kept are gone or have changed.

        A block of trials in turns is made again as a whole: of it none is lost while as many are ok.
        """
        after = self.kept()
        gone = [path for path, content in before.items() if after.get(path) != content]
        if self.scenario == "alternating":
            were, are = (Counter(map(_block, each.values())) for each in (before, after))
            gone = [path for path in gone if are[_block(before[path])] < were[_block(before[path])]]
        return gone

    def torn(self) -> Iterator[str]:
        for path in self.files():
            record = read_record(path)
            if record is None or record.outcome.kind == "mistake":
                yield f"torn: {path}: {record.outcome.message if record else 'no record'}"


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


def drawn(among: Sequence[Setting], chance: random.Random) -> Iterator[tuple[Setting, str]]:
    """Yield settings and victims without end: all in a random order, then all in another."""
    pairs = [(setting, victim) for setting in among for victim in TARGETS[setting.target]]
    while True:
        yield from chance.sample(pairs, len(pairs))
