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
        "docker": "provisioning.engines.docker:Docker",
        "podman": "provisioning.engines.podman:Podman",
        "runc": "provisioning.engines.runc:Runc",
    },
)

FIGURES = Registry(
    "virtbench.figures",
    "figure",
    {
        "training": "analysis.figures.bars:training_bars",
        "probe": "analysis.figures.bars:probe_bars",
        "interference": "analysis.figures.interference:loss_bars",
        "interference-map": "analysis.figures.interference:heat_map",
        "trials": "analysis.figures.dots:every_trial",
    },
)

BACKENDS = Registry(
    "virtbench.backends",
    "sweep backend",
    {
        "local": "commands.sweep.backends.local:Local",
        "slurm": "commands.sweep.backends.slurm:Slurm",
        "ssh": "commands.sweep.backends.ssh:Ssh",
    },
)
