"""The certificate of a machine: what the suite has found of the injuries that were done to its targets."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from suite.part import Part
from suite.results.files import read
from suite.units import count
from suite.untrusted.parse import parse_object

FILE = "selftest.json"
"""The certificate's name in the directory of its self-test, and in the suite's own folder."""
LEAST_FOUND = 0.9
_MISSES = 0.05
"""How often an interval of 95 % misses the truth though nothing is wrong, and the level at which that is no chance."""
FACETS = ("size", "place", "verdict")


class CertifiedMachine(Part):
    """The machine of a self-test, which speaks only for runs on the same: see ``analysis.selftest.judging``."""

    hostname: str | None = None
    machine_id: str | None = None
    cpu_model: str | None = None
    kernel: str | None = None
    image: str | None = None
    """The digest of the userland."""


class InjuryFinding(Part):
    """One injury on one target: what is known of it, and what the suite made of it.

    ``size``, ``place`` and ``verdict_right`` are None where that could not be judged, such as an effect that is too
    small for the blocks.
    """

    scenario: str
    target: str
    injury: str
    summary: str
    metric: str
    witness: str
    blocks: int
    truth: tuple[float, float] | None = None
    """The known ratio, injured over as it is: a range where no more is known; null if the injury was not there."""
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    phase: str | None = None
    """The phase of a step that must carry it."""
    grown: str | None = None
    """The phase that grew most; null if its growth is within its interval."""
    verdict: str | None = None
    size: bool | None = None
    place: bool | None = None
    verdict_right: bool | None = None
    note: str = ""

    @property
    def facets(self) -> Mapping[str, bool | None]:
        marks = (self.size, self.place, self.verdict_right)
        return dict(zip(FACETS, marks, strict=True))

    @property
    def judged(self) -> bool:
        """Return whether the blocks could tell; an effect that is too small for them is neither found nor missed."""
        return self.verdict_right is not None

    @property
    def found(self) -> bool:
        return self.judged and False not in self.facets.values()


class Absent(Part):
    """An injury that cannot be done here."""

    injury: str
    targets: tuple[str, ...]
    """Empty for every target."""
    reason: str

    @property
    def name(self) -> str:
        if self.targets:
            return f"{self.injury} on {', '.join(self.targets)}"
        return self.injury


class Certificate(Part):
    """The result of one self-test."""

    schema_version: Literal[1] = 1
    suite_version: str
    made_at: str
    """UTC, ISO 8601."""
    directory: str
    machine: CertifiedMachine
    targets: tuple[str, ...]
    engine: str | None
    blocks: int
    margin: float
    findings: tuple[InjuryFinding, ...]
    absent: tuple[Absent, ...] = ()
    smallest: dict[str, float]
    """The smallest effect, as a share, that the blocks could have shown, by metric: the widest half of an interval of a
    target against itself."""

    @property
    def judged(self) -> tuple[InjuryFinding, ...]:
        return tuple(finding for finding in self.findings if finding.judged)

    def count(self, facet: str) -> tuple[int, int]:
        """Return of how many findings a facet was right, and of how many it could be judged."""
        judgements = [finding.facets[facet] for finding in self.findings if finding.facets[facet] is not None]
        return sum(map(bool, judgements)), len(judgements)

    @property
    def passed(self) -> bool:
        """Return whether size, place and verdict were each right of 90 % of what could be judged, and of anything.

        More intervals may miss the truth where as many of so few would do so by chance alone.
        """
        counts = ((facet, *self.count(facet)) for facet in FACETS)
        return bool(self.judged) and all(
            of - right <= max((1 - LEAST_FOUND) * of, by_chance(of) * (facet == "size")) for facet, right, of in counts
        )

    def line(self) -> str:
        """Return it in one line, as runs on the same machine refer to it."""
        right = sum(finding.found for finding in self.judged)
        effect = self.smallest.get("throughput")
        line = f"this machine's selftest of {self.made_at[:10]} found {right} of {len(self.judged)} injuries"
        shown = f"; smallest throughput effect that {count(self.blocks, 'block')} show: "
        if effect is None:
            return line
        return f"{line}{shown}{effect:.1%}"


def by_chance(intervals: int) -> int:
    """Return how many of so many 95 % intervals miss the truth in 95 of 100 cases at most."""
    missed = 0
    share = (1 - _MISSES) ** intervals
    while share < 1 - _MISSES:
        missed += 1
        share += math.comb(intervals, missed) * _MISSES**missed * (1 - _MISSES) ** (intervals - missed)
    return missed


def read_certificate(path: Path) -> Certificate | None:
    """Return the certificate; None where there is none that this suite can read."""
    try:
        return Certificate.model_validate(parse_object(read(path)))
    except (OSError, ValueError, ValidationError):
        return None
