"""The options that decide how often a run is measured, and when it ends."""

import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from suite.errors import RequestError, nearest, option
from suite.request.option import Count, NotNegative, OptionGroup, Seed, Text, about, given
from suite.units import parse_duration_s, parse_share

MARGIN = 0.02
"""The share by which a target may differ from bare metal and still be equivalent, unless a request gives another."""
MOST_BLOCKS = 100
"""The most blocks of a run with ``until`` or ``detect``, unless ``max_blocks`` says otherwise."""
DECIDED = "decided"
"""The value of ``until`` that goes on until every comparison has a verdict."""
DECIDING_MARGIN = "5%"
DECIDING_BUDGETS = ("10m", "30m", "1h", "3h", "12h")
"""The margin and the budget of a run that says nothing of its end: the least one that is expected to hold a verdict."""
DECIDING_BLOCKS = 8
"""The blocks that mostly decide identical targets, warm-up included (``benchmarks/deciding_by_default.py``)."""
_ENDS = f"{option('until')} or {option('detect')}"
_OPEN_ENDED = (given("until", example=DECIDED), given("detect", example="2%"))
_NO_BLOCKS = given("blocks", why=f"{option('max_blocks')} limits their number")
WIDEST = 0.5
"""The widest half of an interval that can be asked for: more is a confidence, mistaken for a width."""
EXTENDING = ("blocks", "until", "detect", "max_blocks", "budget")
"""The options that extend a run."""


def _parse_until(text: str) -> str | float:
    """Return how a run ends. Raises RequestError for a misspelt word, and for a width that shows nothing."""
    if text == DECIDED:
        return text
    if re.match(r"[a-z]{2}", text.strip().lower()):
        raise RequestError(f"{text!r} is unknown", remedy=f"{nearest(text, [DECIDED])}, or a share such as 2%")
    share = parse_share(text)
    if share > WIDEST:
        remedy = f"write how far it may reach, such as 2%, or {DECIDED}; every interval has a confidence of 95 %"
        raise RequestError(f"{text!r}: an interval that reaches {share:.0%} to each side shows nothing", remedy=remedy)
    return share


class Repetitions(OptionGroup):
    """How often it is measured, in a run and in a sweep alike."""

    blocks: Count | None = about(
        None,
        "Trials per target, in balanced random order. Default: with bare metal and another target, both measured, and "
        f"another profile than smoke, {option('until')} {DECIDED} at {DECIDING_MARGIN} within a {option('budget')} "
        "that is printed first; else 1.",
        also=("--repeat",),
        meaning=False,
        common=True,
    )
    until: Text | None = about(
        None,
        "Add blocks until intervals are this narrow, such as 2%. Each 95 % interval is within plus or minus it. "
        f"decided: until every comparison has a verdict at the {option('margin')}.",
        parse=_parse_until,
        of="normalised",
        excludes=(_NO_BLOCKS,),
        meaning=False,
        common=True,
    )
    detect: Text | None = about(
        None,
        "Plan the blocks that detect this difference, such as 2%. It is one of throughput from bare metal, detected "
        "with a power of 80 %. The test is two-sided at 5 %, corrected for all targets of the job. The number is fixed "
        "once, from earlier runs on this machine or after the first 10 blocks.",
        parse=parse_share,
        of="normalised",
        excludes=(given("until"), _NO_BLOCKS),
        meaning=False,
        common=True,
    )
    margin: Text | None = about(
        None,
        "Difference from bare metal that does not matter. A target is equivalent within it (10%: from 0.9 to 1.1 "
        "times), slower or faster beyond it. bench compare and bench report take it from the plan. "
        f"Default: {MARGIN:.0%}.",
        parse=parse_share,
        meaning=False,
        common=True,
    )
    max_blocks: Count | None = about(
        None,
        f"With {_ENDS}: at most this many blocks. Default: {MOST_BLOCKS}.",
        of="normalised",
        needs=_OPEN_ENDED,
        meaning=False,
    )
    warmup_blocks: NotNegative | None = about(
        None,
        f"Blocks at the start that are recorded and not counted. Default: 1 with {_ENDS}, or from 3 blocks on.",
        meaning=False,
    )
    aa: Annotated[bool, Field(strict=True)] = about(
        False, "Measure bare metal twice per block; any difference is noise.", meaning=False
    )
    seed: Seed = about(0, "Random seed of weights and data. Every run draws its own order of trials.")

    @property
    def open_ended(self) -> bool:
        """Return whether it depends on the records how many blocks there are."""
        return self.until is not None or self.detect is not None

    @property
    def difference(self) -> float | None:
        """Return the difference to be detected, as a share; None without ``detect``."""
        if self.detect is None:
            return None
        return parse_share(self.detect)

    @property
    def decides(self) -> bool:
        return self.until == DECIDED

    @property
    def half_width(self) -> float | None:
        """Return how wide half an interval may be in the end, as a share; None unless ``until`` says so."""
        if self.until is None or self.decides:
            return None
        return parse_share(self.until)

    @property
    def margin_share(self) -> float | None:
        """Return the difference that does not matter, as a share; None for the usual one."""
        if self.margin is None:
            return None
        return parse_share(self.margin)


class RepetitionOptions(Repetitions):
    """How often."""

    budget: Text | None = about(
        None,
        f"With {_ENDS}, or by default: begin no new block after this time, such as 30m. The warm-up counts as a block.",
        parse=parse_duration_s,
        of="normalised",
        excludes=(given("blocks", why="their number ends the run"),),
        meaning=False,
    )

    def extended(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the options that extend a run, with None for those that they replace. Raises RequestError.

        A run that goes on until its records decide keeps its rule: a number of blocks is then the most of them.
        """
        rules = given.keys() & {"blocks", "until", "detect"}
        if rules == {"blocks"} and self.open_ended:
            return {
                "budget": None,
                **given,
                "blocks": None,
                "max_blocks": given["blocks"],
            }
        if rules and self.decides and given.get("until") != DECIDED:
            raise RequestError(
                f"{option(min(rules))} cannot replace {option('until')} {DECIDED}, whose verdicts allow for its looks",
                remedy=f"extend the run with {option('budget')} or {option('max_blocks')}",
            )
        return {**dict.fromkeys(("blocks", "until", "detect") if rules else ()), **given}

    def extension(self, blocks: int, block_s: float) -> list[str]:
        """Return the words that extend a run to so many blocks of so many seconds; none if it goes on by itself."""
        if not self.open_ended:
            return ["--blocks", str(blocks)]
        minutes = math.ceil((blocks + 1) * block_s / 60)  # the warm-up counts, too
        words = []
        if blocks > (self.max_blocks or MOST_BLOCKS):
            words += ["--max-blocks", str(blocks)]
        if self.budget and minutes:
            words += ["--budget", f"{minutes}m"]
        return words

    @property
    def budget_s(self) -> float | None:
        """Return the seconds after which no block is begun; None where there is no such time."""
        if self.budget is None:
            return None
        return parse_duration_s(self.budget)
