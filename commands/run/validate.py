"""Refuse contradictions of a resolved request, ablations that switch nothing, and turns that cannot be taken."""

from collections.abc import Sequence

from provisioning.engines.base import get_engine
from provisioning.hindrances import refuse_ablation
from provisioning.sites.base import RunInputs, Site, site_of
from suite.errors import RequestError, option, spelled
from suite.interfaces import Note, TurnScenario
from suite.job import ablations
from suite.job.envelope import GIB, parse_cpu_changes
from suite.job.job import SEQUENTIAL, CpuCapability
from suite.job.profiles import PROFILES
from suite.plan import Plan, lower, together
from suite.registries import ABLATIONS, WORKLOADS
from suite.request.repetitions import DECIDED
from suite.request.request import RunRequest
from suite.request.scenario import PlannedScenario
from suite.request.traits import traits_of
from suite.sweep.estimate import ROUGH_EMULATED_S, ROUGH_OPENED_S, ROUGH_WITHIN, is_emulated
from suite.targets import BASELINE, TARGETS, VMS

MOST_OF_MEMORY = 0.5
"""The share of an instance's memory that a data set can take and stay cached beside the job."""


def refuse_ignored(request: RunRequest) -> None:
    """Raise RequestError for an option that was given and would change nothing."""
    request.refuse_idle()
    of_machines = [name for name in ("provider", "accel") if name in request.given()]
    # Which targets a request without any takes, the machine decides: it is asked again when that is known.
    on_targets = request if request.targets.target else request.changed(target=TARGETS)
    if of_machines and not site_of(on_targets).boots(on_targets):
        why = "would change nothing: no target has a virtual machine that the suite boots"
        raise RequestError(f"{option(of_machines[0])} {why}", remedy="leave it out")


def check_profile(request: RunRequest) -> None:
    """Raise RequestError for a profile of GPUs with anything but a training on one instance with GPUs."""
    profile = PROFILES[request.measurement.profile]
    traits = traits_of(request.scenario)
    needs = {
        f"{option('device')} cuda": request.gpus.device == "cuda",
        f"{option('scenario')} synthetic or real": traits.trains and not (traits.joined or traits.neighbours),
        f"{option('design')} {SEQUENTIAL}": request.measurement.turns is None,
        f"{option('parallel')} none or parameter-cpu": request.gpus.parallel != "ddp",
    }
    if profile.settle_s and (lacking := next((words for words, holds in needs.items() if not holds), None)):
        raise RequestError(
            f"{option('profile')} {profile.name} needs {lacking}",
            remedy=f"give {lacking}, or use {option('profile')} {profile.of}",
        )


def check_ratios(request: RunRequest, scenario: PlannedScenario, targets: tuple[str, ...]) -> None:
    """Raise RequestError where intervals are asked for, and nothing is there to form a ratio of."""
    arms = scenario.arms(request)
    planned = request.repetitions.open_ended and not arms
    aa = request.repetitions.aa
    way = option("detect" if request.repetitions.detect else "until")
    if planned and len(targets) < 2 and not aa:
        raise RequestError(
            f"{way} needs ratios", remedy=f"add a {option('target')}, or {option('aa')} for bare metal against itself"
        )
    if (planned or aa) and BASELINE not in targets and scenario.normalised:
        raise RequestError(
            f"{way} and {option('aa')} need bare metal in the run", remedy=f"add {option('target')} {BASELINE}"
        )
    if request.repetitions.decides and request.measurement.profile == "smoke":
        raise RequestError(
            f"{way} {DECIDED} with {option('profile')} smoke: not a measurement, so no verdict can come of it",
            remedy=f"use {option('profile')} quick",
        )


def check_resizes(plan: Plan) -> None:
    """Raise RequestError for CPUs that change at a step that a job has not."""
    for job in plan.jobs:
        if job.resize_at and job.sizes and max(parse_cpu_changes(job.resize_at)) >= job.sizes.steps:
            raise RequestError(
                f"{option('resize_at')} {job.resize_at}: a job has {job.sizes.steps} measured steps, from 0",
                remedy=f"give more {option('steps')}, or an earlier one",
            )


def check_preemption(plan: Plan) -> None:
    """Raise RequestError, in one sentence, if jobs of the plan cannot be preempted and go on."""
    preemption = plan.job.preemption
    by = option("preempt")
    if preemption is None:
        return
    for trial in plan.trials_of(0):
        job = trial.job
        if job.reproducible is False:
            message = f"{by}: {job.model} does not end with the same weights twice"
            raise RequestError(message, remedy=f"use another {option('model')}, or leave it out")
        if job.dataset and trial.target in VMS:
            message = f"{by}: a virtual machine that reads a data set has no disk for checkpoints"
            raise RequestError(message, remedy=f"leave vm and container-vm out, or use {option('scenario')} synthetic")
        least_s = (ROUGH_EMULATED_S if is_emulated(trial) else ROUGH_OPENED_S)[trial.target] / ROUGH_WITHIN
        if preemption.mean_s < least_s:
            message = f"{by}: opening {trial.target} and starting the job take {least_s:g} s or more"
            raise RequestError(message, remedy=f"give a mean of {10 * least_s:g}s or more")


def check_turns(
    request: RunRequest, scenario: PlannedScenario, targets: tuple[str, ...], at_the_site: str = ""
) -> None:
    """Raise RequestError, in one sentence, if the jobs of the request cannot take turns, or not ``at_the_site``."""
    if request.measurement.turns is None:
        return
    if not isinstance(scenario, TurnScenario):
        raise _refusal(request, scenario.no_turns)
    hindrance = scenario.hinders_turns(request)
    if hindrance:
        raise _refusal(request, *hindrance)
    if at_the_site:
        raise _refusal(request, at_the_site)
    several = request.repetitions.aa or request.targets.ablate or scenario.arms(request)
    if len(targets) < 2 and not several:
        raise _refusal(
            request,
            "turns need at least two jobs",
            f"add a {option('target')}, or {option('aa')} for bare metal against itself",
        )


def _refusal(request: RunRequest, why: str, remedy: str = "") -> RequestError:
    combination = f"{option('design')} {request.measurement.design} with {option('scenario')} {request.scenario}"
    return RequestError(f"{combination}: {why}", remedy=remedy or f"leave {option('design')} out")


def fitted(plan: Plan, host_memory_bytes: int, note: Note) -> Plan:
    """Return the plan; where the instances of a block do not fit into memory at once, with bare metal and one target.

    Raises RequestError, with the arithmetic, where these do not fit either.
    """
    why = _lacking_memory(plan, host_memory_bytes)
    if not why:
        return plan
    partners = [target for target in plan.targets if target != BASELINE or plan.aa]
    pairs = []
    for job in plan.jobs:
        if job.turns is None:
            pairs.append(job)
            continue
        for partner in partners:
            turns = job.turns.model_copy(update={"partner": partner})
            pairs.append(job.model_copy(update={"turns": turns}))
    paired = plan.model_copy(update={"jobs": tuple(pairs)})
    can_pair = bool(partners) and BASELINE in plan.targets
    more = _lacking_memory(paired, host_memory_bytes) if can_pair else why
    if more:
        raise RequestError(more, remedy=f"lower {option('memory')}, or name fewer with {option('target')}")
    note(f"{spelled(why)}: bare metal takes turns with one target at a time")
    return paired


def _lacking_memory(plan: Plan, host_memory_bytes: int) -> str:
    groups = together(plan.trials_of(0))
    sizes = (len(group) for group in groups if group[0].job.turns)
    count = max(sizes, default=0)
    each_bytes = plan.job.envelope.memory_bytes
    if count * each_bytes <= host_memory_bytes:
        return ""
    take = f"{count} instances of {each_bytes / GIB:.1f} GiB take {count * each_bytes / GIB:.1f} GiB"
    return f"{option('design')}: {take}, and the machine has {host_memory_bytes / GIB:.1f} GiB"


def check_data(plan: Plan, devices: int) -> None:
    """Raise RequestError for a data set that is smaller than one step, or too large for a warm page cache."""
    if plan.job.dataset is None:
        return
    for job in plan.jobs:
        if job.sizes and plan.job.dataset.images < (wanted := job.sizes.batch * devices):
            raise RequestError(
                f"the data set has {plan.job.dataset.images} images, and one step of {job.model} takes {wanted}",
                remedy=f"give {option('batch')} {max(1, plan.job.dataset.images // devices)} or less, "
                f"or a larger data set: bench data make --images {wanted}",
            )
    if plan.job.page_cache != "warm":
        return
    # Every block has the same instances.
    places = [instance for trial in plan.trials_of(0) for instance in trial.instances or [trial.job]]
    memory_bytes = min(instance.envelope.memory_bytes for instance in places)
    most_bytes = MOST_OF_MEMORY * memory_bytes
    if plan.job.dataset.size_bytes > most_bytes:
        raise RequestError(
            f"the data set of {plan.job.dataset.size_bytes / GIB:.2f} GiB cannot be kept in the page cache: of the "
            f"{memory_bytes / GIB:.2f} GiB of memory of an instance {most_bytes / GIB:.2f} GiB are left to it",
            remedy=f"use {option('cache')} cold, a smaller data set, or more {option('memory')}",
        )


def ablations_of(inputs: RunInputs, site: Site, capability: CpuCapability | None) -> tuple[str, ...]:
    """Return the ablations of the run; of all of them, those that would switch nothing are left out.

    Raises RequestError for one that was named, and that would switch nothing.
    """
    request = inputs.request
    scenario = inputs.scenario
    wanted = request.targets.ablate
    kept = []
    for name in wanted:
        try:
            ablations.check((name,), site.targets)
            refuse_ablation(name, site, request.measurement.recipe, scenario)
            properties = ablations.properties_of(name)
            if properties.channels_last:
                _refuse_without_images(name, request.measurement.model)
            if properties.engine and scenario.joined:
                get_engine(properties.engine).check_network(request.joining.network, in_lab=site.local)
            if properties.provider and scenario.joined and site.local:
                site.choices.provider_of(properties).check_lab()
            if properties.lower_isa:
                lower(capability)
            kept.append(name)
        except RequestError as error:
            if not set(wanted) >= set(ABLATIONS.own):
                raise
            inputs.note(f"left out: {error.message}")
    return (*kept, *scenario.arms(request))


def _refuse_without_images(name: str, models: Sequence[str]) -> None:
    """Raise RequestError if none of the workloads, which may be files of the user's own, trains on images."""
    if models and all(model in WORKLOADS and not WORKLOADS.get(model).has_images for model in models):
        raise RequestError(
            f"{ablations.typed(name)}: {', '.join(models)} has no images",
            remedy=f"use another {option('model')}, or leave it out",
        )
