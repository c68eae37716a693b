"""Checks of what this machine can carry, each with evidence or reason and remedy, and the diagnosis from them."""

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from provisioning.cgroup import limits as cgroups
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.gpus import gpu_checks
from provisioning.images import build
from provisioning.images.image import Image, build_command, current, images, mounted
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import FIRST_USER, chroot_argv, enterable
from provisioning.machines import accelerator
from provisioning.machines.base import MachineProvider, get_provider
from provisioning.metrics import cache_counters
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import home, state
from provisioning.processes import PACKAGES, PROGRAMS, installing
from suite.errors import BenchError, of_system, option
from suite.job.envelope import MEMORY_NOT_LIMITED
from suite.measurable import EMULATED_CPU, OWN_USERLAND, MeasurableTargets, is_measured
from suite.registries import ENGINES, MACHINES, SITES, every_registry
from suite.registry import unreadable_packages
from suite.targets import BASELINE, TARGETS, VMS

Kind = Literal["host", "tool", "image", "accelerator", "provider", "engine", "gpu", "site", "extension", "target"]
HOME_REMEDY = "set VIRTBENCH_HOME to a directory that can be written to"
EXTENSION_REMEDY = "repair or uninstall the package that adds it; report it if the suite does"
OPENED_BYTES = 1 << 29
TOOLS = {program.name: program.purpose for program in PROGRAMS if program.purpose}


class Check(BaseModel):
    """One check. ``reason`` and ``remedy`` are given if what was checked is not usable.

    ``substitute`` names what would stand in for what this machine lacks; ``suite.measurable`` knows what that is worth.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind
    name: str
    usable: bool
    evidence: str
    reason: str | None = None
    remedy: str | None = None
    substitute: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The targets of a machine by what their numbers would be worth; see ``suite.measurable``."""

    measurable: tuple[str, ...]
    path_only: tuple[str, ...]
    absent: tuple[str, ...]
    lines: tuple[str, ...]
    """The two sentences of the answer."""
    next_step: str

    @property
    def works(self) -> bool:
        return bool(self.measurable or self.path_only)


def measurable_targets(checks: Iterable[Check]) -> MeasurableTargets:
    """Return what the targets among the checks of ``examine`` are worth."""
    measured: list[str] = []
    path_only: dict[str, str] = {}
    absent: dict[str, str] = {}
    for check in checks:
        if check.kind != "target":
            continue
        if not check.usable:
            absent[check.name] = str(check.reason)
        elif check.substitute and not is_measured([check.substitute]):
            path_only[check.name] = check.substitute
        else:
            measured.append(check.name)
    return MeasurableTargets(tuple(measured), path_only, absent)


def diagnose(checks: Sequence[Check]) -> Diagnosis:
    """Return what can be measured, what only works, and what to do next, from the checks of ``examine``."""
    worth = measurable_targets(checks)
    engines = [check.name for check in checks if check.kind == "engine" and check.usable]
    details = {"container": engines}
    for check in checks:
        if check.kind == "target" and check.substitute:
            details[check.name] = [check.substitute]
    measured = []
    for name in worth.measured:
        in_detail = ", ".join(details.get(name, ()))
        measured.append(f"{name} ({in_detail})" if in_detail else name)
    substituted = _group("Works with a substitute, so not a measurement", worth.path_only)
    absent = _group("Does not work", worth.absent)
    return Diagnosis(
        measurable=worth.measured,
        path_only=tuple(worth.path_only),
        absent=tuple(worth.absent),
        lines=(
            f"Can be measured here: {', '.join(measured) or 'nothing'}.",
            " ".join(filter(None, (substituted, absent))) or "No target needs a substitute.",
        ),
        next_step=_next_step(checks, worth),
    )


def _group(title: str, reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    names = ", ".join(reasons)
    texts = "; ".join(dict.fromkeys(reasons.values()))
    return f"{title}: {names} ({texts})."


def _next_step(checks: Sequence[Check], worth: MeasurableTargets) -> str:
    remedies = {check.kind: check.remedy for check in reversed(checks) if not check.usable and check.remedy}
    if "image" in remedies:
        return remedies["image"].removeprefix("run: ")
    taking = _image_option(checks)
    if worth.compares:
        return f"bench run{taking}"
    # The first missing target is the one with the fewest layers.
    smoke = " ".join(f"--target {name}" for name in (*worth.measured, *worth.path_only))
    return remedies.get("target", f"bench run {smoke}{taking} --profile smoke")


def _image_option(checks: Sequence[Check]) -> str:
    """Return the option with which a run takes the image that was found; empty for the usual one."""
    for check in checks:
        if check.kind == "image" and check.name == "cuda":
            return " --device cuda"
        if check.kind == "image" and check.name == "own":
            return f" --image {check.evidence[:12]}"
    return ""


def examine_as_far_as_possible() -> list[Check]:
    """Return what ``examine`` does; with a home that cannot be written to, the checks that need none, and why."""
    try:
        with tempfile.TemporaryFile(dir=state("ledger")) as file:
            file.write(b"a full disk takes the file, and not its content")
    except (BenchError, OSError) as error:
        cause = of_system(error) if isinstance(error, OSError) else error
        refusal = (f"the suite's folder cannot be written to: {cause.message}", HOME_REMEDY)
        providers = [get_provider(name) for name in MACHINES.own]
        targets = [_check("target", name, "needs the suite's folder", *refusal) for name in TARGETS]
        return [
            _check("host", "home", str(home()), *refusal),
            *_tools(providers),
            *targets,
        ]
    return examine()


def examine(named: Collection[str | None] | None = None) -> list[Check]:
    """Return every check of this machine. Takes seconds: the longest is a guest that does not boot under KVM.

    ``named`` are the engines that requests name: others that none takes by default, and GPUs, are not asked then, and
    no container is opened.
    """
    failures = {registry.what: registry.failures() for registry in every_registry()}
    extensions = []
    for kind, failed in failures.items():
        for name, reason in failed.items():
            extensions.append(_check("extension", f"{kind} {name}", "tried", reason, EXTENSION_REMEDY))
    for directory, reason in unreadable_packages().items():
        extensions.append(_check("extension", Path(directory).name, "tried", reason, EXTENSION_REMEDY))
    providers = [get_provider(name) for name in MACHINES if name not in failures[MACHINES.what]]
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    with local_node(cpus, None) as node:
        image, image_check = _image()
        checks = [*_host(node), *_tools(providers), image_check, *_accelerators(anew=named is None)]
        for provider in providers:
            version = partial(_provider_version, provider, node)
            checks.append(_tried("provider", provider.name, version))
        checks += _engines(named, failures[ENGINES.what], node, image)
        checks += _sites(failures[SITES.what])
        checks += _gpus(named)
        checks += extensions
        targets = [_target(name, checks, node, image) for name in TARGETS]
        return [*checks, *targets]


def with_image(checks: Sequence[Check], image: Image) -> Sequence[Check]:
    """Return the checks of ``examine`` as they are for targets of this image, which was found whole."""
    if all(check.kind != "image" or check == _whole(image) for check in checks):
        return checks
    machine = []
    for check in checks:
        if check.kind != "target":
            machine.append(_whole(image) if check.kind == "image" else check)
    with local_node((), None) as node:
        targets = (_target(name, machine, node, image) for name in TARGETS)
        return [*machine, *targets]


def _check(
    kind: Kind,
    name: str,
    evidence: str,
    reason: str | None = None,
    remedy: str | None = None,
) -> Check:
    return Check(
        kind=kind,
        name=name,
        usable=reason is None,
        evidence=evidence,
        reason=reason,
        remedy=remedy,
    )


def _version(member: MachineProvider | ContainerEngine, node: LocalNode) -> str:
    return f"version {member.version(node)}"


def _provider_version(provider: MachineProvider, node: LocalNode) -> str:
    version = _version(provider, node)
    provider.check_machine(node)
    return version


def _engine_version(engine: ContainerEngine, node: LocalNode, image: Image | None) -> str:
    version = _version(engine, node)
    if not engine.site:  # the node of its pods is chosen by a request
        engine.check_machine(node)
        if image:
            _open_container(engine, node.cpus, image)
    return version


def _open_container(engine: ContainerEngine, cpus: tuple[int, ...], image: Image) -> None:
    """Open a container of the image as a trial does. Raises BenchError if the engine, or its configuration, fails."""
    layer = ContainerLayer(engine, image.digest, OPENED_BYTES)
    with local_node(cpus, str(image.tree)) as node, mounted(image, image.tree):
        try:
            engine.check(node, image.digest)
        except BenchError:  # a run loads it into the engine's store
            return
        try:
            with layer.opened(node) as inside:
                inside.run(["true"])  # found on the path, as the first program of a trial
        except BenchError as error:
            remedy = error.remedy or f"see its configuration, or choose another {option('engine')}"
            raise BenchError(f"it opens no container: {error.message}", remedy=remedy) from error


def _engines(
    named: Collection[str | None] | None,
    broken: Collection[str],
    node: LocalNode,
    image: Image | None,
) -> Iterator[Check]:
    opened = image if named is None else None
    for name in ENGINES:
        if name in broken:
            continue
        engine = get_engine(name)
        if named is None or engine.by_default or name in named:
            yield _tried("engine", name, partial(_engine_version, engine, node, opened))


def _sites(broken: Collection[str]) -> list[Check]:
    checks: list[Check] = []
    for name in SITES:
        if name not in broken:
            checks += SITES.get(name).capabilities()
    return checks


def _gpus(named: Collection[str | None] | None) -> list[Check]:
    if named is not None:
        return []
    try:
        return [_check("gpu", *gpu) for gpu in gpu_checks()]
    except Exception as error:  # noqa: BLE001 (as ``_tried``)
        return [_check("gpu", "nvml", "asked", *_unforeseen(error))]


def _host(node: LocalNode) -> Iterator[Check]:
    user = os.geteuid()
    refusal: tuple[str, ...] = ()
    if user:
        refusal = ("not root", "use sudo; docs/guide/what-to-measure.md lists what works without root")
    yield _check("host", "root", f"effective user {user}", *refusal)
    yield _check("host", "control-groups", f"memory is governed by version {cgroups.version(node)}")
    counted = f"os.cpu_count() is {os.cpu_count()} on bare metal and in containers, and that of --cpus in VMs"
    yield _check("host", "cpu-count", f"{counted}; Python 3.13 and newer counts --cpus everywhere")
    reason = cache_counters.absent()
    if reason:
        yield _check("host", "cache-counters", "tried", reason, "records say so; nothing else needs them")
    else:
        yield _check("host", "cache-counters", "perf counts the misses of the last-level cache")
    above = (path for path in (home(), *home().parents) if path.exists())
    directory = next(above)
    free = shutil.disk_usage(directory).free
    refusal = ()
    if free < build.NEEDED_BYTES:
        refusal = (f"building an image needs {build.NEEDED_BYTES >> 30} GiB", build.SPACE_REMEDY)
    yield _check("host", "disk", f"{free >> 30} GiB free in {directory}", *refusal)


def _tools(providers: Sequence[MachineProvider]) -> Iterator[Check]:
    of_providers: dict[str, str] = {}
    for provider in providers:
        of_providers |= provider.tools
        of_providers |= provider.local_tools
    for tool in {**of_providers, **TOOLS}:
        path = shutil.which(tool)
        if path:
            yield _check("tool", tool, path)
            continue
        purpose = TOOLS.get(tool, "VMs")
        if tool in PACKAGES:
            remedy = installing(tool)
        else:
            remedy = f"install it: package {of_providers[tool]}"
        yield _check("tool", tool, "not on PATH", f"{tool} is not installed, for {purpose}", remedy)


def _image() -> tuple[Image | None, Check]:
    """Return the image that a run takes, and its check: that for CPUs, else the newest."""
    try:
        every = images()
        for_cpus = [image for image in every if image.variant == "cpu"]
        preferred = for_cpus or every
        image = preferred[0] if preferred else current()
        image.check()
    except BenchError as error:
        return None, _check("image", "cpu", "none", error.message, error.remedy)
    return image, _whole(image)


def _whole(image: Image) -> Check:
    versions = ("", image.cuda or "")
    recipes = {build.recipe_sha256(image.variant, cuda) for cuda in versions}
    evidence = f"{image.digest[:12]} of {image.created_at}"
    if image.variant != "own" and image.recipe_sha256 not in recipes:
        evidence += f"; the recipe has changed since: {build_command(image.variant)} makes the new one"
    return _check("image", image.variant, evidence)


def _accelerators(*, anew: bool) -> Iterator[Check]:
    probe = accelerator.probe_kvm(anew=anew)
    evidence = f"{probe.evidence}, {probe.took_s} s"
    if probe.usable:
        yield _check("accelerator", "kvm", evidence)
    else:
        remedy = "VMs run under tcg (emulation), named beside every number; else use another host"
        yield _check("accelerator", "kvm", evidence, probe.reason, remedy)
    qemu = shutil.which(accelerator.PROGRAM)
    if qemu:
        yield _check("accelerator", "tcg", qemu)
    else:
        yield _check("accelerator", "tcg", "no QEMU", "QEMU is not installed", installing(accelerator.PROGRAM))


def _tried(kind: Kind, name: str, attempt: Callable[[], str]) -> Check:
    try:
        return _check(kind, name, attempt())
    except BenchError as error:
        return _check(kind, name, "tried", error.message, error.remedy)
    except Exception as error:  # noqa: BLE001 (every run asks: a fault of one member must not end those of others)
        return _check(kind, name, "tried", *_unforeseen(error))


def _unforeseen(error: Exception) -> tuple[str, str]:
    return f"{type(error).__name__}: {error}", EXTENSION_REMEDY


def _target(name: str, checks: Sequence[Check], node: LocalNode, image: Image | None) -> Check:
    """Return whether everything that the layers of the target need is there, and the substitute that it would have."""
    by_name = {(check.kind, check.name): check for check in checks}
    unusable = (check for check in _needs(name, checks) if not check.usable)
    missing = next(unusable, None)
    if missing:
        return _check("target", name, "something that it needs is missing", missing.reason, missing.remedy)
    substitute = None
    evidence = "all that it needs is there"
    if name == BASELINE and image:
        if os.geteuid() == 0:

            def enter() -> str:
                with mounted(image, image.tree):
                    argv = [*chroot_argv(str(image.tree), user=FIRST_USER), "true"]
                    node.run(argv)
                return "the image's tree was entered"

            return _tried("target", name, enter)
        if enterable(node, str(image.tree)):
            substitute = MEMORY_NOT_LIMITED
            evidence = "the image's tree was entered"
        else:
            substitute = OWN_USERLAND
            evidence = "bubblewrap, or user namespaces for it, are missing"
    elif name in VMS and not by_name["accelerator", "kvm"].usable:
        substitute = EMULATED_CPU
    return _check("target", name, evidence).model_copy(update={"substitute": substitute})


def _needs(target: str, checks: Sequence[Check]) -> Iterator[Check]:
    by_name = {(check.kind, check.name): check for check in checks}
    yield next(check for check in checks if check.kind == "image")
    yield by_name["tool", "taskset"]
    if target == BASELINE and os.geteuid() == 0:
        yield from (by_name["tool", tool] for tool in ("bwrap", "cgexec"))
    if target == "container":
        engines = (check for check in checks if check.kind == "engine")
        yield min(engines, key=lambda check: not check.usable)
    if target in VMS:
        needs = [_needs_of(check, by_name) for check in checks if check.kind == "provider"]
        # Those of the provider that lacks least: nothing, if it can be used.
        yield from min(needs, key=_count_lacking)


def _count_lacking(needs: Sequence[Check]) -> int:
    return sum(not check.usable for check in needs)


def _needs_of(provider: Check, by_name: Mapping[tuple[Kind, str], Check]) -> list[Check]:
    member = get_provider(provider.name)
    tools = (by_name["tool", tool] for tool in (*member.tools, *member.local_tools))
    return [*tools, provider]
