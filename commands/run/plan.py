"""From the options of a run to its plan: everything is checked here, before anything is started."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.run.distributed import check_instances, cluster_of, fleet_in
from commands.run.shared import check_shares, sharing_of, victims
from commands.run.validate import ablations_of, check_blocks, check_data, refuse_foreign
from suite.errors import RequestError
from suite.job.ablations import properties_of
from suite.job.datasets import GENERATED, SYNTHETIC, Dataset
from suite.job.envelope import Envelope, parse_bytes, plan_envelope
from suite.job.job import CpuCapability, Devices, Job, Loading
from suite.job.profiles import MODELS, Profile, Sizes, get_profile, make_workload
from suite.job.sharing import VICTIMS
from suite.plan import TARGETS, VMS, Plan

if TYPE_CHECKING:
    from provisioning.doctor import Check
    from provisioning.images.image import Image
    from provisioning.targets import Choices

Options = dict[str, Any]
Note = Callable[[str], None]
LEAST_BLOCKS_TO_WARM_UP = 3
"""A run of so many blocks or more is about intervals, which a first block on cold caches would widen."""


def carried(targets: tuple[str, ...], checks: "list[Check]", note: Note) -> tuple[str, ...]:
    """The targets that this machine carries. One that was named is refused if it is not; of ``all`` it is left out."""
    by_name = {check.name: check for check in checks if check.kind == "target"}
    everything = set(targets) == set(TARGETS)
    found = []
    for target in targets:
        check = by_name[target]
        if check.usable:
            found.append(target)
        elif everything and any(by_name[other].usable for other in TARGETS):
            note(f"{target} is left out: {check.reason} (what to do: {check.remedy})")
        else:
            raise RequestError(f"this machine cannot carry {target}: {check.reason}", remedy=check.remedy)
    return tuple(found)


def choices_of(options: Options, checks: "list[Check]", targets: tuple[str, ...], note: Note) -> "Choices":
    """What the user chose of the layers, resolved on this machine."""
    from provisioning.engines.base import default_engine, get_engine
    from provisioning.machines.accelerator import Accelerator
    from provisioning.machines.base import get_provider
    from provisioning.targets import Choices

    working = [check.name for check in checks if check.kind == "engine" and check.usable]
    engine = options["engine"] or default_engine(working)
    if "container" in targets:
        get_engine(engine)  # an engine of another package that does not load has no check
        check = next(check for check in checks if check.kind == "engine" and check.name == engine)
        if not check.usable:
            raise RequestError(f"--engine {engine}: {check.reason}", remedy=check.remedy)
    accel: Accelerator = "tcg"
    if VMS.intersection(targets):
        accel, why = get_provider(options["provider"]).choose_accelerator(options["accel"])
        note(f"VMs run under {accel}: {why}")
    nvml = next(check for check in checks if check.name == "nvml")
    if options["device"] == "cuda" and not nvml.usable and not options["vfio"]:
        raise RequestError(f"--device cuda: {nvml.reason}", remedy="install NVIDIA's driver, or use --device cpu")
    vfio = _words("--vfio", options["vfio"], r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "0000:01:00.0")
    return Choices(image_of(options), engine, accel, gpus_of(options), vfio, provider=options["provider"])


def image_of(options: Options) -> "Image":
    """The image that the device needs. Raises RequestError where there is none, or it is damaged."""
    from provisioning.images.image import current

    image = current("cuda" if options["device"] == "cuda" else "cpu")
    image.check()
    return image


def gpus_of(options: Options) -> tuple[str, ...]:
    return _words("--gpus", options["gpus"], r"\d+", "0,1")


def _words(option: str, text: str | None, form: str, example: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    for word in words:
        if not re.fullmatch(form, word):
            raise RequestError(f"{option} {text}: {word!r} is none", remedy=f"write it as {example}; see bench doctor")
    return words


def models_of(options: Options) -> tuple[str, ...]:
    """What is trained. Raises RequestError for a victim's name where there is no victim."""
    shared = options["scenario"] == "shared"
    if not options["models"]:
        # The smoke profile proves the path, and on an emulated CPU every victim takes minutes.
        return VICTIMS if shared and options["profile"] != "smoke" else ("resnet50",)
    named: tuple[str, ...] = options["models"]
    if shared or set(named) <= set(MODELS):
        return named
    if named != VICTIMS:
        raise RequestError("--model alexnet-small is a victim", remedy="use --scenario shared, or alexnet with --batch")
    return MODELS


def data_of(options: Options) -> tuple[str, Dataset | None]:
    """The name of the data and, where they are files, the data set."""
    from provisioning.paths import home
    from scenarios.datasets.resolve import resolve

    real = options["scenario"] == "real"
    given = options["data"] or (GENERATED if real else SYNTHETIC)
    if options["data_disk"] and given == SYNTHETIC:
        raise RequestError("--data-disk is about a data set", remedy="use --scenario real")
    if options["scenario"] == "distributed":
        return _on_disk(options, *resolve(given, home())) if given != SYNTHETIC else (given, None)
    if real == (given == SYNTHETIC):
        scenario = "synthetic" if real else "real"
        raise RequestError(
            f"--data {given} with --scenario {options['scenario']}", remedy=f"use --scenario {scenario} for it"
        )
    if not real and options["cache"]:
        raise RequestError("--cache is about a data set", remedy="use --scenario real")
    return _on_disk(options, *resolve(given, home())) if real else (given, None)


def _on_disk(options: Options, name: str, dataset: Dataset) -> tuple[str, Dataset]:
    """The data set on the device that the user has put it on. Raises RequestError where it is not there."""
    from provisioning import data_device

    if options["data_disk"]:
        device = str(Path(options["data_disk"]).absolute())
        data_device.check(device, dataset, f"{name}:{dataset.directory}")
        dataset = dataset.model_copy(update={"device": device})
    return name, dataset


def plan_of(
    options: Options, targets: tuple[str, ...], choices: "Choices", data: tuple[str, Dataset | None], note: Note
) -> Plan:
    """Raises RequestError for what cannot be run."""
    check_blocks(options, targets)
    refuse_foreign(options)
    profile = get_profile(options["profile"])
    cluster = cluster_of(options, choices, targets)
    instances = len(cluster.roles) if cluster else 1 + (options["copies"] or 1) * (options["scenario"] == "shared")
    envelope = _envelope(options, profile, instances)
    sharing = sharing_of(options, profile)
    if sharing:
        check_shares(sharing, envelope, targets, note)
    if cluster:
        check_instances(cluster, envelope, note)
    name, dataset = data
    capability = _capability(options, choices, targets, envelope, note)
    sizes = _sizes(options, profile)
    models = options["probes"] if options["scenario"] == "probe" else options["models"]
    job = Job(
        scenario=options["scenario"],
        model=models[0],
        data=name,
        profile=profile.name,
        recipe=options["recipe"],
        envelope=envelope,
        devices=Devices(device=options["device"], devices=options["devices"] or 1, parallel=options["parallel"]),
        isa=options["isa"],
        cpu_capability=capability,
        dataset=dataset,
        page_cache=(options["cache"] or "cold") if dataset else None,
        loading=_loading(options) if dataset else None,
        cluster=cluster,
        sharing=sharing,
        fio_job=hashlib.sha256(options["fio_job"].encode()).hexdigest() if options["fio_job"] else None,
        layers=choices.layers(),
    )
    plan = Plan(
        jobs=tuple(job.model_copy(update={"model": model, "sizes": sizes.get(model)}) for model in models),
        targets=targets,
        blocks=_blocks(options),
        seed=options["seed"] or 0,
        trial_timeout_s=options["trial_timeout"] or profile.trial_timeout_s,
        aa=options["aa"],
        ablations=ablations_of(options, targets, choices, capability, note),
        warmup_blocks=_warmup_blocks(options),
        scratch_bytes=_scratch_bytes(options, profile),
    )
    check_data(plan, options["devices"] or 1)
    return plan


def _warmup_blocks(options: Options) -> int:
    given: int | None = options["warmup_blocks"]
    return given if given is not None else int(bool(options["until"]) or _blocks(options) >= LEAST_BLOCKS_TO_WARM_UP)


def _blocks(options: Options) -> int:
    return options["blocks"] or 1


def _capability(
    options: Options, choices: "Choices", targets: tuple[str, ...], envelope: Envelope, note: Note
) -> CpuCapability | None:
    from provisioning import isa
    from provisioning.machines.base import GuestSpec, get_provider

    if options["isa"] != "shared":
        return None
    switched = any(properties_of(name).lower_isa for name in options["ablations"])
    if fleet := fleet_in(options):
        return fleet.capability(note, always=switched)
    guest = GuestSpec(choices.image, choices.accelerator, envelope)
    return isa.shared(targets, get_provider(choices.provider), guest, note, always=switched)


def _envelope(options: Options, profile: Profile, instances: int) -> Envelope:
    import psutil

    if fleet := fleet_in(options):
        return fleet.envelopes[0]
    return plan_envelope(
        options["cpus"],
        parse_bytes(options["memory"]) if options["memory"] else profile.memory_bytes * instances,
        options["threads"],
        host_cpus=os.sched_getaffinity(0),
        host_memory_bytes=psutil.virtual_memory().total,
    )


def _sizes(options: Options, profile: Profile) -> dict[str, Sizes]:
    if options["scenario"] == "probe":
        return {}
    changed = {key: options[key] for key in ("batch", "image_px", "steps", "warmup_steps") if options[key] is not None}
    if options["scenario"] == "shared":
        return victims(profile, options["models"], changed)
    return {model: make_workload(profile, model, changed) for model in options["models"]}


def fio_job_of(options: Options) -> str | None:
    """The text of the user's own job file. Raises RequestError when it cannot be read."""
    path: Path | None = options["fio_job"]
    if path is None:
        return None
    if options["scenario"] != "probe":
        raise RequestError("--fio-job is about the disk probe", remedy="use --scenario probe --probe disk")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"--fio-job {path} cannot be read: {error}", remedy="name a job file of fio's") from error


def _scratch_bytes(options: Options, profile: Profile) -> dict[str, int]:
    from scenarios.probe import DISK, scratch_bytes

    if options["scenario"] == "shared":
        room = scratch_bytes(options["aggressors"], profile.name)
        return dict.fromkeys(options["models"], room) if room else {}
    if options["scenario"] != "probe":
        return {}
    needed = scratch_bytes(options["probes"], profile.name, options["fio_job"])
    return {DISK: needed} if needed else {}


def _loading(options: Options) -> Loading:
    return Loading(decoder=options["decoder"], loader_workers=options["loader_workers"])
