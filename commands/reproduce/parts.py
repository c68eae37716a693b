"""The ready plans of papers, and the parts of one that are measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.compare.contrast_kinds import ALLOCATION_BLOCKS
from analysis.statistics.sequential import LEAST_BLOCKS
from suite.errors import RequestError, nearest
from suite.request.parts import TargetOptions
from suite.sweep.cells import cells_of
from suite.sweep.file import Settings, Sweep, load_sweep, plan_file, shipped_plans


def least_blocks(sweep: Sweep) -> int:
    """Return the least blocks from which on a plan shows what its view is about."""
    if "allocation" in sweep.views:
        return ALLOCATION_BLOCKS
    return LEAST_BLOCKS


class PlanPart(NamedTuple):
    """The part of a plan that is measured; what is None or empty is the plan's own."""

    profile: str | None = None
    targets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    blocks: int | None = None
    scenarios: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return the options of the command that measures it."""
        words = ["--profile", self.profile] if self.profile else []
        for option, values in (
            ("--target", self.targets),
            ("--scenario", self.scenarios),
            ("--model", self.models),
        ):
            for value in values:
                words += [option, value]
        if self.blocks:
            words += ["--blocks", str(self.blocks)]
        return words


def smaller(sweep: Sweep, part: PlanPart) -> Sweep:
    """Return a part of a plan; with another profile or fewer cells under another name. Raises RequestError."""
    changes: dict[str, Any] = {"targets": part.targets or sweep.targets, "blocks": part.blocks or sweep.blocks}
    TargetOptions.model_validate({"target": changes["targets"]})
    name = sweep.name
    if part.profile:
        changes["options"] = Settings.model_validate({**sweep.options.given(), "profile": part.profile})
        changes["matrix"] = {key: values for key, values in sweep.matrix.items() if key != "profile"}
        name = f"{name}-{part.profile}"
    smaller_sweep = sweep.model_copy(update=changes)
    for key, values in (("scenario", part.scenarios), ("model", part.models)):
        if values:
            smaller_sweep = _only(smaller_sweep, key, values)
            name = "-".join((name, *values)).replace("_", "-")
    return smaller_sweep.model_copy(update={"name": name})


def _only(sweep: Sweep, key: str, values: Sequence[str]) -> Sweep:
    """Return the cells of a plan that have one of these values. Raises RequestError for a value that no cell has."""
    cells = [cell.settings for cell in cells_of(sweep)]
    known = {str(settings.get(key)): None for settings in cells}
    for value in values:
        if value not in known:
            raise RequestError(f"--{key} {value!r} is in no cell of {sweep.name}", remedy=nearest(value, [*known]))
    chosen = tuple(Settings.model_validate(settings) for settings in cells if settings.get(key) in values)
    return sweep.model_copy(update={"matrix": {}, "exclude": (), "options": Settings(), "include": chosen})


def paper_plans() -> dict[str, dict[Path, Sweep]]:
    plans: dict[str, dict[Path, Sweep]] = {}
    for file in (plan_file(Path(name)) for name in shipped_plans()):
        sweep = load_sweep(file)
        if sweep.paper:
            plans.setdefault(sweep.paper, {})[file] = sweep
    return plans


def plan_of_paper(paper: str, name: str | None) -> tuple[Path, Sweep]:
    plans = paper_plans()
    if paper not in plans:
        raise RequestError(f"no plan rebuilds {paper!r}", remedy=nearest(paper, list(plans)))
    named = {file.stem: (file, sweep) for file, sweep in plans[paper].items()}
    if name is not None and name not in named:
        raise RequestError(f"--plan {name!r} rebuilds nothing of {paper}", remedy=nearest(name, [*named]))
    return named[name or next(iter(named))]
