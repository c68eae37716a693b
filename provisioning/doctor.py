"""Checks of what this machine can carry: each with its evidence, and each refusal with its reason and remedy."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict

from provisioning.cgroup import limits as cgroups
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.gpus import gpu_checks
from provisioning.images import build
from provisioning.images.image import current
from provisioning.layers.userland import FIRST_USER, chroot_argv
from provisioning.machines import accelerator
from provisioning.machines.base import MachineProvider, get_provider
from provisioning.metrics import cache_counters
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import home, state
from suite.errors import BenchError, of_system
from suite.registries import ENGINES, MACHINES, every_registry
from suite.registry import Registry
from suite.targets import BASELINE, TARGETS, VMS

Kind = Literal["host", "tool", "image", "accelerator", "provider", "engine", "gpu", "extension", "target"]
HOME_REMEDY = "set VIRTBENCH_HOME to a directory that can be written to"
EXTENSION_REMEDY = "repair or uninstall the package that adds it"
TOOLS = {
    "taskset": "pinning: package util-linux",
    "bwrap": "bare metal in the image's tree: package bubblewrap",
    "cgexec": "bare metal under the envelope: package cgroup-tools",
    "mke2fs": "building images: package e2fsprogs",
    "mmdebstrap": "building images where no container registry is in reach: package mmdebstrap",
}


class Check(BaseModel):
    """One check. ``reason`` and ``remedy`` are given if what was checked is not usable.

    ``substitute`` names what would stand in for what this machine lacks: a target with one only proves the path.
    """

    model_config = ConfigDict(frozen=True)

    kind: Kind
    name: str
    usable: bool
    evidence: str
    reason: str | None = None
    remedy: str | None = None
    substitute: str | None = None


def examine_as_far_as_possible() -> list[Check]:
    """Return what ``examine`` does; with a home that cannot be written to, the checks that need none, and why."""
    try:
        with tempfile.TemporaryFile(dir=state("ledger")):
            pass
    except (BenchError, OSError) as error:
        said = of_system(error) if isinstance(error, OSError) else error
        refused = (f"the suite's folder cannot be written to: {said.message}", HOME_REMEDY)
        evidence = "needs the suite's folder"
        return [
            _check("host", "home", str(home()), *refused),
            *_tools([get_provider(name) for name in MACHINES.own]),
            *(_check("target", name, evidence, *refused) for name in TARGETS),
        ]
    return examine()


def examine() -> list[Check]:
    """Return every check of this machine. Takes seconds: the longest is a guest that does not boot under KVM."""
    failures = {registry.what: registry.failures() for registry in every_registry()}
    extensions = [
        _check("extension", f"{what} {name}", "tried", reason, EXTENSION_REMEDY)
        for what, failed in failures.items()
        for name, reason in failed.items()
    ]
    providers = [get_provider(name) for name in MACHINES if name not in failures[MACHINES.what]]
    engines = [get_engine(name) for name in ENGINES if name not in failures[ENGINES.what]]
    with local_node(tuple(sorted(os.sched_getaffinity(0))), None) as node:
        checks = [*_host(node), *_tools(providers), _image(), *_accelerators()]
        checks += [_tried("provider", each.name, partial(_version, MACHINES, each, node)) for each in providers]
        checks += [_tried("engine", each.name, partial(_version, ENGINES, each, node)) for each in engines]
        checks += [*(_check("gpu", *found) for found in gpu_checks()), *extensions]
        return [*checks, *(_target(name, checks, node, providers) for name in TARGETS)]


def _check(kind: Kind, name: str, evidence: str, reason: str | None = None, remedy: str | None = None) -> Check:
    """Return a check of something that is usable unless there is a reason why not."""
    usable = reason is None
    return Check(kind=kind, name=name, usable=usable, evidence=evidence, reason=reason, remedy=remedy)


def _version(registry: Registry, member: MachineProvider | ContainerEngine, node: LocalNode) -> str:
    """Return the member's version. An error in another package is told as a BenchError: every run asks the doctor."""
    try:
        return f"version {member.version(node)}"
    except Exception as error:
        if isinstance(error, BenchError) or member.name in registry.own:
            raise
        raise BenchError(f"{type(error).__name__}: {error}", remedy=EXTENSION_REMEDY) from error


def _host(node: LocalNode) -> Iterator[Check]:
    user = os.geteuid()
    refused = ("not root", "use sudo; docs/guide/what-to-measure.md lists what works without root") if user else ()
    yield _check("host", "root", f"effective user {user}", *refused)
    yield _check("host", "control-groups", f"memory is governed by version {cgroups.version(node)}")
    if reason := cache_counters.absent():
        yield _check("host", "cache-counters", "tried", reason, "records say so; nothing else needs them")
    else:
        yield _check("host", "cache-counters", "perf counts the misses of the last-level cache")
    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    reason = f"building an image needs {build.NEEDED_BYTES >> 30} GiB"
    refused = (reason, build.SPACE_REMEDY) if free < build.NEEDED_BYTES else ()
    yield _check("host", "disk", f"{free >> 30} GiB free in {place}", *refused)


def _tools(providers: Sequence[MachineProvider]) -> Iterator[Check]:
    of_providers = {
        tool: f"VMs: package {package}"
        for provider in providers
        for tool, package in {**provider.tools, **provider.local_tools}.items()
    }
    for tool, what in {**of_providers, **TOOLS}.items():
        if path := shutil.which(tool):
            yield _check("tool", tool, path)
        else:
            remedy = f"install it ({what}); in a checkout: make setup"
            yield _check("tool", tool, "not on PATH", f"{tool} is not installed", remedy)


def _image() -> Check:
    try:
        image = current()
        image.check()
    except BenchError as error:
        return _check("image", "cpu", "none", error.message, error.remedy)
    age = "" if build.built("cpu") else "; the recipe has changed since: bench image build makes the new one"
    return _check("image", "cpu", f"{image.digest[:12]} of {image.created_at}{age}")


def _accelerators() -> Iterator[Check]:
    probe = accelerator.probe_kvm()
    remedy = "VMs run under tcg (emulation), named beside every number; else use another host"
    refused = () if probe.usable else (probe.reason, remedy)
    yield _check("accelerator", "kvm", f"{probe.evidence}, {probe.took_s} s", *refused)
    if qemu := shutil.which(accelerator.PROGRAM):
        yield _check("accelerator", "tcg", qemu)
    else:
        remedy = "install it (VMs: package qemu-system-x86); in a checkout: make setup"
        yield _check("accelerator", "tcg", "no QEMU", "QEMU is not installed", remedy)


def _tried(kind: Kind, name: str, attempt: Callable[[], str]) -> Check:
    try:
        return _check(kind, name, attempt())
    except BenchError as error:
        return _check(kind, name, "tried", error.message, error.remedy)


def _target(name: str, checks: list[Check], node: LocalNode, providers: Sequence[MachineProvider]) -> Check:
    """Return whether everything that the layers of the target need is there."""
    missing = next((check for check in _needs(name, checks, providers) if not check.usable), None)
    if missing:
        return _check("target", name, "something that it needs is missing", missing.reason, missing.remedy)
    if name == BASELINE and os.geteuid() == 0:
        tree = str(current().tree)
        return _tried("target", name, lambda: _entered(node, tree))
    found = _check("target", name, "all that it needs is there")
    return found.model_copy(update={"substitute": _substitute(name, checks)})


def _substitute(target: str, checks: Sequence[Check]) -> str | None:
    """Return what a target that is usable would run with, in place of what its numbers need; None for nothing."""
    if target == BASELINE:
        return "userland:own-environment" if os.geteuid() else None
    emulated = not any(check.usable for check in checks if (check.kind, check.name) == ("accelerator", "kvm"))
    return "accelerator:tcg" if target in VMS and emulated else None


def _entered(node: LocalNode, tree: str) -> str:
    node.run([*chroot_argv(tree, user=FIRST_USER), "true"])
    return "the image's tree was entered"


def _needs(target: str, checks: list[Check], providers: Sequence[MachineProvider]) -> Iterator[Check]:
    by_name = {(check.kind, check.name): check for check in checks}
    yield by_name["image", "cpu"]
    yield by_name["tool", "taskset"]
    if target == BASELINE and os.geteuid() == 0:
        yield from (by_name["tool", tool] for tool in ("bwrap", "cgexec"))
    if target == "container":
        engines = [check for check in checks if check.kind == "engine"]
        yield next((check for check in engines if check.usable), engines[0])
    if target in VMS:
        needs = [
            [by_name["tool", tool] for tool in (*each.tools, *each.local_tools)] + [by_name["provider", each.name]]
            for each in providers
        ]
        yield from next((each for each in needs if all(check.usable for check in each)), needs[0])
