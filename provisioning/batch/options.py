"""The keys that the table ``[engine]`` of a sweep has, by ``kind``."""

from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from suite.part import Part, checked
from suite.units import parse_duration_s
from suite.untrusted.parse import has_control_characters

Word = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]*$", max_length=500)]
"""A name in the cluster's configuration, or an expression of names such as ``[rack1|rack2]`` or ``(intel&nvme)*4``.

What is in a name is up to the cluster; it cannot be taken for an option, or for a line of a script.
"""
ContextName = Annotated[str, StringConstraints(pattern=r"^[^\s\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$", max_length=500)]
"""The name of a context, which clouds make of addresses and paths: ``arn:aws:eks:...:cluster/demo``."""
Quantity = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]*(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?$")]
"""An amount of memory, as Kubernetes writes it."""
ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]
"""The name of an object of Kubernetes."""
FURTHER = frozenset(
    {
        *("begin", "clusters", "comment", "contiguous", "core-spec", "cpu-freq", "deadline", "delay-boot", "gpu-freq"),
        *("gpus", "gpus-per-node", "gres", "licenses", "mail-type", "mail-user", "mincpus", "network", "nice"),
        *("nodelist", "priority", "sockets-per-node", "switches", "tmp", "use-min-nodes", "wckey"),
    }
)
"""Options of sbatch(1) and salloc(1) that select nodes, time, and mail notifications of a block.

Those that divide a node among tasks (``--hint``) would change what a block measures. Others name programs to start
(``--prolog``), files to write (``--output``) or variables (``--export``), and belong in the configuration of the
cluster.
"""


def _allowed(text: str) -> str:
    name = text.removeprefix("--").partition("=")[0]
    if name not in FURTHER:
        raise ValueError(f"--{name} is not among the options that a plan may give: {' '.join(sorted(FURTHER))}")
    return text


FurtherOption = Annotated[
    str, StringConstraints(pattern=r"^--[a-z][a-z-]*(=[^\x00-\x1f\x7f]*)?$", max_length=500), AfterValidator(_allowed)
]


def _absolute(path: str) -> str:
    if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or has_control_characters(path):
        raise ValueError("give an absolute path without ..")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class SlurmOptions(Part):
    """A cluster under Slurm: every block is one task of an array job."""

    partition: Word | None = None
    """Default: the cluster's."""
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: Word | None = None
    """Features of the nodes, so that all of them are equal: ``icelake``."""
    exclude: Word | None = None
    """Nodes not to use."""
    at_once: Annotated[int, Field(gt=0)] | None = None
    """The most blocks to run at the same time. Default: as many as there are free nodes."""
    time_limit: Annotated[str, checked(parse_duration_s)] | None = None
    """The limit of one block. Default: the estimate times ``time_margin``; without an estimate the partition's own."""
    time_margin: Annotated[float, Field(ge=1)] = 2.0
    scratch: AbsolutePath | None = None
    """A directory on each node, for clusters whose nodes do not see the output directory: records come back by srun."""
    bench: AbsolutePath | None = None
    """The command ``bench`` on the nodes. Default: this one."""
    further: tuple[FurtherOption, ...] = ()
    """More options for sbatch, each a whole word: ``--licenses=lustre``. See ``FURTHER`` for those that it may be."""
    poll_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds between two looks at the queue."""


class KubernetesOptions(Part):
    """A cluster of Kubernetes: every block is a Job, whose pod runs bench and opens pods on its own node."""

    image: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._:/@-]*$", max_length=500)]
    """The image of the suite, by its name in the cluster: ``registry.example.org/virtbench-suite@sha256:...``."""
    context: ContextName | None = None
    """The context of the kubeconfig. Default: the current one."""
    namespace: ObjectName | None = None
    """Default: that of the context."""
    service_account: ObjectName = "virtbench"
    """The account of the pods that run bench, with the role in docs/guide/kubernetes.md."""
    nodes: tuple[ObjectName, ...] = ()
    """The nodes to use, by their label ``kubernetes.io/hostname``. Default: any."""
    at_once: Annotated[int, Field(gt=0)] = 1
    """The most blocks to run at the same time, each on a different node."""
    memory: Quantity = "1Gi"
    """The memory of the pod that runs bench; what is measured has its own."""
    claim: ObjectName | None = None
    """A volume claim on which records lie until they are received. Without one they come through the pod's log."""
    queue: ObjectName | None = None
    """The queue of Kueue that starts the Jobs."""
    privileged_bench: AbsolutePath | None = None
    """The command ``bench`` on the nodes, which privileged pods start there as root, outside of themselves: for targets
    that need the node itself. Default: none, and nothing is privileged."""
    poll_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between two looks at a Job."""

    @model_validator(mode="after")
    def _records_come_through_the_log(self) -> Self:
        if self.privileged_bench and self.claim:
            raise ValueError(
                "privileged_bench runs outside of the pod and has no access to the claim: leave one of them out"
            )
        return self


class SshOptions(Part):
    """A pool of equal machines that are reached by SSH."""

    inventory: str
    """The file that lists the machines; relative to the plan file."""
    nodes: tuple[Word, ...] = ()
    """The machines to use. Default: all."""
    scratch: AbsolutePath | None = None
    """A directory on each machine for records on their way. Default: below the suite's own folder there."""
