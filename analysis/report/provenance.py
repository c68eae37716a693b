"""The origin of numbers: the plans and environments of the runs, and the commands that repeat them."""

import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis.load.plans import plan_of
from analysis.load.records import Records
from suite.job.envelope import format_cpu_list
from suite.plan import Plan
from suite.records.reader import NewerRecordError
from suite.records.record import TrialRecord
from suite.registries import INJURIES
from suite.request.request import OPTIONS, command_of
from suite.request.traits import traits_of
from suite.results.store import read_record
from suite.selftest.injuries import get_injury
from suite.targets import VMS


@dataclass(frozen=True)
class Provenance:
    run_id: str
    name: str
    """The name of its directory."""
    suite_versions: tuple[str, ...]
    started_at: str
    plan: str | None
    """The text of ``plan.json``, where there is one."""
    commands: tuple[str, ...]
    environments: Mapping[str, Mapping[str, str]]
    """The facts of the host of a run, and of the inside of its targets."""


def provenance(records: Records) -> tuple[Provenance, ...]:
    """Return the provenance of each run, with the environment of its first readable trial on each target."""
    of_runs = []
    for run_id, trials in records.trials.groupby("run_id", observed=True):
        environments: dict[str, dict[str, str]] = {}
        versions: dict[str, None] = {}
        for target, of_target in trials.groupby("target", observed=True):
            record = _first(of_target["path"])
            if record:
                environment = record.environment
                versions[record.suite_version] = None
                if not environments:
                    environments["host"] = _facts(asdict(environment.host))
                if environment.target:
                    environments[str(target)] = _facts(asdict(environment.target))
        first = Path(str(trials["path"].iloc[0]))
        directory = first.parents[1]
        plan = plan_of(directory)
        commands = _commands(directory, plan)
        provenance = Provenance(
            run_id=str(run_id),
            name=directory.resolve().name,
            suite_versions=tuple(versions),
            started_at=str(trials["started_at"].min()),
            plan=plan.model_dump_json(indent=2) if plan else None,
            commands=tuple(map(shlex.join, commands)),
            environments=environments,
        )
        of_runs.append(provenance)
    return tuple(of_runs)


def _commands(directory: Path, plan: Plan | None) -> list[list[str]]:
    """Return the commands that repeat a run, compare it, and write its page."""
    commands = []
    if plan:
        injured = set(plan.ablations) & set(INJURIES)
        commands.append(selftest_command(plan) if injured else run_command(plan))
    commands.append(["bench", "compare", str(directory)])
    commands.append(["bench", "report", str(directory), "--html", "report.html"])
    return commands


def _first(paths: Iterable[str]) -> TrialRecord | None:
    for path in paths:
        # What is wrong with a record is said where it is loaded.
        with suppress(OSError, NewerRecordError):
            record = read_record(Path(path))
            if record:
                return record
    return None


def _facts(values: dict[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, dict):
        texts = [f"{key}: {_text(fact)}" for key, fact in value.items() if fact is not None]
        return "; ".join(texts)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value)) or "none"
    return str(value)


def selftest_command(plan: Plan) -> list[str]:
    """Return the ``bench selftest`` that does the injuries of this plan again."""
    words = ["bench", "selftest", "--blocks", str(plan.blocks)]
    for target in plan.targets:
        words += ["--target", target]
    for name in plan.ablations:
        if get_injury(name).changes:
            words += ["--injury", name]
    return words


def run_command(plan: Plan) -> list[str]:
    """Return the ``bench run`` that makes this plan again on the same machine."""
    job = plan.job
    # Machines of an inventory number their own CPUs, and kubelets choose those of pods: what stays is how many.
    counted = job.machines or (job.distributed and not job.distributed.lab) or job.of_pods
    cpus = format_cpu_list(job.envelope.cpus)
    if counted:
        cpus = str(len(job.envelope.cpus))
    elif cpus.isdigit():
        cpus = f"{cpus}-{cpus}"  # a number alone would mean how many
    resolved: dict[str, object] = {"target": plan.targets}
    if not job.command:
        resolved[traits_of(job.scenario).subject] = _models(plan)
    resolved |= {
        "ablate": plan.ablations,
        "blocks": plan.blocks,
        "warmup_blocks": plan.warmup_blocks,
        "seed": plan.seed,
        "cpus": cpus,
        "memory": str(job.envelope.memory_bytes),
        "threads": job.envelope.threads,
        "engine": job.layers.engine,
        "accel": job.layers.accelerator if VMS.intersection(plan.targets) else None,
        "data": f"{job.data}:{job.dataset.directory}" if job.dataset and not job.command else None,
        # How many blocks it took is known now.
        **dict.fromkeys(("until", "detect", "max_blocks", "budget")),
    }
    options: dict[str, object] = {"scenario": job.scenario}
    if plan.request:
        options = plan.request.given()
    return command_of({**options, **resolved})


def _models(plan: Plan) -> tuple[str, ...]:
    """Return the models as the command line takes them: a user's own by its file, of which records have the name."""
    models = plan.request.measurement.model if plan.request else ()
    if any(OPTIONS["model"].is_path(word) for word in models):
        return models
    return plan.models
