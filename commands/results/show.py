"""Describe one run or one record, as lines and as JSON."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from commands.output import Output
from suite.differ import Host
from suite.errors import RequestError
from suite.job.job import settings
from suite.part import Part, first_problem
from suite.plan import Plan
from suite.records.headers import headers
from suite.records.reader import clean_record
from suite.records.record import TrialRecord
from suite.results.files import read_small
from suite.results.notes import RunNotes, readable_notes
from suite.results.runs import find_run
from suite.results.store import TRIALS, stored_plan
from suite.results.summary import RunSummary, summarise
from suite.trial_names import record_file
from suite.units import count


def find_record(name: str) -> Path | None:
    """Return the file of a record, named by its path or as RUN/TRIAL; None if it is not the name of a record."""
    if name.endswith(".json") and Path(name).is_file():
        return Path(name)
    run, _, trial = name.rpartition("/")
    if not run:
        return None
    try:
        path = find_run(run) / TRIALS / record_file(trial)
    except RequestError:
        return None  # it may be the name of a run
    return path if path.is_file() else None


def _read(path: Path) -> TrialRecord:
    try:
        return TrialRecord.model_validate_json(clean_record(read_small(path)))
    except ValidationError as error:
        raise RequestError(f"{path} is not a record of this suite ({first_problem(error, 'the file')})") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def record_json(path: Path) -> Any:  # noqa: ANN401 (any value of JSON)
    # Details hold what they like; of infinity this makes null, where json.dumps would make what is not JSON.
    return json.loads(_read(path).model_dump_json())


def record_lines(path: Path) -> Iterator[str]:
    """Yield what a reader looks for first; the rest is in the JSON."""
    record = _read(path)
    outcome = record.outcome
    throughput = record.throughput_per_s
    spans = {name: getattr(record, name) for name in ("elapsed_s", "open_s", "close_s")}
    words = {
        f"{record.job.scenario}, {record.job.model} on {record.target}": True,
        f"{record.ablation} switched": record.ablation,
        f"beside {record.aggressor}": record.aggressor,
        f"block {record.block}": True,
        "warm-up": record.warm_up,
    }
    yield f"{record.trial_id}  (run {record.run_id}, {record.started_at})"
    yield f"  {', '.join(text for text, holds in words.items() if holds)}"
    values = {
        "outcome": ": ".join(filter(None, (outcome.status, outcome.kind, outcome.message))),
        "throughput": throughput and f"{throughput:.4g} {record.unit}/s",
        **{name: f"{metric.value:.4g} {metric.unit}".rstrip() for name, metric in record.metrics.items()},
        **{name: f"{seconds:.4g}" for name, seconds in spans.items() if seconds is not None},
        "substitutes": ", ".join(record.substitutes),
        "host": _host_line(Host.of(asdict(record.environment.host))),
        "file": path,
        "command": " ".join(outcome.command),
    }
    yield from (f"  {name}: {value}" for name, value in values.items() if value)
    if outcome.output_tail:
        yield "  the end of its output:"
        yield from (f"    {line}" for line in outcome.output_tail.rstrip().splitlines())


def _host_line(host: Host) -> str:
    return f"{host.hostname or 'unknown'}, {host.cpu_model or 'unknown CPU'}, kernel {host.kernel or 'unknown'}"


class ArmCount(Part):
    """The trials of a model and an arm, without warm-up ones."""

    model: str
    target: str
    ok: int
    failed: int


class Failure(Part):
    """A trial that failed."""

    trial_id: str
    kind: str | None
    message: str | None


class ShownRunOutput(Output):
    """A run: its summary, plan, hosts, counts and failures."""

    summary: RunSummary
    plan: Plan
    hosts: list[Host]
    arms: list[ArmCount]
    failures: list[Failure]
    notes: RunNotes = RunNotes()


def run_output(run: Path) -> ShownRunOutput:
    heads = list(headers(run))
    counts = Counter((header.job.model, header.arm, header.ok) for header in heads if not header.warm_up)
    measured = dict.fromkeys((model, arm) for model, arm, _ in counts)
    arms = [
        ArmCount(model=model, target=arm, ok=counts[model, arm, True], failed=counts[model, arm, False])
        for model, arm in measured
    ]
    failures = [
        Failure(trial_id=header.trial_id, kind=header.error_kind, message=header.error_message)
        for header in heads
        if not header.ok
    ]
    return ShownRunOutput(
        summary=summarise(run),
        plan=stored_plan(run),
        hosts=list(dict.fromkeys(header.host for header in heads)),
        arms=arms,
        failures=failures,
        notes=readable_notes(run),
    )


def notes_lines(notes: RunNotes) -> Iterator[str]:
    if notes.tags:
        yield f"tags: {', '.join(notes.tags)}"
    if notes.text:
        yield f"note: {notes.text}"


def run_lines(run: Path) -> Iterator[str]:
    described = run_output(run)
    summary = described.summary
    plan = described.plan
    job = described.plan.job
    yield f"{run.resolve().name}  {run}"
    yield from (f"  {line}" for line in notes_lines(described.notes))
    yield f"  {summary.started_at or 'no trial yet'} to {summary.last_at or 'now'}"
    yield f"  scenario {job.scenario}, data {job.data}, profile {job.profile}, recipe {job.recipe}"
    yield f"  run {plan.run_id}, begun by virtbench {plan.suite_version or 'of an unknown version'}"
    yield f"  {count(plan.blocks, 'block')}, seed {plan.seed}, order seed {plan.order_seed or 'none'}"
    for name, value in settings(job).items():
        yield f"  {name}: {value}"
    yield f"  trials: {summary.ok} ok, {summary.failed} failed, {summary.unreadable} unreadable"
    for arm in described.arms:
        yield f"    {arm.model} on {arm.target}: {arm.ok} ok, {arm.failed} failed"
    for host in described.hosts:
        yield f"  host: {_host_line(host)}"
    for failure in described.failures:
        yield f"  failed: {failure.trial_id}: {failure.kind}: {failure.message}"
    yield f"  compare it with: bench compare {run}"
