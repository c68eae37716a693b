"""One run or one record, for people and for machines."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from suite.errors import RequestError
from suite.host_compatibility import Host
from suite.job.job import settings
from suite.plan import arm_name
from suite.records.migrations import NewerRecordError, current
from suite.records.record import Outcome, TrialRecord
from suite.results.runs import find_run, summarise
from suite.results.store import TRIALS, stored_plan


def find_record(name: str) -> Path | None:
    """The file of a record: by its path, or as RUN/TRIAL. None where the name is no record's."""
    if name.endswith(".json") and Path(name).is_file():
        return Path(name)
    run, _, trial = name.rpartition("/")
    if not run:
        return None
    try:
        path = find_run(run) / TRIALS / f"{trial}.json"
    except RequestError:
        return None  # then it is to be the name of a run
    return path if path.is_file() else None


def _read(path: Path) -> TrialRecord:
    try:
        return TrialRecord.model_validate_json(current(path.read_bytes()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise RequestError(f"{path} is no record of this suite ({place}: {first['msg']})") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error


def record_json(path: Path) -> dict[str, Any]:
    """The record at the present schema version."""
    return _read(path).model_dump(mode="json")


def record_lines(path: Path) -> Iterator[str]:
    """What a reader looks for first; the rest is in the JSON."""
    record = _read(path)
    outcome, host = record.outcome, record.environment.host
    arm = record.target + (f", {record.ablation} switched" if record.ablation else "")
    arm += f", beside {record.aggressor}" if record.aggressor else ""
    yield f"{record.trial_id}  ({record.run_id}, {record.started_at})"
    yield f"  {record.job.scenario}, {record.job.model} on {arm}, block {record.block}" + (
        ", warm-up" if record.warm_up else ""
    )
    yield f"  outcome: {outcome.status}" + (f", {outcome.kind}: {outcome.message}" if outcome.kind else "")
    if record.throughput_images_per_s is not None:
        yield f"  throughput: {record.throughput_images_per_s:.4g} images/s"
    for name, metric in record.metrics.items():
        yield f"  {name}: {metric.value:.4g} {metric.unit}"
    for name in ("elapsed_s", "open_s", "close_s"):
        if (value := getattr(record, name)) is not None:
            yield f"  {name}: {value:.4g}"
    if record.substitutes:
        yield f"  substitutes: {', '.join(record.substitutes)}"
    yield f"  host: {host.hostname or 'unknown'}, {host.cpu_model or 'unknown CPU'}, kernel {host.kernel or 'unknown'}"
    yield f"  file: {path}"
    if outcome.command:
        yield f"  command: {' '.join(outcome.command)}"
    if outcome.output_tail:
        yield "  the end of its output:"
        yield from (f"    {line}" for line in outcome.output_tail.rstrip().splitlines()[-20:])


class _Host(BaseModel):
    host: dict[str, Any]


class _Job(BaseModel):
    model: str


class _Shown(BaseModel):
    """What is told of each record of a run; the rest, which is most of it, is not validated."""

    trial_id: str
    job: _Job
    target: str
    replica: int = 0
    ablation: str | None = None
    aggressor: str | None = None
    warm_up: bool = False
    outcome: Outcome
    environment: _Host

    @property
    def arm(self) -> tuple[str, str]:
        return self.job.model, arm_name(self.target, self.replica, self.ablation, self.aggressor)


def run_json(run: Path) -> dict[str, Any]:
    """``summary``, ``plan``, ``hosts``, ``arms`` (trials of each model and target, warm-up ones not counted), and
    ``failures``: trial, kind and message of each failed trial."""
    hosts: dict[Host, None] = {}
    arms: dict[tuple[str, str], dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    for record in _records(run):
        outcome = record.outcome
        hosts[Host.of(record.environment.host)] = None
        if not record.warm_up:
            arm = {"model": record.arm[0], "target": record.arm[1], "ok": 0, "failed": 0}
            arms.setdefault(record.arm, arm)[outcome.status] += 1
        if outcome.status == "failed":
            failures.append({"trial_id": record.trial_id, "kind": outcome.kind, "message": outcome.message})
    return {
        "schema_version": 1,
        "summary": asdict(summarise(run)),
        "plan": stored_plan(run).model_dump(mode="json"),
        "hosts": [host.model_dump() for host in hosts],
        "arms": list(arms.values()),
        "failures": failures,
    }


def _records(run: Path) -> Iterator[_Shown]:
    for path in sorted((run / TRIALS).glob("[!.]*.json")):
        try:
            yield _Shown.model_validate_json(current(path.read_bytes()))
        except (OSError, NewerRecordError, ValidationError):
            continue  # not shown; what the summary can tell of it is in the summary


def run_lines(run: Path) -> Iterator[str]:
    """The same for people."""
    told = run_json(run)
    summary, plan = told["summary"], stored_plan(run)
    yield f"{summary['run_id']}  {run}"
    yield f"  {summary['started_at'] or 'no trial yet'} to {summary['last_at'] or 'now'}"
    job = plan.job
    yield f"  scenario {job.scenario}, data {job.data}, profile {job.profile}, recipe {job.recipe}"
    yield f"  {plan.blocks} blocks, seed {plan.seed}"
    for name, value in settings(job).items():
        yield f"  {name}: {value}"
    yield f"  trials: {summary['ok']} ok, {summary['failed']} failed, {summary['unreadable']} unreadable"
    for arm in told["arms"]:
        yield f"    {arm['model']} on {arm['target']}: {arm['ok']} ok, {arm['failed']} failed"
    for host in told["hosts"]:
        yield f"  host: {host['hostname'] or 'unknown'}, {host['cpu_model'] or 'unknown CPU'}, kernel {host['kernel']}"
    for failure in told["failures"]:
        yield f"  failed: {failure['trial_id']}: {failure['kind']}: {failure['message']}"
    yield f"  compare it with: bench compare {run}"
