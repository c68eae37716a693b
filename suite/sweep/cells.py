"""The cells of a sweep. A cell is one run: one setting of everything but the target."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from suite.errors import RequestError
from suite.plan import MOST_TRIALS
from suite.request.repetitions import Repetitions
from suite.request.request import OPTIONS, RunRequest
from suite.request.traits import traits_of
from suite.sweep.file import Sweep

_NAMED = ("data", "cache", "recipe", "profile", "strategy", "network", "aggressor", "aggressors", "engine", "isa")
_LONGEST_SLUG = 64
MOST_CELLS = 4096
"""The most cells of a sweep. Each is a run, with a directory of its own."""


@dataclass(frozen=True)
class Cell:
    """One cell. ``cell_id`` is also the name of the directory of its run."""

    cell_id: str
    settings: dict[str, Any]


def request_of(sweep: Sweep, cell: Cell) -> RunRequest:
    """Return what a cell asks for, as ``bench run`` would be asked. Raises RequestError."""
    envelope = sweep.envelope.model_dump(exclude_none=True)
    if "cpus" in envelope:
        envelope["cpus"] = str(envelope["cpus"])
    repetitions = {name: getattr(sweep, name) for name in Repetitions.model_fields}
    if not sweep.open_ended:
        repetitions["blocks"] = sweep.block_count
    values = {
        **envelope,
        **cell.settings,
        "target": sweep.targets,
        "ablate": sweep.ablate,
        **repetitions,
    }
    chosen = {name: value for name, value in values.items() if value is not None}
    return RunRequest.of(chosen)


def cells_of(sweep: Sweep) -> tuple[Cell, ...]:
    """Return the cells in the order of the matrix, each once. Raises RequestError for none, too many, or idle keys."""
    lengths = map(len, sweep.matrix.values())
    count = math.prod(lengths) + len(sweep.include)
    if count > MOST_CELLS:
        raise RequestError(
            f"the matrix has {count:,} cells: {MOST_CELLS:,} are the most", remedy="make lists of it shorter"
        )
    cells = list(_settings(sweep))
    _refuse_idle(sweep, cells)
    kept = []
    for settings in cells:
        if not any(_has(settings, out.given()) for out in sweep.exclude):
            kept.append(settings)
    if not kept:
        raise RequestError("the plan has no cell: all are excluded", remedy="remove an exclude")
    targets = max(1, len(sweep.targets))
    trials = len(kept) * sweep.block_count * targets
    if trials > MOST_TRIALS:
        raise RequestError(
            f"{len(kept):,} cells of {sweep.block_count:,} blocks are {trials:,} trials or more: "
            f"{MOST_TRIALS:,} are the most",
            remedy="ask for fewer blocks, or fewer cells",
        )
    return tuple(Cell(_cell_id(sweep, settings), settings) for settings in kept)


def _settings(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield each setting once: with its scenario, and without the keys that this does not know."""
    products = itertools.product(*sweep.matrix.values())
    points = [dict(zip(sweep.matrix, values, strict=True)) for values in products]
    if not sweep.matrix and sweep.include:
        points = []
    cells: list[dict[str, Any]] = []
    included_points = (included.given() for included in sweep.include)
    for point in (*points, *included_points):
        values = {"scenario": OPTIONS["scenario"].default, **sweep.options.given(), **point}
        settings = {key: value for key, value in values.items() if OPTIONS[key].known_to(values["scenario"])}
        if settings not in cells:
            cells.append(settings)
            yield settings


def _has(settings: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(settings.get(key) == value for key, value in wanted.items())


def _refuse_idle(sweep: Sweep, cells: list[dict[str, Any]]) -> None:
    """Raise RequestError for what changes nothing: an exclude that fits no cell, a key that no cell has."""
    for wanted in (settings.given() for settings in sweep.exclude):
        if not any(_has(settings, wanted) for settings in cells):
            text = ", ".join(f"{key} = {value}" for key, value in wanted.items()) or "{}"
            raise RequestError(f"exclude {text} fits no cell", remedy="correct or remove it")
    used = set[str]().union(*cells)
    common = sweep.options.given()
    matrix_decides = common.keys() & sweep.matrix.keys()
    for settings in sweep.include:
        matrix_decides &= settings.given().keys()
    for key in (*sweep.matrix, *common):
        if key not in used:
            raise RequestError(f"no cell has {key}", remedy=f"it belongs to scenario {OPTIONS[key].whose()}; remove it")
    for key in sorted(matrix_decides):
        raise RequestError(
            f"options.{key} has no effect: matrix.{key} sets it for every cell", remedy="remove one of them"
        )


def _cell_id(sweep: Sweep, settings: dict[str, Any]) -> str:
    """Return a readable name that ends in a hash of everything that a record of the cell depends on.

    The number of blocks is no part of it: a longer sweep goes on with the same cells.
    """
    traits = traits_of(settings["scenario"])
    subject = settings.get(traits.subject, traits.unnamed)
    further = (settings[key] for key in _NAMED if key in settings)
    words = [settings["scenario"], subject.rpartition("/")[2], *further]
    words_joined = "-".join(map(str, words))
    slug = re.sub(r"[^a-z0-9]+", "-", words_joined.lower())[:_LONGEST_SLUG].strip("-")
    common = sweep.model_dump(mode="json", include={"targets", "ablate", "aa", "seed", "envelope"})
    text = json.dumps({**common, "settings": settings}, sort_keys=True)
    return f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
