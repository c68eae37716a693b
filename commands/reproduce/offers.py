"""The list of papers: each plan with what it takes here, and the largest part of it that fits an hour."""

from collections.abc import Iterator

from analysis.compare.pairing import matches_any
from analysis.compare.published import citation, published_claims
from commands.reproduce.parts import PlanPart, least_blocks, paper_plans, smaller
from commands.reproduce.takes import described_here, missing_sets, summary, unsaid
from commands.sweep.plan import PlannedOutput
from suite.sweep.file import Sweep
from suite.targets import ON_REAL_MACHINES

_HOUR_S = 3600.0


def listed() -> Iterator[str]:
    """Yield every paper with its citation, and each of its plans with what it takes here and in an hour."""
    for paper, plans in paper_plans().items():
        yield f"{paper}: {citation(paper)}"
        for position, (file, sweep) in enumerate(plans.items()):
            yield from _offers(sweep, f"bench reproduce {paper}" + f" --plan {file.stem}" * bool(position))


def _offers(sweep: Sweep, command: str) -> Iterator[str]:
    """Yield the command of the whole plan, and of the largest part that fits an hour, or else of the smallest."""
    whole = described_here(sweep, unsaid)
    parts = _smaller_parts(whole, sweep.paper, least_blocks(sweep))
    for part in parts:
        offered = smaller(sweep, part)
        planned = described_here(offered, unsaid)
        fits = (planned.total_s or 0.0) <= _HOUR_S
        if fits or part in (parts[0], parts[-1]):
            yield f"  {' '.join((command, *part.words()))}"
            yield f"    {summary(offered, planned, missing_sets(offered))}"
        if fits:
            break


def _smaller_parts(whole: PlannedOutput, paper: str | None, blocks: int) -> list[PlanPart]:
    """Return the parts of a plan that are tried in place of it, the largest first, then one model in the least blocks.

    Of a plan with targets that are no measurement here, the others are tried.
    """
    planned = dict.fromkeys(target for cell in whole.cells for target in cell.targets)
    measured = tuple(target for target in planned if target not in whole.path_only)
    least = tuple(target for target in measured if target in ON_REAL_MACHINES)
    targets = measured if whole.path_only else ()
    model = _quickest_model(whole, paper or "")
    parts = (
        PlanPart(),
        PlanPart(targets=targets),
        PlanPart("quick", targets),
        PlanPart("quick", least),
        PlanPart("quick", least, blocks=blocks),
        PlanPart("quick", least, model, blocks),
        PlanPart("smoke", least),
    )
    return list(dict.fromkeys(parts))


def _quickest_model(whole: PlannedOutput, paper: str) -> tuple[str, ...]:
    """Return the model with the shortest block in the first scenario of a plan, of those that a claim is about.

    None where no such cell can run.
    """
    claimed: list[str] = []
    for claim in published_claims(paper):
        claimed += claim.where.get("model", ())
    times_s: dict[str, float] = {}
    for cell in whole.cells:
        model = str(cell.settings.get("model"))
        in_first = cell.settings["scenario"] == whole.cells[0].settings["scenario"]
        if cell.block_s and in_first and matches_any(model, claimed):
            times_s.setdefault(model, cell.block_s)
    if not times_s:
        return ()
    return (min(times_s, key=times_s.__getitem__),)
