"""A machine, as the host and as the inside of a target see it."""

from typing import Literal

from pydantic.dataclasses import dataclass

from suite.part import Count
from suite.records.fields import STRICT, Text, WholeNumber

OwnKernel = Literal["sentry", "virtual machine"]


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Engine:
    """The container engine that ran the target, and its settings that could cost something."""

    name: Text
    version: Text
    """With that of ``runtime``."""
    network: Text
    """``none``, ``host``, a bridge's, or ``shared``: with an engine that leaves every container in its machine's."""
    rootfs: Text
    """How the image's tree is mounted, by the mount table inside: ``directory`` (read-only, in place), ``overlay``, or
    the file system in place of an overlay's, such as ``fuse-overlayfs``, ``zfs``, or that of a copy."""
    runtime: Text | None = None
    """The OCI runtime that the engine was asked for. Null for its usual one."""
    kernel: OwnKernel | None = None
    """What answers system calls inside in place of the node's kernel."""
    platform: Text | None = None
    """How gVisor intercepts system calls: ``systrap``, ``ptrace`` or ``kvm``. Null on the node's kernel."""
    seccomp_sha256: Text | None = None
    """The digest of the seccomp profile's file. Null for an engine whose program holds its profile."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Pod:
    """The pod that the target is, and how the kubelet of its node treats it. Null where the user may not read it."""

    node: Text
    this_machine: bool
    """Whether the node is the machine that the suite ran on."""
    kubelet: Text
    runtime: Text
    """The container runtime of the node, and its version."""
    runtime_class: Text | None = None
    quality: Text
    """The quality of service class: ``Guaranteed``."""
    image_id: Text
    changed: list[Text]
    """What admission has changed of the pod that was sent, or added to it; what decides a number fails the trial."""
    cpu_manager: Text | None = None
    memory_manager: Text | None = None
    topology_manager: Text | None = None
    reserved_cpus: Text | None = None
    """The CPUs that the kubelet keeps from pods."""
    cpu_quota: bool | None = None
    """Whether limits of CPUs are quotas; kubelets before 1.33 hold back pods that have CPUs to themselves, too."""
    cgroup_driver: Text | None = None
    others: list[Text] | None = None
    """The other pods that ran on the node."""
    boot_id: Text | None = None
    """The number of the node's boot: two nodes that have the same one share a kernel."""
    virtual: bool = False
    """Whether the node is the virtual machine of container-vm, as the pod has attested."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Gpu:
    """One GPU as seen from inside; of a job that does not use torch, as NVML shows it on the machine."""

    name: Text
    memory_bytes: WholeNumber | None = None
    driver: Text | None = None
    pci_address: Text | None = None
    uuid: Text | None = None
    capability: Text | None = None
    """The compute capability: ``9.0``."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Environment:
    """A machine as seen from one place: the host, or the inside of a target. Null where it is unknown there."""

    machine: Text | None = None
    """The machine of the inventory that the target was opened on by SSH; null on the machine that the suite ran on."""
    machine_key: Text | None = None
    """The digest of that machine's machine-id(5), by which it is known; null if it has none."""
    machine_disk: Text | None = None
    """The file system and the disk of the image on that machine."""
    kernel: Text | None = None
    hostname: Text | None = None
    """The name of the host, which is for people, or of the target, which has a new one each time."""
    machine_id: Text | None = None
    """The digest of the host's machine-id(5), by which it is known; null inside a target, and if bench runs in one."""
    pid1: Text | None = None
    """Name of process 1, without its arguments: which init, or that the place is a container."""
    cpus: list[Count] | None = None
    """The CPUs this process may use, in this kernel's own numbers."""
    host_cpus: list[Count] | None = None
    """The host CPUs that these are pinned to; of a pod, those of its node's kernel."""
    memory_bytes: Count | None = None
    """The least of the control group's limit and the machine's physical memory."""
    kernel_memory_bytes: WholeNumber | None = None
    """Physical memory that the kernel kept for itself: not in MemTotal."""
    threads: Count | None = None
    userland_sha256: Text | None = None
    userland_differences: list[Text] | None = None
    """Paths in which the tree seen from inside departs from its manifest; empty when it was checked and agrees."""
    accelerator: Literal["none", "kvm", "tcg"] | None = None
    hypervisor: Text | None = None
    disk: Text | None = None
    filesystem: Text | None = None
    """The type of the data volume's file system; null without one."""
    disk_limit_bytes_per_s: WholeNumber | None = None
    """The limit of each disk in each direction, as the control group or QEMU has it; null without a single limit."""
    disk_limit_iops: WholeNumber | None = None
    """The same in requests per second."""
    container_engine: Engine | None = None
    pod: Pod | None = None
    cgroup_version: Literal[1, 2] | None = None
    seccomp: Literal["disabled", "strict", "filter", "open", "sentry"] | None = None
    """What filters system calls; ``open`` is a filter that refuses nothing."""
    seccomp_refuses: list[Text] | None = None
    """The calls, of a few that are tried, that a filter refuses; null without a filter."""
    no_new_privileges: bool | None = None
    effective_capabilities: Text | None = None
    cpu_model: Text | None = None
    cpu_flags: list[Text] | None = None
    mitigations: dict[Text, Text] | None = None
    transparent_hugepages: Text | None = None
    cpu_governor: Text | None = None
    """The frequency governor of these CPUs; several are joined by ``+``."""
    cpu_preference: Text | None = None
    """The preference between energy and performance that their governor is given."""
    cpu_limit_mhz: WholeNumber | None = None
    """The least of the highest frequencies that they may reach."""
    turbo: bool | None = None
    """Whether CPUs may exceed their base frequency."""
    smt: bool | None = None
    """Whether cores run several hardware threads; null for a machine whose cores have one."""
    cpu_caches: dict[Text, WholeNumber] | None = None
    """The bytes of the caches of the first of these CPUs: ``L1d``, ``L2``, ``L3``."""
    kvm: dict[Text, Text] | None = None
    """Settings of KVM on a host of virtual machines, and of page sharing (KSM), in the kernel's words."""
    clocksource: Text | None = None
    python: Text | None = None
    libc: Text | None = None
    allocator: Text | None = None
    torch: Text | None = None
    torchvision: Text | None = None
    torch_cpu_capability: Text | None = None
    cuda: Text | None = None
    """The version of CUDA that torch is built with; null on the CPU, as is cuDNN's."""
    cudnn: Text | None = None
    tf32: list[Text] | None = None
    """The operations that may round to TF32 on a GPU: ``matmul``, ``convolution``. The recipe decides."""
    memory_format: Literal["channels-last"] | None = None
    """Where an ablation has the channels of images last; null where the recipe decides."""
    gpus: list[Gpu] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Environments:
    """The same questions asked on the host and inside the target."""

    host: Environment
    target: Environment | None = None
