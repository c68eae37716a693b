"""Resolve a request with the facts of this machine, or of those of an inventory. Nothing is started."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from commands.run.inventory import InventoryMachines, machines_of, machines_of_targets
from commands.run.validate import check_gpus, check_profile, workers_here
from provisioning import data_device, doctor
from provisioning.doctor import Check
from provisioning.engines.base import default_engine, get_engine
from provisioning.engines.kubernetes import nodes_of
from provisioning.gpus import Card, chosen, examined
from provisioning.images import image as images
from provisioning.images.image import Image
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import get_provider
from provisioning.nodes import local_node
from provisioning.openers import Opener, opener_of
from provisioning.paths import home
from provisioning.targets import Choices, booted
from scenarios.own_workload import adopt
from suite.errors import RequestError, option, spelled
from suite.interfaces import TurnScenario
from suite.job.datasets import Dataset
from suite.job.profiles import PROFILES, Profile
from suite.registries import WORKLOADS
from suite.request.parts import gpu_words
from suite.request.request import OPTIONS, RunRequest
from suite.request.scenario import PlannedScenario, scenario_of
from suite.targets import BASELINE, TARGETS, VMS

Note = Callable[[str], None]


@dataclass(frozen=True)
class Resolved:
    """A request with the facts of the machines that will serve it."""

    request: RunRequest
    scenario: PlannedScenario
    models: tuple[str, ...]
    """The workloads, the probes or the command, by the names that records have for them."""
    targets: tuple[str, ...]
    """Those of the request that can be served."""
    choices: Choices
    data: str
    """The name of the data."""
    dataset: Dataset | None
    opener: Opener
    """The way in which its targets are opened."""
    machines: InventoryMachines | None = None
    """The machines of the inventory, in place of this one."""

    @property
    def profile(self) -> Profile:
        return PROFILES[self.request.measurement.profile]


def resolve(request: RunRequest, note: Note, checks: Sequence[Check] | None = None) -> Resolved:
    """Return what the machines make of the request. Raises RequestError for what they cannot serve.

    ``checks`` are what ``doctor.examine`` found on this machine, where that is known already.
    """
    check_profile(request)
    request = of_members_that_load(request, note)
    scenario = scenario_of(request)
    request = with_baseline(request, scenario, note)
    files = OPTIONS["model"].is_path if scenario.workloads else lambda _: False
    words = (adopt(word) if files(word) else word for word in scenario.models(request))
    models = tuple(dict.fromkeys(words))
    data, dataset = data_of(request, scenario, note)
    if path := request.joining.inventory:
        image, pods = _image_of(request), None
        _refuse_adopted(image)
        if scenario.joined:
            machines = machines_of(request, scenario, path, image, dataset, note)
        else:
            if request.targets.engine and get_engine(request.targets.engine).is_cluster:
                # The doctor knows what this machine carries, and nothing but pods is opened from it.
                pods = choices_of(request, (), request.targets.target, note)
            machines = machines_of_targets(request, path, image, dataset, pods, note)
        choices = (
            replace(pods, inventory=machines.inventory)
            if pods
            else machines.choices(image, _gpus_there(request, image))
        )
        targets = machines.targets
        opener = opener_of(choices, scenario, targets)
        return Resolved(request, scenario, models, targets, choices, data, dataset, opener, machines)
    if checks is None:
        note("checking this machine")
        checks = doctor.examine({request.targets.engine})
    _refuse_cuda(request)
    checks = doctor.with_image(checks, image := _image_of(request))
    targets = carried(request, checks, note, image)
    choices = choices_of(request, checks, targets, note)
    opener = opener_of(choices, scenario, targets)
    return Resolved(request, scenario, models, targets, choices, data, dataset, opener)


def of_members_that_load(request: RunRequest, note: Note) -> RunRequest:
    """Return the request; of all members of a registry, those that fail to load or to fit the scenario are left out.

    One that was named among others stays, and is refused where it is used.
    """
    for declared in OPTIONS.values():
        if not (declared.several and declared.about.members and declared.known_to(request.scenario)):
            continue
        names: tuple[str, ...] = request.value(declared.name)
        if set(names) != set(declared.choices(request.scenario)):
            continue
        trained = WORKLOADS in declared.about.members
        failures = (_refused(request, names) if trained else {}) | declared.failures()
        if len(failures) == len(names):
            continue
        for why in failures.values():
            note(f"left out: {why}")
        if failures:
            request = request.changed(**{declared.name: tuple(name for name in names if name not in failures)})
    return request


def _refused(request: RunRequest, names: Sequence[str]) -> dict[str, str]:
    """Return, by name, why the scenario cannot run a workload."""
    reasons = {}
    for name in (name for name in names if name in WORKLOADS):
        try:
            scenario_of(request).check_model(request, name)
        except RequestError as error:
            reasons[name] = error.message
    return reasons


def with_baseline(request: RunRequest, scenario: PlannedScenario, note: Note) -> RunRequest:
    """Return the request, with bare metal added if an option needs ratios to it."""
    asked = request.repetitions
    reasons = {"until": asked.until, "detect": asked.detect, "aa": asked.aa}
    if isinstance(scenario, TurnScenario) and not request.targets.ablate:
        reasons["design"] = bool(request.measurement.turns)
    needing = [option(name) for name, value in reasons.items() if value]
    if not needing or BASELINE in request.targets.target or not scenario.normalised:
        return request
    note(spelled(f"{option('target')} {BASELINE} is added: {needing[0]} needs ratios to it"))
    return request.changed(target=(BASELINE, *request.targets.target))


def carried(request: RunRequest, checks: Sequence[Check], note: Note, image: Image | None = None) -> tuple[str, ...]:
    """Return the targets that this machine carries; of all targets, those that it does not carry are left out.

    Raises RequestError for one that was named, and that it does not carry.
    """
    targets = request.targets.target
    by_name = {check.name: check for check in checks if check.kind == "target"}
    if "container-vm" not in booted(TARGETS, request.targets.engine):
        by_name["container-vm"] = by_name["container"]
    if missing := lacking_in_guests(request):
        why, remedy = f"the image of the guests has no {missing}", "leave it out, or use podman or runc as they are"
        unusable = {"usable": False, "reason": why, "remedy": remedy}
        by_name["container-vm"] = by_name["container-vm"].model_copy(update=unusable)
    if why_no_vms := _without_vms(request, image):
        unusable = {"usable": False, "reason": why_no_vms, "remedy": "leave vm and container-vm out"}
        by_name |= {name: by_name[name].model_copy(update=unusable) for name in VMS}
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


def _without_vms(request: RunRequest, image: Image | None) -> str | None:
    if request.gpus.device == "cuda":
        return "virtual machines with GPUs are not supported yet"
    return "an adopted image has no disk for virtual machines" if image and image.mounts else None


def lacking_in_guests(request: RunRequest) -> str | None:
    """Return the engine or the OCI runtime of the request that the image of the guests lacks; None if it has them."""
    engine = request.targets.engine
    return request.targets.oci_runtime or (engine if engine and not get_engine(engine).in_guests else None)


def choices_of(request: RunRequest, checks: Sequence[Check], targets: tuple[str, ...], note: Note) -> Choices:
    """Return what the layers of the targets are made of. Raises RequestError for what does not work on this machine."""
    engine = _engine_of(request, checks, targets)
    declared = [each.name for each in OPTIONS.values() if each.engine == engine]
    options = {name: str(request.value(name)) for name in declared if request.value(name)}
    accel: Accelerator = "tcg"
    if booted(targets, engine):
        accel, why = get_provider(request.targets.provider).choose_accelerator(request.targets.accel)
        note(f"VMs run under {accel}: {why}")
    image, provider = _image_of(request), request.targets.provider
    _refuse_adopted(image, engine, targets)
    nodes = nodes_of(options["node"]) if "node" in options else {}
    options |= {"node": nodes["container"]} if nodes else {}
    choices = Choices(
        image,
        engine,
        accel,
        tuple(str(card.uuid) for card in _cards_of(request, image)),
        provider=provider,
        engine_options=options,
        oci_runtime=request.targets.oci_runtime,
        vm_node=nodes.get("container-vm"),
    )
    if "container" in targets and (choices.oci_runtime or choices.container_engine.is_cluster):
        with local_node((), None) as node:
            note(f"{engine} {choices.container_engine.version(node)}")
    return choices


def _engine_of(request: RunRequest, checks: Sequence[Check], targets: tuple[str, ...]) -> str:
    """Return the engine that was named, or the default. Raises RequestError if it cannot run containers here."""
    engines = {check.name: check for check in checks if check.kind == "engine"}
    engine = request.targets.engine or default_engine([name for name, check in engines.items() if check.usable])
    local = "container" in targets and not get_engine(engine).is_cluster
    if local and not engines[engine].usable:
        raise RequestError(f"{option('engine')} {engine}: {engines[engine].reason}", remedy=engines[engine].remedy)
    return engine


def _refuse_adopted(image: Image, engine: str | None = None, targets: Sequence[str] = ("container",)) -> None:
    """Raise RequestError for what an adopted image cannot serve: its tree exists as mounts of this machine."""
    if image.mounts and "container" in targets and (engine is None or get_engine(engine).rootfs != "directory"):
        where = f"{option('engine')} {engine}" if engine else option("inventory")
        remedy = f"use {option('engine')} runc here, or an image of bench image build"
        raise RequestError(f"{where}: image {image.digest[:12]} is this machine's own tree", remedy=remedy)


def _refuse_cuda(request: RunRequest) -> None:
    if request.gpus.device == "cuda" and (missing := examined()[1]):
        raise RequestError(
            f"{option('device')} cuda: {missing}",
            remedy=f"install NVIDIA's driver, or use {option('device')} cpu",
        )


def _image_of(request: RunRequest) -> Image:
    """Return the image that was named, or that the device needs. Raises RequestError where it is none, or damaged."""
    if request.targets.image:
        image = images.find(request.targets.image)
    else:
        image = images.current("cuda" if request.gpus.device == "cuda" else "cpu")
    image.check()
    if image.mounts:  # for as long as the command runs
        click.get_current_context().with_resource(images.mounted(image, image.tree))
    return image


def _cards_of(request: RunRequest, image: Image) -> tuple[Card, ...]:
    """Return the GPUs of this machine that the request names, else those of CUDA_VISIBLE_DEVICES, else the first.

    Raises RequestError for GPUs that are not there, or on which the image's torch cannot compute.
    """
    if request.gpus.device == "cpu":
        return ()
    cards, _, _ = examined()
    words = request.gpus.gpus or os.environ.get("CUDA_VISIBLE_DEVICES")
    usable = [card for card in cards if not card.fault]
    first = tuple(usable[: workers_here(request) * (request.gpus.devices or 1)])
    source = option("gpus") if request.gpus.gpus else "CUDA_VISIBLE_DEVICES"
    try:
        named = gpu_words(words) if words else ()
    except RequestError as error:
        raise RequestError(f"{source}: {error.message}", remedy=error.remedy) from error
    given = first if words is None else chosen(cards, named, source)
    check_gpus(request, image, given)
    return given


def _gpus_there(request: RunRequest, image: Image) -> tuple[str, ...]:
    """Return the words that name GPUs on machines of an inventory. Raises RequestError as ``_cards_of`` does."""
    if request.gpus.device == "cpu":
        return ()
    words = gpu_words(request.gpus.gpus or ",".join(map(str, range(request.gpus.devices or 1))))
    check_gpus(request, image, [Card(word) for word in words])
    return words


def data_of(request: RunRequest, scenario: PlannedScenario, note: Note) -> tuple[str, Dataset | None]:
    """Return the name of the data and, if they are files, the data set. Raises RequestError if it cannot be used."""
    name, dataset = scenario.data_set(request, home(), note)
    if dataset and request.data.data_disk:
        device = str(Path(request.data.data_disk).absolute())
        data_device.check(device, dataset, f"{name}:{dataset.directory}")
        dataset = dataset.model_copy(update={"device": device})
    return name, dataset
