"""Take in what a machine of a pool sends: the records of the block that was handed out to it, and nothing else.

Such a machine runs code of others, and its word is not taken: it cannot write the sweep's plan, another block's
records, or another record in place of one that is ok.
"""

import operator
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, ValidationError

from suite.differ import Host, differ, differences
from suite.errors import RequestError
from suite.plan import Plan, Trial
from suite.records.course import OF_TRIAL
from suite.records.environment import Environment
from suite.records.record import TrialRecord
from suite.results.files import SpecialFileError, read
from suite.results.layout import POOL
from suite.results.store import ATTEMPTS, PLAN, TRIALS, read_record, write_atomic
from suite.sweep.cells import Cell, cells_of, request_of
from suite.sweep.directory import CellRun, SweepDirectory
from suite.sweep.file import Sweep
from suite.sweep.file_transfer import TransferError, decode
from suite.trial_names import attempt_file, record_file


class PoolMember(BaseModel):
    """A machine that may run a block: suite version, image, environment."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    suite_version: str
    image: str | None
    """Its digest."""
    environment: Environment

    @property
    def host(self) -> Host:
        return Host.of(asdict(self.environment))


def unequal(first: PoolMember, second: PoolMember) -> list[str]:
    """Return the differences of two machines, each with both values. Empty if their records may be pooled."""
    mine, its = ({"suite": machine.suite_version, "image": machine.image} for machine in (first, second))
    others = (fact.between(first.host.name, second.host.name) for fact in differ(mine, its))
    return [*differences([first.host, second.host]), *others]


def join_pool(directory: Path, machine: PoolMember) -> None:
    """Add this machine to the pool that writes ``directory``; the first member sets what the others must be like.

    Raises RequestError that names the differences if this one is unequal. Needs only link(2) of the file system.
    """
    path = directory / POOL
    if not path.exists():
        write_atomic(path, machine.model_dump_json(indent=1) + "\n", new=True)
    try:
        first = PoolMember.model_validate_json(read(path))
    except (FileNotFoundError, SpecialFileError, ValidationError) as error:
        raise RequestError(f"{path} was not written by this suite", remedy="give another --out") from error
    difference = unequal(first, machine)
    if difference:
        raise RequestError(
            f"{machine.host.name} is unequal to {first.host.name}, which began {directory}: {'; '.join(difference)}",
            remedy="use equal machines only (with Slurm: constraint in [engine]), or give another --out for this one",
        )


class Receiver:
    """Writes what the machines of a pool send into the sweep's directory, one file after the other."""

    def __init__(self, sweep: Sweep, directory: SweepDirectory) -> None:
        self._sweep = sweep
        self._directory = directory
        self._cells = {cell.cell_id: cell for cell in cells_of(sweep)}
        self._writing = threading.Lock()  # two machines may send a cell's plan at the same moment

    def __call__(self, block: int, line: str) -> None:
        """Take in a line that the machine which runs the block has sent.

        Raises TransferError for what is none of the block's, RequestError for a plan or a machine unlike the first
        one's, and StoreError.
        """
        name, text = decode(line)
        with self._writing:
            try:
                self._take(block, PurePosixPath(name).parts, text)
            except (ValidationError, ValueError, RecursionError) as error:
                raise TransferError(f"{name} arrived, and is not valid") from error

    def _take(self, block: int, parts: tuple[str, ...], text: str) -> None:
        match parts:
            case (name,) if name == POOL:
                join_pool(self._directory.path, PoolMember.model_validate_json(text))
            case (cell, name) if cell in self._cells and name == PLAN:
                self._take_plan(self._cells[cell], Plan.model_validate_json(text))
            case (cell, folder, name) if cell in self._cells and folder in (TRIALS, ATTEMPTS):
                self._take_record(block, self._run(cell), Path(folder) / name, text)
            case _:
                raise TransferError(f"{'/'.join(parts)} arrived, and no machine of the pool has to send it")

    def _run(self, cell: str) -> CellRun:
        return self._directory.cell(cell, self._sweep.budget.retries)

    def _take_plan(self, cell: Cell, plan: Plan) -> None:
        """Store the plan of a cell that was not begun; of one that was, refuse another plan."""
        request = request_of(self._sweep, cell)
        run = self._run(cell.cell_id)
        repeated = request.repetitions
        drawn = run.drawn()
        asked_for = (self._sweep.block_count, repeated.seed, repeated.aa, request.measurement)
        planned = (plan.blocks, plan.seed, plan.aa, plan.request and plan.request.measurement)
        identity = (plan.run_id, plan.order_seed)
        if planned != asked_for or identity != (drawn["run_id"], drawn["order_seed"]):
            raise TransferError(f"the plan of {cell.cell_id} that arrived is not the one that the sweep asks for")
        run.begin(plan)

    def _take_record(self, block: int, run: CellRun, name: Path, text: str) -> None:
        record = TrialRecord.model_validate_json(text)
        plan = run.plan()
        trials: Iterable[Trial] = ()
        if plan:
            trials = plan.with_cpus_of(record.job.envelope).trials_of(block)
        facts = operator.attrgetter(*OF_TRIAL)
        if facts(record) not in map(facts, trials):
            raise TransferError(f"{run.directory.name}/{name} arrived, and is no record of block {block}")
        tries = range(0)
        if record.outcome.status == "failed":
            tries = range(1, run.retries + 2)
        attempts = [Path(ATTEMPTS, attempt_file(record.trial_id, number)) for number in tries]
        if name not in (Path(TRIALS, record_file(record.trial_id)), *attempts):
            raise TransferError(f"{run.directory.name}/{name} arrived, and has the name of another record")
        path = run.directory / name
        if path.exists():
            if read(path) == text.encode():
                return
            before = read_record(path)
            if before and (name in attempts or before.outcome.status == "ok"):
                raise TransferError(f"{run.directory.name}/{name} arrived, but a different record already exists")
        write_atomic(path, text, below=self._directory.path)
