"""This machine: one instance of a target, or several that share it."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from provisioning import doctor, isa
from provisioning.cgroup.counters import ControlGroup
from provisioning.doctor import Check, measurable_targets
from provisioning.engines.base import ContainerEngine, default_engine, get_engine
from provisioning.gpus import Card, chosen, examined
from provisioning.held_process import kill_held
from provisioning.images.image import Image
from provisioning.machines.accelerator import Accelerator
from provisioning.machines.base import GuestSpec, get_provider
from provisioning.metrics.footprint import lowest_processes
from provisioning.nodes import LocalNode, WrappedNode, local_node
from provisioning.processes import carrying
from provisioning.sites import memory
from provisioning.sites.base import Capacity, RunInputs, Site
from provisioning.sites.cards import GUESTS_WITHOUT_GPUS, WITHOUT_GUESTS, check_gpus, workers_here
from provisioning.targets import Choices
from provisioning.volumes import Volume, check_disk_space, disk_of, packed_bytes, prepare_disk, volume_of
from suite.errors import RequestError, option
from suite.interfaces import Instance, Layer, Node, Note, open_stack
from suite.job.ablations import properties_of
from suite.job.envelope import Envelope, parse_kernel_cpus
from suite.job.job import CpuCapability
from suite.measurable import EMULATED_CPU
from suite.plan import Plan, Trial
from suite.request.parts import gpu_words
from suite.request.request import OPTIONS, RunRequest
from suite.targets import TARGETS, VMS

CPUS = Path("/sys/devices/system/cpu")


class Here(Site):
    name = "here"

    @classmethod
    def chosen_by(cls, request: RunRequest) -> bool:  # noqa: ARG003 (every request that no other site takes)
        return True

    @classmethod
    def refuse_request(cls, request: RunRequest) -> None:
        if request.gpus.device != "cuda":
            return
        _, missing, _ = examined()
        if missing:
            remedy = f"install NVIDIA's driver, or use {option('device')} cpu"
            raise RequestError(f"{option('device')} cuda: {missing}", remedy=remedy)

    @classmethod
    def resolve(cls, inputs: RunInputs) -> "Here":
        return cls.with_guests(inputs, cls.boots(inputs.request))

    @classmethod
    def with_guests(cls, inputs: RunInputs, booted: frozenset[str]) -> "Here":
        """Return this machine; guests are booted for these targets alone."""
        request = inputs.request
        checks = _checks_of(inputs)
        in_pods = VMS.intersection(request.targets.target) - booted
        targets = carried(request, checks, inputs.note, inputs.image, in_pods)
        target_checks = _target_checks(request, checks, inputs.image, in_pods)
        worth = measurable_targets(target_checks.values())
        path_only = tuple(target for target in targets if target in worth.path_only)
        choices = choices_of(request, checks, targets, inputs.image, inputs.note, booted)
        return cls(choices, targets, path_only)

    @classmethod
    def with_usual_targets(cls, inputs: RunInputs) -> RunInputs:
        """Return the inputs with the targets that this machine measures, and name those that are left out."""
        checks = _checks_of(inputs)
        target_checks = _target_checks(inputs.request, checks, inputs.image)
        worth = measurable_targets(target_checks.values())
        if worth.left_out:
            inputs.note(worth.left_out)
        # Where nothing works, the refusal of all targets says why.
        with_targets = inputs.on(worth.usual or TARGETS)
        return replace(with_targets, checks=checks)

    def places(self, inputs: RunInputs) -> tuple[Capacity, ...]:
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        memory_bytes = memory.total_bytes(self.wanted_bytes(inputs))
        return (Capacity(cpus, memory_bytes, offline=_cpus("offline"), isolated=_cpus("isolated")),)

    def capability(self, envelope: Envelope, note: Note, *, always: bool) -> CpuCapability | None:
        guest = GuestSpec(self.choices.image, self.choices.accelerator, envelope)
        provider = get_provider(self.choices.provider)
        return isa.shared(self.targets, provider, guest, note, always=always)

    def prepare(self, plan: Plan, note: Note, refuse_changed: Callable[[], None] = lambda: None) -> None:
        targets = plan.targets
        dataset = plan.job.dataset
        image = self.choices.image
        engine = self.choices.container_engine
        if engine.guest_store and "container-vm" in targets:
            engine.guest_store.make(image, note)
        with local_node((), None) as node:
            if dataset and not dataset.device and VMS.intersection(targets):
                disk = str(disk_of(dataset))
                prepare_disk(node, dataset.directory, disk, dataset, note, refuse_changed)
            if "container" not in targets:
                return
            load(node, loading_engines(engine, plan), image)
            switched = map(properties_of, plan.ablations)
            if dataset and any(properties.data_in_layer for properties in switched):
                layers = engine.layers_at(node)
                check_disk_space(node, layers, packed_bytes(dataset), "the layer of the data set")

    def volume(self, trial: Trial) -> AbstractContextManager[Volume | None]:
        return volume_of(trial)

    @contextmanager
    def opened(self, trial: Trial) -> Iterator[tuple[Instance, ...]]:
        """Open the instances. Of several, aggressors alone write: two guests cannot write to one disk."""
        shares: list[tuple[str, Envelope]] = [(planned.role, planned.envelope) for planned in trial.instances]
        shares = shares or [("", trial.envelope)]
        choices = list(self.choices_of(trial, shared=True)) or [self.choices]
        with ExitStack() as stack:
            instances = []
            for (role, envelope), chosen_layers in zip(shares, choices, strict=True):
                volume = None
                if role in ("", "aggressor"):
                    volume = stack.enter_context(self.volume(trial))
                directory = str(volume.directory) if volume else None
                machine = stack.enter_context(self.machine(envelope, directory))
                machine.scratch = str(volume.scratch) if volume and volume.scratch else None
                layers = self.layers(trial, envelope, chosen_layers, volume)
                instance = stack.enter_context(reopenable(machine, layers))
                another = partial(self._another, trial, envelope, chosen_layers)
                instances.append(replace(instance, another=another))
            yield tuple(instances)

    @contextmanager
    def _another(self, trial: Trial, envelope: Envelope, choices: Choices) -> Iterator[Node]:
        layers = self.layers(trial, envelope, choices)
        with self.machine(envelope, None) as machine, open_stack(machine, layers) as node:
            yield node


class KilledError(Exception):
    """The instance was killed. Layers clean up as after any error: a guest, for one, is not shut down in order."""


def _cpus(state: str) -> tuple[int, ...]:
    """Return the CPUs that the kernel lists as ``offline`` or ``isolated``."""
    try:
        return parse_kernel_cpus((CPUS / state).read_text())
    except OSError:
        return ()


@contextmanager
def reopenable(machine: Node, layers: Sequence[Layer]) -> Iterator[Instance]:
    """Open the layers on the machine. ``Instance.reopen`` kills them, and opens them anew."""
    with ExitStack() as opened:
        node = opened.enter_context(open_stack(machine, layers))

        def reopen() -> Node:
            nonlocal node
            killed = KilledError()
            opened.__exit__(type(killed), killed, None)
            return opened.enter_context(open_stack(machine, layers))

        resize = node.resize if isinstance(node, WrappedNode) else None
        yield Instance(node, reopen=reopen, kill=lambda: _kill(node), resize=resize)


def _kill(node: Node) -> None:
    """Kill a container's first process, with which the kernel ends its namespace, or the hypervisor of a guest."""
    lowest, bottom = lowest_processes(node)
    with suppress(OSError, psutil.Error):
        if lowest is None and isinstance(bottom, LocalNode):
            for process in carrying(bottom.token):
                if process.name().startswith("qemu"):
                    kill_held(process.pid, process.is_running)
        elif lowest and lowest.main_pid:
            pid = lowest.main_pid
            group = lowest.group
            kill_held(pid, lambda: ControlGroup.of_process(pid) == group)


def load(node: Node, engines: Iterable[ContainerEngine], image: Image) -> None:
    for engine in engines:
        engine.load(node, image.digest, image.file("oci.tar"))


def loading_engines(engine: ContainerEngine, plan: Plan) -> list[ContainerEngine]:
    """Return the engines that load the image: the run's, unless it is its site's to load, and those of ablations."""
    names = (properties_of(ablation).engine for ablation in plan.ablations)
    switched = [get_engine(name) for name in names if name]
    if engine.site:
        return switched
    return [engine, *switched]


def _checks_of(inputs: RunInputs) -> Sequence[Check]:
    """Return the checks of this machine for targets of the image; examine the machine unless that was done already."""
    checks = inputs.checks
    if checks is None:
        inputs.note("checking this machine")
        checks = doctor.examine({inputs.request.targets.engine})
    return doctor.with_image(checks, inputs.image)


def carried(
    request: RunRequest,
    checks: Sequence[Check],
    note: Note,
    image: Image | None = None,
    in_pods: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the targets that this machine carries; of all targets, those that it does not carry are left out.

    Those ``in_pods`` need what containers need. Raises RequestError for one that was named, and is not carried.
    """
    targets = request.targets.target
    by_name = _target_checks(request, checks, image, in_pods)
    everything = set(targets) == set(TARGETS)
    usable = []
    for target in targets:
        check = by_name[target]
        if check.usable:
            usable.append(target)
        elif everything and any(by_name[other].usable for other in TARGETS):
            note(f"{target} is left out: {check.reason} (what to do: {check.remedy})")
        else:
            raise RequestError(f"this machine cannot carry {target}: {check.reason}", remedy=check.remedy)
    return tuple(usable)


def _target_checks(
    request: RunRequest,
    checks: Sequence[Check],
    image: Image | None = None,
    in_pods: frozenset[str] = frozenset(),
) -> dict[str, Check]:
    """Return the checks of targets by name, as they are for what the request asks of them; see ``carried``."""
    by_name = {check.name: check for check in checks if check.kind == "target"}
    by_name |= dict.fromkeys(in_pods, by_name["container"])
    missing = _lacking_in_guests(request)
    if missing and "container-vm" not in in_pods:
        why = f"the image of the guests has no {missing}"
        remedy = "leave it out, or use podman or runc as they are"
        unusable = {"usable": False, "reason": why, "remedy": remedy}
        by_name["container-vm"] = by_name["container-vm"].model_copy(update=unusable)
    why_no_vms = _without_vms(request, image)
    if why_no_vms:
        unusable = {"usable": False, "reason": why_no_vms, "remedy": WITHOUT_GUESTS}
        by_name |= {name: by_name[name].model_copy(update=unusable) for name in VMS}
    if request.targets.accel == "tcg":
        emulated = {"substitute": EMULATED_CPU}
        emulated_vms = VMS - in_pods
        by_name |= {name: by_name[name].model_copy(update=emulated) for name in emulated_vms}
    return by_name


def _without_vms(request: RunRequest, image: Image | None) -> str | None:
    if request.gpus.device == "cuda":
        return GUESTS_WITHOUT_GPUS
    if image and image.mounts:
        return "an adopted image has no disk for virtual machines"
    return None


def _lacking_in_guests(request: RunRequest) -> str | None:
    """Return the engine or the OCI runtime of the request that the image of the guests lacks; None if it has them."""
    if request.targets.oci_runtime:
        return request.targets.oci_runtime
    engine = request.targets.engine
    if engine and not get_engine(engine).in_guests:
        return engine
    return None


def choices_of(
    request: RunRequest,
    checks: Sequence[Check],
    targets: tuple[str, ...],
    image: Image,
    note: Note,
    booted: frozenset[str] = VMS,
) -> Choices:
    """Return what the layers of the targets are made of. Raises RequestError for what does not work on this machine."""
    engine = _engine_of(request, checks, targets)
    options = {}
    for name, declared in OPTIONS.items():
        if declared.engine == engine and request.value(name):
            options[name] = str(request.value(name))
    accel: Accelerator = "tcg"
    if booted.intersection(targets):
        provider = get_provider(request.targets.provider)
        accel, why = provider.choose_accelerator(request.targets.accel)
        note(f"VMs run under {accel}: {why}")
    refuse_adopted(image, engine, targets)
    gpus: tuple[str, ...] = ()
    if not get_engine(engine).site:
        gpus = tuple(str(card.uuid) for card in _cards_of(request, image))
    choices = Choices(
        image,
        engine,
        accel,
        gpus,
        provider=request.targets.provider,
        engine_options=options,
        oci_runtime=request.targets.oci_runtime,
    )
    if "container" in targets and choices.oci_runtime:
        with local_node((), None) as node:
            note(f"{engine} {choices.container_engine.version(node)}")
    return choices


def _engine_of(request: RunRequest, checks: Sequence[Check], targets: tuple[str, ...]) -> str:
    """Return the engine that was named, or the default. Raises RequestError if it cannot run containers here."""
    engines = {check.name: check for check in checks if check.kind == "engine"}
    usable = [name for name, check in engines.items() if check.usable]
    engine = request.targets.engine or default_engine(usable)
    if "container" in targets and not get_engine(engine).site and engine not in usable:
        check = engines[engine]
        raise RequestError(f"{option('engine')} {engine}: {check.reason}", remedy=check.remedy)
    return engine


def refuse_adopted(image: Image, engine: str | None = None, targets: Sequence[str] = ("container",)) -> None:
    """Raise RequestError for what an adopted image cannot serve: its tree exists as mounts of this machine."""
    if not image.mounts or "container" not in targets:
        return
    if engine and get_engine(engine).rootfs == "directory":
        return
    where = f"{option('engine')} {engine}" if engine else option("inventory")
    remedy = f"use {option('engine')} runc here, or an image of bench image build"
    raise RequestError(f"{where}: image {image.digest[:12]} is this machine's own tree", remedy=remedy)


def _cards_of(request: RunRequest, image: Image) -> tuple[Card, ...]:
    """Return the GPUs of this machine that the request names, else those of CUDA_VISIBLE_DEVICES, else the first.

    Raises RequestError for GPUs that are not there, or on which the image's torch cannot compute.
    """
    if request.gpus.device == "cpu":
        return ()
    cards, _, _ = examined()
    words = request.gpus.gpus or os.environ.get("CUDA_VISIBLE_DEVICES")
    usable = [card for card in cards if not card.fault]
    needed = workers_here(request) * (request.gpus.devices or 1)
    source = "CUDA_VISIBLE_DEVICES"
    if request.gpus.gpus:
        source = option("gpus")
    try:
        named = gpu_words(words) if words else ()
    except RequestError as error:
        raise RequestError(f"{source}: {error.message}", remedy=error.remedy) from error
    if words is None:
        selected = tuple(usable[:needed])
    else:
        selected = chosen(cards, named, source)
    check_gpus(request, image, selected)
    return selected
