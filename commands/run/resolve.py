"""Resolve a request: what it names, and the site that serves it. Nothing is started."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from commands.run.validate import check_profile
from provisioning import data_device
from provisioning.doctor import Check
from provisioning.images import image as images
from provisioning.images.image import Image
from provisioning.paths import home
from provisioning.sites.base import RunInputs, Site, site_of
from scenarios.own_workload import adopt
from suite.errors import RequestError, option, spelled
from suite.interfaces import Note, TurnScenario
from suite.job.datasets import Dataset
from suite.job.profiles import PROFILES, Profile
from suite.registries import WORKLOADS
from suite.request.request import OPTIONS, RunRequest
from suite.request.scenario import PlannedScenario, scenario_of
from suite.targets import BASELINE


@dataclass(frozen=True)
class Resolved:
    """A request with what it names, and the site where it is served."""

    inputs: RunInputs
    site: Site
    models: tuple[str, ...]
    """The workloads, the probes or the command, by the names that records have for them."""
    data: str

    @property
    def profile(self) -> Profile:
        return PROFILES[self.inputs.request.measurement.profile]


def resolve(
    request: RunRequest, note: Note, checks: Sequence[Check] | None = None, lifetime: ExitStack | None = None
) -> Resolved:
    """Return what the site of the request makes of it; see ``ready``. Raises RequestError for what it cannot serve."""
    check_profile(request)
    request = of_members_that_load(request, note)
    scenario = scenario_of(request)
    models = _models(request, scenario)
    kind = site_of(request)
    data = str(request.data.data).partition(":")[0]
    dataset = None
    if not (scenario.reads and kind.holds_data(request)):
        data, dataset = data_of(request, scenario, note)
    kind.refuse_request(request)
    inputs = RunInputs(request, scenario, _image_of(request), dataset, note, checks, lifetime)
    if not request.targets.target:
        if scenario.arms(request):
            inputs = inputs.on((BASELINE,))
        else:
            inputs = kind.with_usual_targets(inputs)
    normalised = with_baseline(inputs.request, scenario, note)
    inputs = replace(inputs, request=normalised)
    site = kind.resolve(inputs)
    with_data = replace(inputs, dataset=site.dataset(inputs))
    return Resolved(with_data, site, models, data)


def _models(request: RunRequest, scenario: PlannedScenario) -> tuple[str, ...]:
    """Return what the scenario runs by the names of records; files with workloads are imported for it."""
    names = []
    for word in scenario.models(request):
        is_file = scenario.workloads and OPTIONS["model"].is_path(word)
        names.append(adopt(word) if is_file else word)
    return tuple(dict.fromkeys(names))


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
        failures = declared.failures()
        if WORKLOADS in declared.about.members:
            failures = _refused(request, names) | failures
        if len(failures) == len(names):
            continue
        for why in failures.values():
            note(f"left out: {why}")
        if failures:
            loadable = tuple(name for name in names if name not in failures)
            request = request.changed(**{declared.name: loadable})
    return request


def _refused(request: RunRequest, names: Sequence[str]) -> dict[str, str]:
    """Return, by name, why the scenario cannot run a workload."""
    reasons = {}
    workloads = [name for name in names if name in WORKLOADS]
    for name in workloads:
        try:
            scenario_of(request).check_model(request, name)
        except RequestError as error:
            reasons[name] = error.message
    return reasons


def with_baseline(request: RunRequest, scenario: PlannedScenario, note: Note) -> RunRequest:
    """Return the request, with bare metal added if an option needs ratios to it."""
    repetitions = request.repetitions
    targets = request.targets.target
    if BASELINE in targets or not scenario.normalised or scenario.arms(request):
        return request
    reasons = {
        "until": repetitions.until,
        "detect": repetitions.detect,
        "aa": repetitions.aa,
    }
    if isinstance(scenario, TurnScenario) and not request.targets.ablate:
        reasons["design"] = bool(request.measurement.turns)
    needing = [option(name) for name, value in reasons.items() if value]
    if not needing:
        return request
    note(spelled(f"{option('target')} {BASELINE} is added: {needing[0]} needs ratios to it"))
    return request.changed(target=(BASELINE, *targets))


def _image_of(request: RunRequest) -> Image:
    """Return the image that was named, or that the device needs. Raises RequestError where it is none, or damaged."""
    if request.targets.image:
        image = images.find(request.targets.image)
    else:
        variant = "cuda" if request.gpus.device == "cuda" else "cpu"
        image = images.current(variant)
    image.check()
    if image.mounts:  # for as long as the command runs
        mounted = images.mounted(image, image.tree)
        click.get_current_context().with_resource(mounted)
    return image


def data_of(request: RunRequest, scenario: PlannedScenario, note: Note) -> tuple[str, Dataset | None]:
    """Return the name of the data and, if they are files, the data set. Raises RequestError if it cannot be used."""
    name, dataset = scenario.data_set(request, home(), note)
    if dataset and request.data.data_disk:
        device = str(Path(request.data.data_disk).absolute())
        data_device.check(device, dataset, f"{name}:{dataset.directory}")
        dataset = dataset.model_copy(update={"device": device})
    return name, dataset
