"""Ablations: properties of a target that are switched one at a time, in the same blocks as the target as it is.

Each has one fixed meaning, so that its name alone says what was measured.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from suite.errors import RequestError, option
from suite.job.properties import AS_IT_IS, Properties
from suite.registries import ABLATIONS, ENGINES, INJURIES
from suite.targets import COMMANDS, TARGETS, VERSUS

_CONTAINERS = ("container", "container-vm")
_VMS = ("vm", "container-vm")
_ALL = ("bare-metal", *_CONTAINERS, "vm")


@dataclass(frozen=True)
class Ablation:
    """One switch: the properties with it, and the targets that have them."""

    summary: str
    """A phrase that says what the switched target has instead."""
    label: str
    """The same in two or three words, for tables and warnings."""
    targets: tuple[str, ...]
    properties: Properties
    """The properties of the switched target."""
    differs: tuple[str, ...] = ()
    """Fields of the environment in which the switched trial may differ from the trial that it is compared with: what
    was switched itself. Everything else must still agree."""


SECCOMP = Ablation(
    "no system call filter on the container",
    "seccomp off",
    _CONTAINERS,
    Properties(seccomp=False),
    differs=("seccomp",),
)


def by_engine(engine: str) -> Ablation:
    meaning = f"{engine} instead of the run's engine"
    label = f"by {engine}"
    return Ablation(meaning, label, ("container",), Properties(engine=engine))


def run_by(runtime: str) -> Ablation:
    """Return the ablation ``oci-runtime=NAME``, given the name; without one it changes nothing."""
    meaning = f"{runtime or '=NAME'} instead of the engine's OCI runtime"
    label = f"run by {runtime}"
    return Ablation(meaning, label, ("container",), Properties(oci_runtime=runtime or None))


_VALUES = {"oci-runtime": "crun", "disk-iops": "30000"}
"""A value of each ablation that takes one, for messages."""
NETWORK = Ablation(
    "the node's network instead of a private namespace",
    "network of the node",
    _CONTAINERS,
    Properties(host_network=True),
)
CLUSTER_IP = Ablation(
    "clients use a service's cluster address instead of the pod's",
    "by the service's address",
    ("container",),
    Properties(service="ClusterIP"),
)
NODE_PORT = Ablation(
    "clients use a service's port on the server's node instead of the pod's address",
    "by the node's port",
    ("container",),
    Properties(service="NodePort"),
)
# A kubelet gives whole CPUs to guaranteed pods alone.
POD_REQUESTS = Ablation(
    "a pod that requests half of its limits (Burstable)",
    "requests of half",
    ("container",),
    Properties(pinned=False, pod_requests=0.5),
    differs=("host_cpus", "cpus", "pod.quality"),
)
ROOTFS = Ablation(
    "the image's tree bound in place instead of an overlay",
    "root file system bound in place",
    _CONTAINERS,
    Properties(bound_tree=True),
)
HUGE_PAGES = Ablation(
    "memory of the job in transparent huge pages",
    "huge pages on",
    _ALL,
    Properties(huge_pages=True),
    differs=("allocator", "transparent_hugepages"),
)
GUEST_HUGE_PAGES = Ablation(
    "transparent huge pages for all memory of the guest instead of the node's mode",
    "huge pages in the guest",
    _VMS,
    Properties(guest_huge_pages="always"),
    differs=("transparent_hugepages",),
)
CHANNELS_LAST = Ablation(
    "images and weights in memory with their channels last (NHWC)",
    "channels last",
    _ALL,
    Properties(channels_last=True),
    differs=("memory_format",),
)
PINNING = Ablation(
    "CPUs by count (a quota, unpinned vCPUs) instead of by number",
    "pinning off",
    _ALL,
    Properties(pinned=False),
    differs=("host_cpus", "cpus"),
)
ISA = Ablation(
    "vector instructions capped to the next lower level",
    "lower vector instructions",
    _ALL,
    Properties(lower_isa=True),
    differs=("torch_cpu_capability",),
)
# The memory of a guest limits everything that runs in it: container-vm has no limit to lift.
MEMORY_LIMIT = Ablation(
    "no memory limit on the instance",
    "memory limit off",
    ("bare-metal", "container"),
    Properties(memory_limited=False),
    differs=("memory_bytes",),
)
DISK_LIMIT = Ablation(
    "at most 32 MiB/s read and 32 MiB/s written per disk",
    "disk limit on",
    _ALL,
    Properties(disk_limit_bytes_per_s=32 << 20),
    differs=("disk_limit_bytes_per_s",),
)
_USUAL_IOPS = "100"


def disk_iops(number: str) -> Ablation:
    """Return the ablation ``disk-iops=N``, given the number; without one it is 100. Raises RequestError for text."""
    text = number or _USUAL_IOPS
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        remedy = f"write it as {option('ablate')} disk-iops=30000"
        raise RequestError(f"{option('ablate')} disk-iops={text}: {text!r} is not a number of requests", remedy=remedy)
    another = "" if number else " (or disk-iops=N)"
    return Ablation(
        f"at most {text} reads and {text} writes per second and disk{another}",
        f"{text} disk requests/s",
        _ALL,
        Properties(disk_limit_iops=int(text)),
        differs=("disk_limit_iops",),
    )


CONFINEMENT = Ablation(
    "the job as root, unconfined", "root on the machine", ("bare-metal",), Properties(confined=False)
)
VIRTIOFS = Ablation(
    "the data set's directory shared with the VM instead of a virtual disk",
    "data by virtiofs",
    _VMS,
    Properties(virtiofs=True),
)
DATA_LAYER = Ablation(
    "the data set in a container layer instead of a bind mount",
    "data in a layer of its own",
    ("container",),
    Properties(data_in_layer=True),
)
MICROVM = Ablation(
    "QEMU's machine type microvm, virtio over MMIO without PCI", "light VM", _VMS, Properties(microvm=True)
)
LIBVIRT = Ablation("libvirt instead of the run's machine provider", "by libvirt", _VMS, Properties(provider="libvirt"))
DISK_CACHE = Ablation(
    "cache=writeback instead of cache=none for the disks of the VM",
    "disk cache writeback",
    _VMS,
    Properties(direct_io=False),
)


SECOND_COMMAND = Ablation("the second command instead of the first", COMMANDS[1], TARGETS, AS_IT_IS)
"""Chosen by ``--versus`` alone."""


def get_ablation(name: str) -> Ablation:
    """Return the ablation, or the injury of a self-test. Raises RequestError for an unknown name, or a wrong value."""
    if name == VERSUS:
        return SECOND_COMMAND
    kind, equals, value = name.partition("=")
    member = (INJURIES if name in INJURIES else ABLATIONS).get(kind)
    if kind in ENGINES and member is by_engine:
        member = member(kind)
    if equals and not (callable(member) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,49}", value)):
        raise RequestError(
            f"{option('ablate')} {name} has a wrong value", remedy=f"write it as {option('ablate')} {written(kind)}"
        )
    ablation: Ablation = member(value) if callable(member) else member
    return ablation


def written(kind: str) -> str:
    """Return how an ablation is written, with a value such as it takes."""
    if callable(ABLATIONS.get(kind)):
        return f"{kind}={_VALUES.get(kind, 'NAME')}"
    return kind


def typed(name: str) -> str:
    """Return how messages name an ablation as it may have been typed: a further engine is one, too."""
    if name in ENGINES:
        return f"{option('engine')} or {option('ablate')} {name}"
    return f"{option('ablate')} {name}"


def properties_of(name: str | None) -> Properties:
    """Return the properties of a target under an ablation; None is the target as it is."""
    if name:
        return get_ablation(name).properties
    return AS_IT_IS


def known_properties(name: str | None) -> Properties | None:
    """Return ``properties_of``; None for an ablation that is not installed here, of a run made elsewhere."""
    if name is None or _installed(name):
        return properties_of(name)
    return None


def arms(target: str, ablations: Sequence[str]) -> tuple[str, ...]:
    """Return those of the ablations that the target has, in their order."""
    return tuple(name for name in ablations if target in get_ablation(name).targets)


def check(ablations: Sequence[str], targets: Sequence[str]) -> None:
    """Raise RequestError for an ablation that none of the targets has: the run would not hold what was asked for."""
    for name in ablations:
        known = get_ablation(name).targets
        if not set(targets) & set(known):
            raise RequestError(
                f"{typed(name)}: none of {', '.join(targets)} has it",
                remedy=f"add {option('target')} {known[0]}, or leave it out",
            )


def facts_that_may_differ(name: str) -> tuple[str, ...]:
    """Return ``Ablation.differs``; nothing for an ablation that is not installed here, of a run made elsewhere."""
    ablation = _installed(name)
    return ablation.differs if ablation else ()


def label_of(name: str) -> str:
    """Return ``Ablation.label``; made of the name for an ablation that is not installed here."""
    ablation = _installed(name)
    if ablation:
        return ablation.label
    return f"{name} switched"


def named_arm(target: str, ablation: str | None) -> str:
    """Return the target, and the label of what is switched on it: ``container, by podman``."""
    if ablation:
        return f"{target}, {label_of(ablation)}"
    return target


def _installed(name: str) -> Ablation | None:
    try:
        return get_ablation(name)
    except RequestError:
        return None
