"""The axes of the suite, and the only list of the members of each.

To add a member of the suite's own, write its file and one line here. Other packages add to a registry by an entry point
of its group; see ``suite.registry``. Choices on the command line, in schemas, in ``bench doctor`` and in the documents
come from here.
"""

from suite.registry import Registry

SCENARIOS = Registry(
    "virtbench.scenarios",
    "scenario",
    {
        "synthetic": "scenarios.synthetic:Synthetic",
        "real": "scenarios.real:Real",
        "probe": "scenarios.probe:Probe",
        "distributed": "scenarios.distributed:Distributed",
        "shared": "scenarios.shared:Shared",
    },
)

ENGINES = Registry(
    "virtbench.engines",
    "container engine",
    {
        "docker": "provisioning.engines.docker:DOCKER",
        "podman": "provisioning.engines.podman:PODMAN",
        "runc": "provisioning.engines.runc:RUNC",
    },
)

MACHINES = Registry("virtbench.machines", "machine provider", {"qemu": "provisioning.machines.qemu:QEMU"})

ABLATIONS = Registry(
    "virtbench.ablations",
    "ablation",
    {
        "seccomp": "suite.job.ablations:SECCOMP",
        "network": "suite.job.ablations:NETWORK",
        "rootfs": "suite.job.ablations:ROOTFS",
        "huge-pages": "suite.job.ablations:HUGE_PAGES",
        "pinning": "suite.job.ablations:PINNING",
        "isa": "suite.job.ablations:ISA",
        "memory-limit": "suite.job.ablations:MEMORY_LIMIT",
        "disk-limit": "suite.job.ablations:DISK_LIMIT",
        "virtiofs": "suite.job.ablations:VIRTIOFS",
        "data-layer": "suite.job.ablations:DATA_LAYER",
        "disk-cache": "suite.job.ablations:DISK_CACHE",
    },
)


def every_registry() -> tuple[Registry, ...]:
    """Return all registries of this module, in the order in which they stand here."""
    return tuple(each for each in globals().values() if isinstance(each, Registry))
