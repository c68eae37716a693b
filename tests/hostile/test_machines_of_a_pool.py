"""A machine of a pool adds the records of the block that it was given, and can do nothing else to a sweep."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from suite.plan import Plan
from suite.records.environment import Environment, Environments
from suite.records.record import Outcome, TrialRecord
from suite.results.store import read_record
from suite.sweep.cells import Cell, cells_of, request_of
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import Sweep, read_sweep
from suite.sweep.file_transfer import TransferError, encode
from suite.sweep.pool import Receiver
from tests.jobs import plan_of
from tests.suite.conftest import ENVELOPE, FAILED, WORKLOAD

OK: dict[str, Any] = {"throughput_per_s": 10.0, "elapsed_s": 5.0, "outcome": Outcome(status="ok")}


class Pool:
    """A sweep of three blocks whose one cell was begun, and what a machine sends."""

    def __init__(self, place: Path) -> None:
        self.sweep: Sweep = read_sweep({"name": "night", "targets": ["bare-metal"], "blocks": 3}, "night.toml")
        self.directory = SweepDirectory(place / "out")
        cells = cells_of(self.sweep)
        self.directory.accept(self.sweep, cells)
        self.cell: Cell = cells[0]
        self.receive = Receiver(self.sweep, self.directory)
        self.plan = self.planned()

    def planned(self, **changes: Any) -> Plan:
        request = request_of(self.sweep, self.cell)
        values = {"blocks": 3, "sizes": WORKLOAD, "envelope": ENVELOPE, "request": request, "profile": "quick"}
        values |= self.directory.cell(self.cell.cell_id, 0).drawn()
        return plan_of(**{**values, **changes})

    def begin(self) -> None:
        self.receive(0, encode(f"{self.cell.cell_id}/plan.json", self.plan.model_dump_json()))

    def record(self, block: int = 0, **changes: Any) -> TrialRecord:
        (trial,) = self.plan.trials_of(block)
        own = {name: getattr(trial, name) for name in trial.__class__.model_fields if name in TrialRecord.model_fields}
        about = {"suite_version": "0", "started_at": "now"}
        return TrialRecord(**{**own, **about, "environment": Environments(host=Environment()), **OK, **changes})

    def send(self, record: TrialRecord, block: int = 0, name: str | None = None) -> Path:
        name = name or f"trials/{record.trial_id}.json"
        self.receive(block, encode(f"{self.cell.cell_id}/{name}", record.model_dump_json()))
        return self.directory.path / self.cell.cell_id / name

    def files(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self.directory.path.rglob("*") if path.is_file()}


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    made = Pool(tmp_path)
    made.begin()
    return made


def refused(pool: Pool, send: Callable[[], object]) -> None:
    before = pool.files()
    with pytest.raises(TransferError):
        send()
    assert pool.files() == before


def test_a_record_of_the_block_is_taken_and_sent_again_it_changes_nothing(pool: Pool) -> None:
    assert read_record(pool.send(pool.record())) == pool.record()
    pool.send(pool.record())


def test_a_failed_record_gives_way_to_the_next_attempt_and_an_ok_one_to_nothing(pool: Pool) -> None:
    failed: dict[str, Any] = {**FAILED, "elapsed_s": None}
    path = pool.send(pool.record(**failed))
    pool.send(pool.record(**failed), name=f"attempts/{path.stem}.1.json")
    pool.send(pool.record())
    refused(pool, lambda: pool.send(pool.record(throughput_per_s=99.0)))
    refused(pool, lambda: pool.send(pool.record(**failed)))
    refused(pool, lambda: pool.send(pool.record(**failed, suite_version="1"), name=f"attempts/{path.stem}.1.json"))
    refused(pool, lambda: pool.send(pool.record(**failed), name=f"attempts/{path.stem}.7.json"))


def test_a_record_of_another_block_or_of_no_trial_is_refused(pool: Pool) -> None:
    refused(pool, lambda: pool.send(pool.record(1), block=0))
    refused(pool, lambda: pool.send(pool.record(target="container")))
    refused(pool, lambda: pool.send(pool.record(trial_id="synthetic-resnet50-vm-b000")))
    refused(pool, lambda: pool.send(pool.record(), name="trials/another-b000.json"))
    refused(pool, lambda: pool.send(pool.record(job=pool.record().job.model_copy(update={"recipe": "tuned"}))))


def test_a_node_that_has_chosen_other_cpus_adds_to_the_same_plan_and_one_with_more_does_not(tmp_path: Path) -> None:
    chosen = ENVELOPE.model_copy(update={"node_chosen": True})
    pool = Pool(tmp_path)
    pool.plan = pool.planned(envelope=chosen)
    pool.begin()
    for number, cpus in enumerate(((40, 41), (50, 51))):
        pool.plan = pool.planned(envelope=chosen.model_copy(update={"cpus": cpus}))
        pool.begin()
        assert read_record(pool.send(pool.record(number), block=number)) == pool.record(number)
    for changes in ({"cpus": (40, 41, 42)}, {"cpus": (40, 41), "node_chosen": False}, {"cpus": (40, 41), "threads": 1}):
        pool.plan = pool.planned(envelope=chosen.model_copy(update=changes))
        refused(pool, lambda: pool.send(pool.record(2), block=2))


@pytest.mark.parametrize(
    "name",
    [
        *("sweep.json", "converged.json", "x.toml", "{cell}/manifest.json", "{cell}/attempts/x.json"),
        "other-12345678/plan.json",
    ],
)
def test_no_other_file_of_the_sweep_is_taken(name: str, pool: Pool) -> None:
    line = encode(name.format(cell=pool.cell.cell_id), (pool.directory.path / "sweep.json").read_text())
    refused(pool, lambda: pool.receive(0, line))


def test_the_plan_of_a_cell_is_the_sweeps_and_stays_as_it_is(tmp_path: Path, pool: Pool) -> None:
    name = f"{pool.cell.cell_id}/plan.json"
    new = Pool(tmp_path / "new")
    for changes in (
        {"blocks": 4},
        {"seed": 9},
        {"aa": True},
        {"request": None},
        {"order_seed": 1},
        {"run_id": "0" * 16},
    ):
        refused(new, partial(new.receive, 0, encode(name, new.planned(**changes).model_dump_json())))
    before = pool.files()
    other = pool.planned(trial_timeout_s=1)
    with pytest.raises(Exception, match="another plan"):
        pool.receive(0, encode(name, other.model_dump_json()))
    assert pool.files() == before


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema_version": 3}', "", "\ud800", '{"run_id": "\\ud800"}'])
def test_what_is_no_record_is_refused(text: str, pool: Pool) -> None:
    name = f"{pool.cell.cell_id}/trials/{pool.record().trial_id}.json"
    refused(pool, lambda: pool.receive(0, encode(name, text)))


@pytest.mark.parametrize("line", ['{"path": "x.json", "text": 1' + "0" * 400 + "}", "[" * 100_000, json.dumps(7)])
def test_what_is_no_line_is_refused(line: str, pool: Pool) -> None:
    refused(pool, lambda: pool.receive(0, line))
