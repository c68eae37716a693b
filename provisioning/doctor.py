"""Checks of what this machine can carry: each with its evidence, and each refusal with its reason and remedy."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict

from provisioning.cgroup import limits as cgroups
from provisioning.engines.base import ContainerEngine, get_engine
from provisioning.gpus import gpu_checks
from provisioning.images import build
from provisioning.images.image import current
from provisioning.layers.userland import chroot_argv
from provisioning.machines import accelerator
from provisioning.machines.base import MachineProvider, get_provider
from provisioning.metrics import cache_counters
from provisioning.nodes import LocalNode, local_node
from provisioning.paths import home
from suite.errors import BenchError
from suite.registries import ENGINES, MACHINES, every_registry
from suite.targets import TARGETS, VMS

Kind = Literal["host", "tool", "image", "accelerator", "provider", "engine", "gpu", "extension", "target"]
TOOLS = {
    "taskset": "pinning: package util-linux",
    "bwrap": "bare metal in the image's tree: package bubblewrap",
    "cgexec": "bare metal under the envelope: package cgroup-tools",
    "mke2fs": "building images: package e2fsprogs",
    "mmdebstrap": "building images where no container registry is in reach: package mmdebstrap",
}


class Check(BaseModel):
    """One check. ``reason`` and ``remedy`` are given if what was checked is not usable."""

    model_config = ConfigDict(frozen=True)

    kind: Kind
    name: str
    usable: bool
    evidence: str
    reason: str | None = None
    remedy: str | None = None


def examine() -> list[Check]:
    """Return every check of this machine. Takes seconds: the longest is a guest that does not boot under KVM."""
    failures = {registry.what: registry.failures() for registry in every_registry()}
    extensions = [
        Check(
            kind="extension",
            name=f"{what} {name}",
            usable=False,
            evidence="loaded",
            reason=reason,
            remedy="repair or uninstall the package that adds it",
        )
        for what, failed in failures.items()
        for name, reason in failed.items()
    ]
    providers = [get_provider(name) for name in MACHINES if name not in failures[MACHINES.what]]
    engines = [get_engine(name) for name in ENGINES if name not in failures[ENGINES.what]]
    with local_node(tuple(sorted(os.sched_getaffinity(0))), None) as node:
        checks = [*_host(node), *_tools(providers), _image(), *_accelerators()]
        checks += [_tried("provider", each.name, partial(_version, each, node)) for each in providers]
        checks += [_tried("engine", each.name, partial(_version, each, node)) for each in engines]
        checks += [*map(_gpu, gpu_checks()), *extensions]
        return [*checks, *(_target(name, checks, node, providers) for name in TARGETS)]


def _version(of: MachineProvider | ContainerEngine, node: LocalNode) -> str:
    return f"version {of.version(node)}"


def _gpu(found: tuple[str, bool, str, str | None, str | None]) -> Check:
    name, usable, evidence, reason, remedy = found
    return Check(kind="gpu", name=name, usable=usable, evidence=evidence, reason=reason, remedy=remedy)


def _host(node: LocalNode) -> Iterator[Check]:
    root = os.geteuid() == 0
    yield Check(
        kind="host",
        name="root",
        usable=root,
        evidence=f"effective user {os.geteuid()}",
        reason=None if root else "not root",
        remedy=None if root else "README.md, 'Without root', says what is possible; else use sudo",
    )
    version = cgroups.version(node)
    yield Check(kind="host", name="control-groups", usable=True, evidence=f"memory is governed by version {version}")
    reason = cache_counters.absent()
    yield Check(
        kind="host",
        name="cache-counters",
        usable=reason is None,
        evidence="perf counts the misses of the last-level cache" if reason is None else "tried",
        reason=reason,
        remedy=None if reason is None else "records say so; nothing else needs them",
    )
    place = home()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    enough = free >= build.NEEDED_BYTES
    yield Check(
        kind="host",
        name="disk",
        usable=enough,
        evidence=f"{free >> 30} GiB free in {place}",
        reason=None if enough else f"building an image needs {build.NEEDED_BYTES >> 30} GiB",
        remedy=None if enough else "free some space, or set VIRTBENCH_HOME to another disk",
    )


def _tools(providers: Sequence[MachineProvider]) -> Iterator[Check]:
    of_providers = {
        tool: f"VMs: package {package}"
        for provider in providers
        for tool, package in {**provider.tools, **provider.local_tools}.items()
    }
    for tool, what in {**of_providers, **TOOLS}.items():
        path = shutil.which(tool)
        yield Check(
            kind="tool",
            name=tool,
            usable=path is not None,
            evidence=path or "not on PATH",
            reason=None if path else f"{tool} is not installed",
            remedy=None if path else f"install it ({what}); in a checkout: make setup",
        )


def _image() -> Check:
    try:
        image = current()
        image.check()
    except BenchError as error:
        return Check(kind="image", name="cpu", usable=False, evidence="none", reason=error.message, remedy=error.remedy)
    fresh = build.built("cpu") is not None
    age = "" if fresh else "; the recipe has changed since: bench image build makes the new one"
    return Check(kind="image", name="cpu", usable=True, evidence=f"{image.digest[:12]} of {image.created_at}{age}")


def _accelerators() -> Iterator[Check]:
    probe = accelerator.probe_kvm()
    yield Check(
        kind="accelerator",
        name="kvm",
        usable=probe.usable,
        evidence=f"{probe.evidence}, {probe.took_s} s",
        reason=None if probe.usable else probe.reason,
        remedy=None
        if probe.usable
        else "VMs run under tcg (emulation), named beside every number; else use another host",
    )
    qemu = shutil.which(accelerator.PROGRAM)
    yield Check(
        kind="accelerator",
        name="tcg",
        usable=qemu is not None,
        evidence=qemu or "no QEMU",
        reason=None if qemu else "QEMU is not installed",
        remedy=None if qemu else "install it (VMs: package qemu-system-x86); in a checkout: make setup",
    )


def _tried(kind: Kind, name: str, attempt: Callable[[], str]) -> Check:
    try:
        return Check(kind=kind, name=name, usable=True, evidence=attempt())
    except BenchError as error:
        return Check(kind=kind, name=name, usable=False, evidence="tried", reason=error.message, remedy=error.remedy)


def _target(name: str, checks: list[Check], node: LocalNode, providers: Sequence[MachineProvider]) -> Check:
    """Return whether everything that the layers of the target need is there."""
    reasons = [check for check in _needs(name, checks, providers) if not check.usable]
    if not reasons and name == "bare-metal" and os.geteuid() == 0:
        tree = str(current().tree)
        return _tried("target", name, lambda: _entered(node, tree))
    first = reasons[0] if reasons else None
    return Check(
        kind="target",
        name=name,
        usable=not reasons,
        evidence="all that it needs is there" if not reasons else "something that it needs is missing",
        reason=first.reason if first else None,
        remedy=first.remedy if first else None,
    )


def _entered(node: LocalNode, tree: str) -> str:
    node.run([*chroot_argv(tree), "true"])
    return "the image's tree was entered"


def _needs(target: str, checks: list[Check], providers: Sequence[MachineProvider]) -> Iterator[Check]:
    by_name = {(check.kind, check.name): check for check in checks}
    yield by_name["image", "cpu"]
    yield by_name["tool", "taskset"]
    if target == "bare-metal" and os.geteuid() == 0:
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
