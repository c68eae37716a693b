"""A sweep's directory: the plan as it was accepted, and an ordinary run for each cell. Files are renamed into place.

DIR/sweep.json                      the plan, and its cells
DIR/CELL/plan.json, trials/ID.json  a run: a record of each trial, the last attempt's
DIR/CELL/attempts/ID.N.json         every attempt that failed
DIR/converged.json                  the cells that need no further block, of an open-ended sweep
DIR/.locks/, DIR/.stop              locks; the request to stop
"""

import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

from pydantic import Field, ValidationError

from suite.errors import RequestError
from suite.part import Part, RunId
from suite.plan import Plan, Trial
from suite.records.record import TrialRecord
from suite.results.files import read
from suite.results.layout import CONVERGED, results_directory
from suite.results.store import ATTEMPTS, PLAN, TRIALS, Run, read_record, write_atomic
from suite.sweep.cells import Cell
from suite.sweep.file import Sweep
from suite.trial_names import attempt_file, record_file
from suite.units import count


class CellRun(Run):
    """The run of a cell. A failed trial is tried again until it has failed once more than ``retries``."""

    growing = Run.growing | {"warmup_blocks"}

    def __init__(self, directory: Path, retries: int) -> None:
        super().__init__(directory)
        self.retries = retries
        self._ok: set[str] = set()

    def draw(self) -> dict[str, object]:
        """Return the identity and the order of the cell's run, which follow from the sweep's.

        Whichever machine begins a cell, its blocks belong together. Equal cells of two sweeps are two runs.
        """
        accepted = SweepDirectory(self.directory.parent).begun()
        digest = hashlib.sha256(f"{accepted.sweep_id}/{self.directory.name}".encode()).hexdigest()
        return {**super().draw(), "run_id": digest[:16], "order_seed": int(digest[16:24], 16)}

    def finished(self) -> Iterator[str]:
        """Yield the trials that are ok, and those that have failed more often than ``retries``."""
        for path in self.record_files():
            # A record that is ok stays as it is: it is read once, however many blocks there are.
            if path.stem not in self._ok and (record := read_record(path)) and record.outcome.status == "ok":
                self._ok.add(path.stem)
            if path.stem in self._ok:
                yield path.stem
        for trial_id, failed in self.attempts().items():
            if failed > self.retries:
                path = self.directory / TRIALS / record_file(trial_id)
                if not path.exists():  # a kill came between writing the attempt and writing the trial
                    attempt = read(self.directory / ATTEMPTS / attempt_file(trial_id, failed))
                    write_atomic(path, attempt.decode(), below=self.directory)
                yield trial_id

    def left(self, plan: Plan, blocks: Iterable[int]) -> dict[int, list[Trial]]:
        """Return the trials that are still to be run, by block; blocks without one are left out."""
        finished = set(self.finished())
        left = {}
        for block in blocks:
            left[block] = [item for item in plan.trials_of(block) if item.trial_id not in finished]
        return {block: trials for block, trials in left.items() if trials}


StopRule = Callable[[CellRun], str | None]
"""Returns why a cell needs no further block; None if it does."""
IRRELEVANT = {"output", "engine", "budget", "views"}
"""Keys that decide where a sweep runs and what of it is shown, and not what is measured."""


class Accepted(Part):
    """The content of ``sweep.json``; ``cells`` holds the settings of each cell, by its name."""

    format: int = 1
    sha256: str
    """The hash of the plan, as ``plan_hash`` gives it."""
    sweep: Sweep
    sweep_id: RunId
    """The identity of the sweep, drawn when it is accepted. Those of its cells follow from it."""
    cells: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,99}$")], dict[str, Any]]

    @classmethod
    def of(cls, sweep: Sweep, cells: Iterable[Cell], sweep_id: str) -> "Accepted":
        settings = {cell.cell_id: cell.settings for cell in cells}
        return cls(
            sha256=plan_hash(sweep),
            sweep=sweep,
            sweep_id=sweep_id,
            cells=settings,
        )

    def text(self) -> str:
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"


class ConvergedCells(Part):
    """The cells that need no further block, as decided by the process that hands out blocks.

    It is written between two rounds of blocks: all blocks of a round then hold the same cells, one that is begun again
    too, whatever the others have measured meanwhile.
    """

    sha256: str
    """The hash of the plan: what was decided under another plan does not hold."""
    cells: tuple[str, ...]


def _differences(before: Sweep, now: Sweep) -> Iterator[str]:
    old = before.model_dump(mode="json")
    new = now.model_dump(mode="json")
    for key in new:
        if key not in IRRELEVANT and old[key] != new[key]:
            short = all(isinstance(value, (str, int, NoneType)) for value in (old[key], new[key]))
            yield f"{key} from {old[key]} to {new[key]}" if short else key


class SweepDirectory:
    """The directory of a sweep; see the top of this module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sweep_id = secrets.token_hex(8)

    def accepted(self) -> Accepted | None:
        """Return what is stored; None in a new directory. Raises RequestError for a file that is not a sweep's."""
        path = self.path / "sweep.json"
        try:
            return Accepted.model_validate_json(read(path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RequestError(f"cannot read {path}: {error.strerror}", remedy="give another --out") from error
        except ValidationError as error:
            raise RequestError(f"{path} is not the plan of a sweep", remedy="give another --out") from error

    def begun(self) -> Accepted:
        """Return what is stored. Raises RequestError for a directory that does not hold a sweep."""
        accepted = None
        if not self.path.is_file():
            accepted = self.accepted()
        if accepted is None:
            raise RequestError(f"no sweep in {self.path}", remedy="name the directory of one: the one given to --out")
        return accepted

    def changes(self, sweep: Sweep, cells: Sequence[Cell]) -> list[str]:
        """Return the changes from the stored plan to this one, as lines; none in a new directory."""
        self._refuse_a_run()
        before = self.accepted()
        if before is None or not (keys := [*_differences(before.sweep, sweep)]):
            return []
        names = [cell.cell_id for cell in cells]
        cells_by_state: defaultdict[tuple[bool, bool], list[str]] = defaultdict(list)
        for name in dict.fromkeys((*names, *before.cells)):
            cells_by_state[name in names, name in before.cells].append(name)
        gone = "no longer part of it (records stay on the disk)"
        kinds = {(True, True): "kept, with records", (True, False): "new", (False, True): gone}
        shown = ((text, cells_by_state[kind]) for kind, text in kinds.items() if kind in cells_by_state)
        listed = (f"{count(len(cells), 'cell')} {text}: {', '.join(cells)}" for text, cells in shown)
        return [f"the plan has changed: {'; '.join(keys)}", *listed]

    def acceptable(self, sweep: Sweep, cells: Sequence[Cell]) -> Accepted:
        """Return what ``accept`` stores: the plan, and the identity that is stored or, in a new directory, drawn."""
        before = self.accepted()
        return Accepted.of(sweep, cells, before.sweep_id if before else self._sweep_id)

    def accept(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Store the plan. An equal file is left as it is: several machines may do this at once."""
        self._refuse_a_run()
        before = self.accepted()
        accepted = self.acceptable(sweep, cells)
        if before != accepted:
            # Of several machines that begin it at once, the first draws the identity.
            write_atomic(self.path / "sweep.json", accepted.text(), new=before is None)

    def _refuse_a_run(self) -> None:
        if (self.path / PLAN).exists():
            raise RequestError(f"{self.path} holds a run of bench run", remedy="give another --out")

    def refuse_changed(self, sweep: Sweep) -> None:
        """Raise RequestError for a changed plan: a process that runs one block of many must not change it."""
        before = self.accepted()
        # Not the stored hash: in a later suite, which knows more options, the same plan has another one.
        if before is not None and plan_hash(before.sweep) != plan_hash(sweep):
            message = f"{self.path} is a sweep of another plan than this one's"
            raise RequestError(message, remedy="run bench sweep run without --only-block")

    def cell(self, cell_id: str, retries: int) -> CellRun:
        return CellRun(self.path / cell_id, retries)

    def failed(self, retries: int) -> list[tuple[str, TrialRecord]]:
        """Return the cell and the record of each trial that is a failure now."""
        accepted = self.accepted()
        return [
            (name, record)
            for name in (accepted.cells if accepted else ())
            for record in self.cell(name, retries).records()
            if record.outcome.status == "failed"
        ]

    def write_converged(self, sweep: Sweep, cells: Iterable[str]) -> None:
        """Write down the names of the cells that need no further block. Raises StoreError."""
        content = ConvergedCells(sha256=plan_hash(sweep), cells=tuple(cells))
        write_atomic(self.path / CONVERGED, content.model_dump_json() + "\n")

    def converged(self, sweep: Sweep) -> frozenset[str]:
        """Return the names of these cells; none where nothing was decided yet, or unless the sweep is open-ended."""
        try:
            decided = ConvergedCells.model_validate_json(read(self.path / CONVERGED))
        except (OSError, ValidationError):
            return frozenset()
        if sweep.open_ended and decided.sha256 == plan_hash(sweep):
            return frozenset(decided.cells)
        return frozenset()


def plan_hash(sweep: Sweep) -> str:
    """Return a hash of the plan without the tables that decide only where it runs."""
    text = json.dumps(sweep.model_dump(mode="json", exclude=IRRELEVANT), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def default_directory(sweep: Sweep) -> Path:
    if sweep.output.directory:
        return Path(sweep.output.directory)
    return results_directory() / sweep.name
