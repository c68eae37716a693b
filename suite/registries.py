"""The axes of the suite, and the only list of the members of each.

To add a member of the suite's own, write its file and one line here. Other packages add to a registry by an entry point
of its group; see ``suite.registry``. Choices on the command line, in schemas, in ``bench doctor`` and in the documents
come from here.
"""

from suite.registry import Registry


def _constants(module: str, names: str) -> dict[str, str]:
    """Return members that a module declares under their names: ``huge-pages`` as ``HUGE_PAGES``."""
    return {name: f"{module}:{name.upper().replace('-', '_')}" for name in names.split()}


SCENARIOS = Registry(
    "virtbench.scenarios",
    "scenario",
    {
        "synthetic": "scenarios.training:Synthetic",
        "real": "scenarios.training:Real",
        "probe": "scenarios.probe:Probing",
        "distributed": "scenarios.distributed:Distributed",
        "shared": "scenarios.shared:Shared",
        "command": "scenarios.command:Command",
        "serve": "scenarios.serve:Serve",
        "startup": "scenarios.startup:Startup",
    },
)

_ON_NODES = ("docker", "podman", "runc", "gvisor", "charliecloud", "apptainer")
"""The engines whose containers start on any node; an ablation can put each in the place of the run's."""
ENGINES = Registry(
    "virtbench.engines",
    "container engine",
    {name: f"provisioning.engines.{name}:{name.upper()}" for name in (*_ON_NODES, "kubernetes")},
    {"gvisor": "provisioning.engines.options:GvisorOptions", "kubernetes": "provisioning.engines.options:PodOptions"},
)

FIGURES = Registry(
    "virtbench.figures",
    "figure",
    {
        "forest": "analysis.figures.forest:forest",
        "training": "analysis.figures.bars:training_bars",
        "time-per-epoch": "analysis.figures.bars:time_per_epoch",
        "probe": "analysis.figures.bars:probe_bars",
        "interference": "analysis.figures.interference:loss_bars",
        "interference-map": "analysis.figures.interference:heat_map",
        "trials": "analysis.figures.points:every_trial",
        "latency": "analysis.figures.points:latency_lines",
        "latency-by-rate": "analysis.figures.rates:rate_lines",
        "scaling": "analysis.figures.points:speed_up_lines",
        "by": "analysis.figures.bars:value_bars",
        "together": "analysis.figures.points:together_lines",
        "time-money": "analysis.figures.points:time_money",
    },
)

_CONTRASTS = "analysis.compare.contrast_kinds"
CONTRASTS = Registry(
    "virtbench.contrasts",
    "kind of contrast",
    {
        **_constants(_CONTRASTS, "target again ablation aggressor layers models isolation strong weak division"),
        **_constants(_CONTRASTS, "allocation jobs"),
        "slow-downs": f"{_CONTRASTS}:SLOWDOWNS",
        **_constants(_CONTRASTS, "by machine run"),
        "run-relative": f"{_CONTRASTS}:RELATIVE",
    },
)

HISTORY_FIGURES = Registry(
    "virtbench.history-figures", "figure of a history", {"values": "analysis.figures.history:values"}
)

BACKENDS = Registry(
    "virtbench.backends",
    "sweep backend",
    {
        "local": "commands.sweep.backends.local:Local",
        "slurm": "commands.sweep.backends.slurm:Slurm",
        "ssh": "commands.sweep.backends.ssh:Ssh",
        "kubernetes": "commands.sweep.backends.kubernetes:KubernetesBackend",
    },
)

TIMERS = Registry(
    "virtbench.timers",
    "timer",
    {
        "systemd": "provisioning.timers.host:Systemd",
        "cron": "provisioning.timers.host:Cron",
        "kubernetes": "provisioning.timers.kubernetes:KubernetesTimer",
    },
)
"""The timers of ``bench sweep schedule``, in the order in which they are tried."""

WORKLOADS = Registry(
    "virtbench.workloads",
    "workload",
    {
        "inception_v3": "worker.workloads.classifier:INCEPTION_V3",
        "resnet50": "worker.workloads.classifier:RESNET50",
        "alexnet": "worker.workloads.classifier:ALEXNET",
        "gan": "worker.workloads.adversarial:GAN",
        "gan-published": "worker.workloads.adversarial:GAN_PUBLISHED",
        "dcgan": "worker.workloads.dcgan:DCGAN",
        "dcgan-published": "worker.workloads.dcgan:DCGAN_PUBLISHED",
        "vae": "worker.workloads.vae:VAE",
        "progressive-gan": "worker.workloads.progressive_gan:PROGRESSIVE_GAN",
        "transformer": "worker.workloads.transformer:TRANSFORMER",
        "collectives": "worker.workloads.collectives:COLLECTIVES",
    },
)

DATA_KINDS = Registry(
    "virtbench.data-kinds",
    "kind of data set",
    {
        "imagenet": "worker.data.kinds.imagefolder:IMAGENET",
        "imagefolder": "worker.data.kinds.imagefolder:IMAGEFOLDER",
        "cifar10": "worker.data.kinds.cifar10:CIFAR10",
        "mnist": "worker.data.kinds.mnist:MNIST",
        "celeba": "worker.data.kinds.celeba:CELEBA",
        "frames": "worker.data.kinds.frames:FRAMES",
    },
)

PROBES = Registry(
    "virtbench.probes",
    "probe",
    {
        "disk": "worker.probes.disk:DISK",
        "memory": "worker.probes.computing:MEMORY",
        "network": "worker.probes.network:NETWORK",
        "cpu": "worker.probes.computing:CPU",
        "syscall": "worker.probes.syscalls:SYSCALL",
        "gpu-latency": "worker.probes.gpu:LATENCY",
        "gpu-copies": "worker.probes.gpu:PEER_COPIES",
        "startup": "scenarios.probes.startup:STARTUP",
        "resize": "scenarios.probes.resize:RESIZE",
    },
)

AGGRESSORS = Registry(
    "virtbench.aggressors", "aggressor", _constants("worker.aggressors.loads", "disk memory network cpu copies")
)
"""The aggressors that train nothing; every workload is an aggressor, too."""

MACHINES = Registry(
    "virtbench.machines",
    "machine provider",
    {"qemu": "provisioning.machines.qemu:QEMU", "libvirt": "provisioning.machines.libvirt:LIBVIRT"},
)

_CLOUDS = {"nova": "provisioning.clouds.nova:NOVA", "ironic": "provisioning.clouds.ironic:IRONIC"}
CLOUDS = Registry("virtbench.clouds", "cloud", _CLOUDS)

SITES = Registry(
    "virtbench.sites",
    "site",
    {
        "cluster": "provisioning.sites.cluster:ClusterSite",
        "machines": "provisioning.sites.machines:Machines",
        **dict.fromkeys(_CLOUDS, "provisioning.sites.hired:HiredMachines"),
        "lab": "provisioning.sites.lab:LabSite",
        "here": "provisioning.sites.here:Here",
    },
    variants=(CLOUDS, "provisioning.sites.hired:HiredMachines"),
)
"""The sites, in the order in which a request is looked at for what leads there."""

ABLATIONS = Registry(
    "virtbench.ablations",
    "ablation",
    {
        "seccomp": "suite.job.ablations:SECCOMP",
        **dict.fromkeys(_ON_NODES, "suite.job.ablations:by_engine"),
        "oci-runtime": "suite.job.ablations:run_by",
        **_constants(
            "suite.job.ablations",
            "network cluster-ip node-port pod-requests rootfs huge-pages guest-huge-pages channels-last pinning isa",
        ),
        **_constants("suite.job.ablations", "memory-limit disk-limit"),
        "disk-iops": "suite.job.ablations:disk_iops",
        **_constants("suite.job.ablations", "confinement virtiofs data-layer"),
        **_constants("suite.job.ablations", "microvm libvirt disk-cache"),
    },
    variants=(ENGINES, "suite.job.ablations:by_engine"),
)

INJURIES = Registry(
    "virtbench.injuries",
    "injury",
    _constants(
        "suite.selftest.injuries",
        "nothing cpu-quota-10 late-steps late-batches held-memory slow-links",
    ),
)
"""The injuries of known size that ``bench selftest`` does; ``nothing`` is the A/A arm of every target."""


def every_registry() -> tuple[Registry, ...]:
    return tuple(registry for registry in globals().values() if isinstance(registry, Registry))
