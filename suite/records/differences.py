"""The one table of what a difference between two records means, for every field of a record.

The comparison refuses or names differences by it; the audit and ``docs/reference/differences.md`` are made from it. A
test changes each field of real records and checks the treatment.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from suite.records.columns import AUDIT, FURTHER, TABLE, Column, Field, Treatment

TREATMENTS: Mapping[Treatment, str] = {
    "refused": "Another experiment: no ratio is formed between records that differ in it.",
    "named": "Part of what the ratio shows, and named beside it.",
    "constant": "The nature of a target, which distinguishes targets; several on one target are named beside it.",
    "measured": "What is compared or warned about itself, or distinguishes trials in tables.",
    "checked": "Checked by the audit against the rest of the record, or against the plan.",
    "ignored": "Does not matter to a ratio.",
}


def _many(treatment: Treatment, why: str, *paths: str) -> tuple[Field, ...]:
    return tuple(Field(path, treatment, why) for path in paths)


_OF_POD = {
    "kubelet": "kubelet",
    "runtime": "container runtime",
    "runtime_class": "runtime class",
    "quality": "quality of service",
    "cpu_manager": "CPU manager",
    "memory_manager": "memory manager",
    "topology_manager": "topology manager",
    "reserved_cpus": "CPUs kept from pods",
    "cpu_quota": "quotas of pods",
    "cgroup_driver": "driver of control groups",
    "virtual": "attested virtual machine",
    "changed": "changes of the pod by admission",
}
INSIDE = (
    Field("userland_sha256", "refused", "other libraries are another program", "userland"),
    Field("userland_differences", "refused", "see the userland", "departures from the userland's manifest"),
    Field("cpus", "refused", "part of the envelope; only their number counts", "CPUs seen inside"),
    Field("memory_bytes", "refused", "part of the envelope; 2 % may differ", "memory seen inside"),
    Field("threads", "refused", "part of the envelope", "threads seen inside"),
    Field("host_cpus", "refused", "part of the envelope", "host CPUs pinned to"),
    Field("disk_limit_bytes_per_s", "refused", "part of the envelope", "disk limit"),
    Field("disk_limit_iops", "refused", "part of the envelope", "limit of disk requests"),
    Field("torch", "refused", "another version has other kernels", "torch"),
    Field("torch_cpu_capability", "refused", "another instruction set; named with --isa native", "CPU capability"),
    Field("memory_format", "refused", "another layout has other kernels", "memory format"),
    Field("gpus.name", "refused", "another device", "GPUs"),
    Field(
        "gpus.memory_bytes", "refused", "another device; 2 % may differ: drivers keep other parts of it", "GPU memory"
    ),
    Field("gpus.capability", "refused", "another device", "GPU capability"),
    Field("cuda", "refused", "another version has other kernels", "CUDA"),
    Field("cudnn", "refused", "another version has other kernels", "cuDNN"),
    Field("gpus.driver", "named", "a driver decides part of the speed", "GPU driver", "GPU"),
    Field("gpus.uuid", "named", "cards of one model differ by some percent", "GPU card", "GPU"),
    Field("kernel", "named", "scheduler, page faults and network are the kernel's", "kernel", "kernel"),
    Field("clocksource", "named", "reading hpet takes a hundred times as long as tsc", "clock source", "kernel"),
    Field("transparent_hugepages", "named", "always and madvise differ by several percent", "huge pages", "kernel"),
    Field("mitigations.*", "named", "each costs entries to the kernel", "CPU mitigations", "kernel"),
    Field("cgroup_version", "named", "they account in different ways", "control groups", "kernel"),
    Field("cpu_model", "named", "libraries choose their code by it", "CPU model", "CPU"),
    Field("cpu_flags", "named", "vector instructions that a guest lacks are not used", "CPU flags", "CPU"),
    Field("cpu_caches.*", "named", "libraries choose the blocks of their sums by them", "CPU caches", "CPU"),
    Field("kvm.*", "named", "they decide how often a guest leaves its CPU", "KVM settings", "kernel"),
    Field("cpu_governor", "named", "it decides the frequency", "CPU governor", "CPU settings"),
    Field("cpu_preference", "named", "it decides the frequency", "CPU energy preference", "CPU settings"),
    Field("cpu_limit_mhz", "named", "it bounds the frequency", "CPU frequency limit in MHz", "CPU settings"),
    Field("turbo", "named", "it raises the frequency", "CPU turbo", "CPU settings"),
    Field("smt", "named", "hardware threads share a core", "SMT", "CPU settings"),
    Field("tf32", "named", "it rounds, and is several times as fast", "TF32", "GPU"),
    Field("python", "named", "the interpreter runs between the kernels of torch", "Python", "software"),
    Field("libc", "named", "copying memory is libc's", "libc", "software"),
    Field("allocator", "named", "page faults follow from it", "allocator", "software"),
    Field("torchvision", "named", "it holds the models", "torchvision", "software"),
    Field("seccomp", "named", "it slows system calls; expected in containers", "seccomp", "seccomp"),
    Field("seccomp_refuses", "constant", "belongs to the container", "system calls that the filter refuses"),
    Field("accelerator", "constant", "belongs to the virtual machine", "accelerator"),
    Field("hypervisor", "constant", "belongs to the virtual machine", "hypervisor"),
    Field("disk", "constant", "belongs to the virtual machine", "disk"),
    Field("filesystem", "constant", "depends on the target's layers", "file system of the data volume"),
    Field("container_engine.name", "constant", "belongs to the container", "engine"),
    Field("container_engine.version", "constant", "belongs to the container", "engine version"),
    Field("container_engine.network", "constant", "belongs to the container", "container network"),
    Field("container_engine.rootfs", "constant", "belongs to the container", "root file system"),
    Field("container_engine.runtime", "constant", "belongs to the container", "OCI runtime"),
    Field("container_engine.kernel", "constant", "belongs to the container", "kernel inside"),
    Field("container_engine.platform", "constant", "belongs to the container", "gVisor's platform"),
    Field("container_engine.seccomp_sha256", "constant", "belongs to the container", "seccomp profile"),
    Field("machine", "named", "another machine", "machine of the inventory", "machine"),
    Field("machine_key", "named", "another machine, or of one without an ID its name", "machine-id", "machine"),
    Field("machine_disk", "named", "files come from it, and go to it", "disk of the machine", "disk"),
    Field("pod.node", "named", "another machine", "node of the cluster", "machine"),
    *(Field(f"pod.{name}", "constant", "belongs to the pod", label) for name, label in _OF_POD.items()),
    Field("pod.others", "ignored", "their CPU time is in the conditions"),
    Field("pod.this_machine", "constant", "belongs to the pod; decides whose clock it has", "whether on this machine"),
    Field("pod.boot_id", "ignored", "identifies the machine, as the node does"),
    Field("pod.image_id", "ignored", "the userland is compared instead"),
    *_many("ignored", "each instance has a new one", "hostname", "machine_id"),
    Field("pid1", "ignored", "implied by the target"),
    Field("kernel_memory_bytes", "ignored", "the envelope has the usable memory"),
    *_many("ignored", "affects rights, not speed", "no_new_privileges", "effective_capabilities"),
    Field("gpus.pci_address", "ignored", "guests use other addresses"),
)
"""An environment as seen from inside a target, or an instance of one."""

_CHANGED = "the host changed between the trials"
_OF_HOST = {
    "kernel": "kernel",
    "clocksource": "kernel",
    "transparent_hugepages": "kernel",
    "mitigations.*": "kernel",
    "cgroup_version": "kernel",
    "cpu_model": "CPU",
    "cpu_flags": "CPU",
    "cpu_caches.*": "CPU",
    "kvm.*": "kernel",
    **dict.fromkeys(("cpu_governor", "cpu_preference", "cpu_limit_mhz", "turbo", "smt"), "CPU settings"),
    "cpus": "machine",
    "memory_bytes": "machine",
    "hypervisor": "machine",
    "gpus.name": "GPU",
    "gpus.memory_bytes": "GPU",
    "gpus.driver": "GPU",
}
HOST = (
    Field("machine_id", "refused", "a ratio would measure both machines", "host"),
    Field("hostname", "named", "a machine may be renamed; of one without an ID it decides", "host name", "host name"),
    *(
        Field(fact.path, "named", _CHANGED, f"host {fact.label.removesuffix(' seen inside')}", f"host {group}")
        for fact in INSIDE
        if (group := _OF_HOST.get(fact.path))
    ),
    Field("*", "ignored", "describes the suite's process, not the job"),
)
"""The same questions asked on the host."""

_BURST = (
    *_many("checked", "trials of a block take turns together", "begun_s", "ended_s"),
    *_many("checked", "every round has one turn of each", "round", "position"),
    *_many("checked", "spans and steps sum to those of the trial", "span_s", "steps"),
    *_many("checked", "no burst is longer; the warning clock-drift", "heard_s"),
    *_many("checked", "they sum to the CPU time of the trial", "cpu_s", "own_cpu_s"),
    *_many("measured", "a warning shows it", "waiting_cpu_s"),
    *_many("ignored", "part of waiting_cpu_s", "own_waiting_cpu_s"),
    *_many("ignored", "explanation only", "faults"),
)
_AGGRESSION = (
    Field("unit", "constant", "belongs to the aggressor", "unit of the aggressor"),
    *_many("checked", "an aggressor encloses its victim", "begun_s", "ended_s"),
    *_many("checked", "the work that it reported only grows", "heard_s", "steps", "work"),
    *_many("measured", "the speed that the aggressor keeps", "before_per_s", "beside_per_s"),
    *_many("ignored", "only the victim's loss counts", "usage.*"),
)
GPU_SETTINGS = {
    "power_limit_w": "GPU power limit",
    "persistence": "GPU persistence mode",
    "ecc": "GPU memory with ECC",
    "mig": "GPU in MIG mode",
    "confidential": "GPU with confidential computing",
    "pcie_generation": "GPU PCIe generation",
    "pcie_width": "GPU PCIe lanes",
    "job.sm_mhz": "GPU clock",
    "measured.sm_mhz": "GPU clock over the measured steps",
}
_GPU_DISTURBED = ("strangers", "strangers_utilisation", "throttled_s", "power_capped_s")
_ELSEWHERE = (
    Field("job.dataset.directory", "ignored", "a path of the user, never recorded"),
    Field("job.*", "refused", "the job decides what a number means", "job"),
    *_many("measured", "a metric of a probe or workload", "metrics.*.value", "metrics.*.unit", "metrics.*.better"),
    *_many("measured", "how a metric of a probe or workload is compared", "metrics.*.compared"),
    Field("metrics.*.samples", "checked", "the value is a statistic of them"),
    Field("epochs.*", "checked", "the metrics of epochs are computed from it"),
    Field("kept.*", "checked", "as the job and its epochs have it; the weights of the whole training are compared"),
    *(replace(field, path=f"alternation.bursts.{field.path}") for field in _BURST),
    Field("data_use.sha256", "refused", "other images are other work", "data set"),
    *_many("checked", "it is the job's data set", "data_use.kind", "data_use.images", "data_use.size_bytes"),
    *_many("checked", "it is the job's data set", "data_use.listing_sha256"),
    Field("data_use.decoder", "named", "decoders differ in speed", "decoder", "loading"),
    Field("data_use.loader_workers", "named", "default: one per visible CPU", "loader workers", "loading"),
    Field("data_use.page_cache_share", "checked", "as the job requests"),
    Field("data_use.filesystem", "constant", "depends on the target's layers", "file system of the data"),
    Field("data_use.device", "constant", "depends on the target's layers", "device of the data"),
    Field("data_use.bytes_read", "checked", "no more is read than the images hold"),
    Field("data_use.damaged_files", "ignored", "names what data_use.damaged counts"),
    *_many("checked", "the ranks are those of the job", "ranks.rank", "ranks.role"),
    Field("ranks.links.rank", "checked", "each rank has links to all others"),
    *_many("checked", "the ranks' throughputs sum to the whole's", "ranks.throughput_per_s", "ranks.measured_s"),
    *_many("checked", "they sum to the rank's measured span", "ranks.data_s", "ranks.compute_s", "ranks.communicate_s"),
    *_many("checked", "bytes sent are bytes received", "ranks.sent_bytes", "ranks.received_bytes"),
    Field("ranks.interface_*", "ignored", "holds headers and other traffic"),
    *_many("ignored", "part of the network of this trial", "ranks.address", "ranks.node_address", "ranks.interface"),
    Field("ranks.links.source_address", "ignored", "part of the network of this trial"),
    Field("ranks.links.*", "ignored", "the link before the job; communicate_s has its cost"),
    Field("ranks.clock_offset_s", "ignored", "no number depends on it"),
    *(replace(field, path=f"aggressors.aggression.{field.path}") for field in _AGGRESSION),
    Field("conditions.frequency_mhz", "ignored", "two moments; throttling covers the whole job"),
    Field("conditions.load_1min", "ignored", "other_cpu_s covers the whole job"),
    Field("conditions.absent", "ignored", "explains a null"),
    Field("conditions.sampler_cpu_s", "ignored", "work of the suite, on every target"),
    *_many("measured", "a warning shows it", *(f"resources.gpus.{name}" for name in _GPU_DISTURBED)),
    *(
        Field(f"resources.gpus.{name}", "named", "decides the speed; clocks may differ by 1 %", label, "GPU settings")
        for name, label in GPU_SETTINGS.items()
    ),
    Field("resources.energy_absent", "ignored", "explains a null"),
    Field("resources.*", "ignored", "explanation only"),
    Field("details", "ignored", "notes without a fixed form"),
)


def fields_of(columns: Iterable[Column]) -> Iterator[Field]:
    return (replace(column.meaning, path=column.pattern) for column in columns if column.meaning)


FIELDS: tuple[Field, ...] = (
    *fields_of((*TABLE, *AUDIT, *FURTHER)),
    *_ELSEWHERE,
    *(replace(field, path=f"environment.host.{field.path}") for field in HOST),
    *(
        replace(field, path=f"{environment}.{field.path}")
        for environment in ("environment.target", "ranks.environment", "aggressors.environment")
        for field in INSIDE
    ),
)


def facts(environment: Mapping[str, Any], fields: Iterable[Field]) -> dict[str, Any]:
    """Return the facts of an environment that the table does not ignore, by path; null ones are left out."""
    # A filter of system calls is expected in a container, and nowhere else.
    filtered = environment.get("seccomp") in ("filter", "sentry")
    filter_expected = filtered == (environment.get("container_engine") is not None)
    compared = [field.path for field in fields if field.treatment != "ignored"]
    if filter_expected:
        compared = [path for path in compared if path != "seccomp"]
    values = {path: _fact(environment, *path.split(".", 1)) for path in compared}
    return {path: value for path, value in values.items() if value is not None}


def _fact(environment: Mapping[str, Any], name: str, inner: str = "*") -> Any:  # noqa: ANN401 (any value of JSON)
    value = environment.get(name)
    if name == "cpus" and value is not None:
        return len(value)
    if inner == "*" or value is None:
        return value
    if isinstance(value, list):
        return [item.get(inner) for item in value]
    return value.get(inner)
