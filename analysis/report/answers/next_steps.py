"""The next step after an answer: what would decide the claims that are open, or explain those that are decided."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.compare.results import Comparison
from analysis.load.plans import plan_of
from analysis.report.answers.claim import NO_NUMBER, NO_VERDICT, UNDECIDED, Claim
from analysis.report.formatting import duration, percent
from suite.job.profiles import PROFILES
from suite.request.repetitions import RepetitionOptions
from suite.request.request import RunRequest
from suite.units import count

_LONGEST = 150
"""A longer command is described instead."""
_TURNS = "--design alternating (turns are disturbed alike)"


def next_steps(comparison: Comparison, claims: Sequence[Claim], run: Path | None) -> Iterator[str]:
    """Yield what to do next; of a single ``run``, which can be extended, as commands. At least one step."""
    still_open = [one for one in claims if one.word in (UNDECIDED, NO_VERDICT)]
    request = plan.request if run and (plan := plan_of(run)) else None
    where = f" {shlex.quote(str(run))}" if run else ""
    if still_open:
        decides = all(PROFILES[name].decides for name in PROFILES if name in {one.job.profile for one in still_open})
        yield from _deciding(comparison, still_open, request, where) if decides else [_measuring(request)]
    if any(one.word == NO_NUMBER and one.found.failed for one in claims):
        yield f"bench results show{where} (the failures in full)"
    elif not still_open:
        yield _explaining(claims, where)


def _explaining(claims: Sequence[Claim], where: str) -> str:
    probes = all(one.job.traits.probes for one in claims)
    return f"bench report{where} (one page)" if probes else f"bench compare{where} --explain (where the time goes)"


def _measuring(request: RunRequest | None) -> str:
    """Return the command of the same run as a measurement, unless it is long."""
    again = request and request.changed(profile="quick", blocks=None, warmup_blocks=None)
    command = shlex.join(again.command()) if again else ""
    return f"{command} (to measure)" if 0 < len(command) <= _LONGEST else "the same bench run with --profile quick"


def _deciding(
    comparison: Comparison, still_open: Sequence[Claim], request: RunRequest | None, where: str
) -> Iterator[str]:
    blocks, lacking, block_s = (max(column) for column in zip((0, 0, 0.0), *map(_extension, still_open), strict=True))
    in_reach = lacking < math.inf
    if in_reach:
        least = "at least " if any(one.withheld for one in still_open) else ""
        spent = f", about {duration(lacking * block_s)} on a quiet machine" if block_s else ""
        more = f"{least}{count(int(lacking), 'more block')}{spent}"
        repetitions = request.repetitions if request else RepetitionOptions()
        words = f"bench run --continue{where} {repetitions.extension(int(blocks + lacking), block_s)}".strip()
        yield f"{words} ({more})" if where else more
    if lacking > blocks and _can_take_turns(comparison, still_open):
        yield f"{_TURNS} may decide sooner" if in_reach else f"{_TURNS}, or a quieter machine"
    elif not in_reach:
        yield f"a quieter machine, or a margin above {percent(still_open[0].margin)}"


def _extension(one: Claim) -> tuple[float, float, float]:
    """Return the blocks that a claim has, those that it lacks, and the seconds of one."""
    lacking = math.inf if one.lacking_blocks is None else one.lacking_blocks
    return one.found.blocks, lacking, one.around.block_s or 0.0


def _can_take_turns(comparison: Comparison, still_open: Sequence[Claim]) -> bool:
    """Return whether all jobs could take turns, and none does."""
    in_turns = {group.job for group in comparison.groups if group.turns}
    return all(hasattr(one.job.traits, "turn_taker") and one.job not in in_turns for one in still_open)
