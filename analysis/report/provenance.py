"""Where numbers come from: the plans and environments of the runs, and the commands that repeat them."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from analysis.load.metrics import PROBE
from analysis.load.records import Records
from suite.errors import RequestError
from suite.job.envelope import format_cpu_list
from suite.plan import Plan
from suite.records.migrations import NewerRecordError, current
from suite.records.record import TrialRecord
from suite.request.request import command_of
from suite.results.store import stored_plan


@dataclass(frozen=True)
class Place:
    """An environment as a table: the host of a run, or the inside of one of its targets."""

    name: str
    facts: dict[str, str]


@dataclass(frozen=True)
class Provenance:
    """Of one run."""

    run_id: str
    suite_versions: tuple[str, ...]
    started_at: str
    plan: str | None
    """``plan.json`` as it is, where it is."""
    commands: tuple[str, ...]
    places: tuple[Place, ...]


def provenance(records: Records) -> tuple[Provenance, ...]:
    """One per run. Environments are those of the run's first readable trial of each target."""
    found = []
    for run_id, trials in records.trials.groupby("run_id", observed=True):
        places: list[Place] = []
        versions: dict[str, None] = {}
        for target, of_target in trials.groupby("target", observed=True):
            if record := _first(of_target["path"]):
                versions[record.suite_version] = None
                if not places:
                    places.append(Place("host", _facts(record.environment.host.model_dump())))
                if record.environment.target:
                    places.append(Place(str(target), _facts(record.environment.target.model_dump())))
        directory = Path(str(trials["path"].iloc[0])).parents[1]
        plan = _plan(directory)
        found.append(
            Provenance(
                run_id=str(run_id),
                suite_versions=tuple(versions),
                started_at=str(trials["started_at"].min()),
                plan=plan.model_dump_json(indent=2) if plan else None,
                commands=tuple(_commands(plan, directory)),
                places=tuple(places),
            )
        )
    return tuple(found)


def _first(paths: "Iterator[str]") -> TrialRecord | None:
    for path in paths:
        try:
            return TrialRecord.model_validate_json(current(Path(path).read_bytes()))
        except (OSError, NewerRecordError, ValidationError):
            continue  # what is wrong with a record is said where it is loaded
    return None


def _facts(values: dict[str, object]) -> dict[str, str]:
    """What is known, as text."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_text(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value)) or "none"
    return str(value)


def _plan(directory: Path) -> Plan | None:
    try:
        return stored_plan(directory)
    except RequestError:
        return None


def _commands(plan: Plan | None, directory: Path) -> Iterator[str]:
    if plan:
        yield shlex.join(run_command(plan))
    yield shlex.join(["bench", "compare", str(directory)])
    yield shlex.join(["bench", "report", str(directory), "--html", "report.html"])


def run_command(plan: Plan) -> list[str]:
    """Return the ``bench run`` that makes this plan again on the same machine."""
    given = plan.request.given() if plan.request else given_of(plan)
    envelope = plan.envelope
    # Each machine of an inventory numbers its own CPUs: what they have in common is how many they give.
    on_machines = plan.cluster is not None and plan.cluster.lab is None
    named = "probe" if plan.scenario == PROBE else "model"
    resolved: dict[str, object] = {
        "target": plan.targets,
        named: plan.models,
        "ablate": plan.ablations,
        "blocks": plan.blocks,
        "warmup_blocks": plan.warmup_blocks,
        "seed": plan.seed,
        "cpus": str(len(envelope.cpus)) if on_machines else format_cpu_list(envelope.cpus),
        "memory": str(envelope.memory_bytes),
        "threads": envelope.threads,
        "engine": plan.options.get("engine"),
        "accel": plan.options.get("accelerator"),
        # How many blocks the intervals took is known now.
        **dict.fromkeys(("until", "min_blocks", "max_blocks", "budget")),
    }
    if plan.dataset:
        resolved["data"] = f"{plan.data}:{plan.dataset.directory}"
    return command_of({**given, **resolved})


def given_of(plan: Plan) -> dict[str, object]:
    """Return the options of a plan that an older suite has stored without its request, as far as the plan tells."""
    options, cluster, sharing = plan.options, plan.cluster, plan.sharing
    given: dict[str, object] = {
        "scenario": plan.scenario,
        "profile": plan.profile,
        "recipe": plan.recipe,
        "trial_timeout": plan.trial_timeout_s,
        "cache": plan.page_cache,
        "aa": plan.aa,
    }
    given |= {name: options.get(name) for name in ("data_disk", "isa", "gpus", "vfio", "device", "parallel")}
    given |= {name: options.get(name) for name in ("devices", "aggressor_batch", "decoder")}
    if options.get("loader_workers") != "auto":
        given["loader_workers"] = options.get("loader_workers")
    if "fio_job" in options:
        # The plan knows the text of the job file by its digest alone, and not the inventory that listed the machines.
        given["fio_job"] = f"sha256-{options['fio_job'][:12]}.fio"
    if cluster:
        place = {"lab": str(cluster.lab)} if cluster.lab else {"inventory": "hosts.toml"}
        given |= {"strategy": cluster.strategy, "workers": cluster.workers, "ps": cluster.servers or None, **place}
        given |= {"network": cluster.network, "comm_timeout": cluster.comm_timeout_s}
    if sharing:
        given |= {"aggressor": sharing.aggressors, "aggressors": sharing.copies}
        given["bare_metal_cpus"] = sharing.bare_metal_cpus
    for name in ("batch", "image_px", "steps", "warmup_steps"):
        # One override on the command line holds for all models.
        values = {getattr(sizes, name) for sizes in plan.workloads.values()}
        given[name] = values.pop() if len(values) == 1 else None
    return given
