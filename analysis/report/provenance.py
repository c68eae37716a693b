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
from suite.job.job import Job
from suite.job.profiles import PROFILES
from suite.plan import Plan
from suite.records.migrations import NewerRecordError, current
from suite.records.record import TrialRecord
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
    """``bench run`` with what makes this plan again on the same machine."""
    argv = ["bench", "run", "--scenario", plan.job.scenario]
    argv += [word for target in plan.targets for word in ("--target", target)]
    named = "--probe" if plan.job.scenario == PROBE else "--model"
    argv += [word for model in plan.models for word in (named, model)]
    argv += [
        "--profile",
        plan.job.profile,
        "--recipe",
        plan.job.recipe,
        "--blocks",
        str(plan.blocks),
        "--seed",
        str(plan.seed),
    ]
    envelope = plan.job.envelope
    # Each machine of an inventory numbers its own CPUs: what they have in common is how many they give.
    on_machines = plan.job.cluster is not None and plan.job.cluster.lab is None
    cpus = str(len(envelope.cpus)) if on_machines else format_cpu_list(envelope.cpus)
    argv += ["--cpus", cpus, "--memory", str(envelope.memory_bytes)]
    argv += ["--threads", str(envelope.threads)]
    flags = {
        "data_disk": "--data-disk",
        "decoder": "--decoder",
        "engine": "--engine",
        "accelerator": "--accel",
        "isa": "--isa",
        "gpus": "--gpus",
        "vfio": "--vfio",
        "device": "--device",
        "devices": "--devices",
        "parallel": "--parallel",
    }
    argv += [
        word for name, flag in flags.items() if name in _options(plan.job) for word in (flag, _options(plan.job)[name])
    ]
    usual = PROFILES[plan.job.profile].workloads if plan.job.profile in PROFILES else {}
    first = plan.job.sizes
    for name in ("batch", "image_px", "steps", "warmup_steps"):
        # One override on the command line holds for all models.
        values = {getattr(workload, name) for workload in (job.sizes for job in plan.jobs)}
        if first and len(values) == 1 and any(getattr(usual.get(m), name, None) not in values for m in plan.models):
            argv += [f"--{name.replace('_', '-')}", str(getattr(first, name))]
    profile = PROFILES.get(plan.job.profile)
    if profile is None or plan.trial_timeout_s != profile.trial_timeout_s:
        argv += ["--trial-timeout", str(plan.trial_timeout_s)]
    return [*argv, *_cluster(plan), *_blocks_and_data(plan)]


def _options(job: Job) -> dict[str, str]:
    layers = {name: value for name, value in job.layers.model_dump().items() if value}
    devices = {} if job.devices.device == "cpu" else {"device": "cuda", "devices": str(job.devices.devices)}
    loading = (
        {name: str(value) for name, value in job.loading.model_dump().items() if value is not None}
        if job.loading
        else {}
    )
    more = {"isa": job.isa, "fio_job": job.fio_job, "data_disk": job.dataset.device if job.dataset else None}
    found = {**layers, **devices, **loading, "parallel": job.devices.parallel}
    return found | {name: value for name, value in more.items() if value}


def _cluster(plan: Plan) -> Iterator[str]:
    cluster = plan.job.cluster
    if cluster is None:
        return
    yield from ("--strategy", cluster.strategy, "--workers", str(cluster.workers))
    if cluster.servers:
        yield from ("--ps", str(cluster.servers))
    # A plan knows the machines and not the file that listed them.
    yield from ("--lab", str(cluster.lab)) if cluster.lab else ("--inventory", "hosts.toml")
    yield from ("--network", cluster.network, "--comm-timeout", str(cluster.comm_timeout_s))


def _blocks_and_data(plan: Plan) -> Iterator[str]:
    if plan.job.dataset:
        yield from ("--data", f"{plan.job.data}:{plan.job.dataset.directory}")
    if _options(plan.job).get("loader_workers", "auto") != "auto":
        yield from ("--loader-workers", _options(plan.job)["loader_workers"])
    if job := _options(plan.job).get("fio_job"):
        # A plan knows the text of the job file by its digest alone.
        yield from ("--fio-job", f"sha256-{job[:12]}.fio")
    if plan.job.page_cache:
        yield from ("--cache", plan.job.page_cache)
    for name in plan.ablations:
        yield from ("--ablate", name)
    if plan.job.sharing:
        yield from (word for name in plan.job.sharing.aggressors for word in ("--aggressor", name))
        yield from ("--aggressors", str(plan.job.sharing.copies), "--bare-metal-cpus", plan.job.sharing.bare_metal_cpus)
        profile = PROFILES.get(plan.job.profile)
        for name, sizes in plan.job.sharing.workloads.items():
            if profile is None or sizes != profile.workloads.get(name):
                yield from ("--aggressor-batch", str(sizes.batch))
                break
    if plan.warmup_blocks or plan.blocks > 1:
        yield from ("--warmup-blocks", str(plan.warmup_blocks))
    if plan.aa:
        yield "--aa"
