"""The options of a run: each is declared here, once.

From a declaration come the option of ``bench run`` with its help and completion, the key of plan files with its schema
and its row in docs/reference/options.md, the refusal of scenarios that do not know it, and its place in the command
that repeats a run. To add an option, write a field here and use it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from suite.errors import RequestError, option
from suite.job.ablations import get_ablation
from suite.job.command import UNIT, parse_command, parse_pattern
from suite.job.datasets import PageCache, parse_data
from suite.job.distributed import JOINED, ContainerNetwork, Strategy
from suite.job.envelope import parse_bytes, parse_cpu_list
from suite.job.job import SEQUENTIAL, Alternating
from suite.job.lab import parse_lab
from suite.job.profiles import PROFILES, Recipe
from suite.job.serving import MOST_CLIENTS, MOST_REQUESTS, SERVE, parse_rates
from suite.job.sharing import BareMetalCpus, victim_names
from suite.registries import ABLATIONS, AGGRESSORS, DATA_KINDS, ENGINES, MACHINES, PROBES, SCENARIOS, WORKLOADS
from suite.request.option import Count, NotNegative, OptionGroup, Seed, Text, about
from suite.targets import CONTAINERS, TARGETS
from suite.units import parse_duration_s, parse_share

MOST_BLOCKS = 100
"""The most blocks of a run with ``until`` or ``detect``, unless ``max_blocks`` says otherwise."""
ROUNDS, BURST_STEPS = 8, 5
"""The turns of a job in a block, and the steps of one, where nothing else is asked for."""
_DATA = ("real", "distributed")
_REAL = ("real",)
_DISTRIBUTED = ("distributed",)
_PROBE = ("probe",)
_COMMAND = ("command",)
_SERVE = (SERVE,)
_WITHOUT_MODEL = (*_PROBE, *_COMMAND)
_UNTRAINED = (*_WITHOUT_MODEL, *_SERVE)
_SHARED = ("shared",)
_ENDS = f"{option('until')} or {option('detect')}"
DECIDED = "decided"
"""The value of ``until`` that goes on until every comparison has a verdict."""
_LEAST_MEMORY_BYTES = 1 << 20
"""A bare number below it is no memory of a target: its unit was forgotten."""


def _models(scenario: str | None) -> tuple[str, ...]:
    return victim_names() if scenario in (None, *_SHARED) else WORKLOADS.names()


def words_of(form: str, what: str, example: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words between commas, each of the form of a regular expression."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(","))
        for word in words:
            if not re.fullmatch(form, word):
                raise RequestError(f"{word!r} is not {what}", remedy=f"write it as {example}; see bench doctor")
        return words

    return parse


gpu_indices = words_of(r"\d+", "a GPU index", "0,1")
pci_addresses = words_of(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", "a PCI address", "0000:01:00.0")


def _cpus(text: str) -> None:
    if not (text.isascii() and text.strip().isdigit()):
        parse_cpu_list(text)


def memory_of(text: str) -> int:
    """Return the bytes of an amount of memory. Raises RequestError for one whose unit was forgotten: ``4``."""
    found = parse_bytes(text)
    if text.strip().isdigit() and found < _LEAST_MEMORY_BYTES:
        raise RequestError(f"{text!r} is {found} bytes", remedy=f"is {found}G meant? write {found}G")
    return found


def nodes_of(text: str) -> dict[str, str]:
    """Return the nodes of a cluster by target: ``n1``, or ``n1,n2`` for several instances, are those of container.

    Raises RequestError for names of targets that are not exactly those with containers.
    """
    named = [word.partition("=") for word in text.split(",")]
    if not any(equals for _, equals, _ in named):
        return {"container": text}
    nodes = {target: node for target, _, node in named}
    if len(named) != len(CONTAINERS) or nodes.keys() != CONTAINERS or not all(nodes.values()):
        raise RequestError(
            f"{text!r} does not name a node for container and one for container-vm",
            remedy="write it as container=N1,container-vm=N2",
        )
    return nodes


def _until(text: str) -> None:
    if text != DECIDED:
        parse_share(text)


class MeasurementOptions(OptionGroup):
    """Work that is measured."""

    scenario: Text = about(
        "synthetic",
        "What is run. synthetic: training on data in memory. real: training on images from the disk. probe: what a "
        "layer costs by itself. distributed: one job over several instances. shared: a job alone, and beside "
        "another on the same machine. command: a program of your own, as it is. serve: a generator behind HTTP.",
        members=(SCENARIOS,),
        common=True,
    )
    model: tuple[Text, ...] = about(
        (),
        "What is trained or served; or a workload of your own, by its file: ./my_model.py, or ./my_model.py:NAME. "
        f"alexnet-small, with its small batch, is a victim of {option('scenario')} shared. "
        f"Default: resnet50; with {option('scenario')} serve gan; with shared the paper's, except in the profile "
        "smoke.",
        choices=_models,
        members=(WORKLOADS,),
        never=_WITHOUT_MODEL,
        own_code=True,
        common=True,
    )
    profile: Text = about(
        "quick",
        "How large and how long a job is. "
        + ". ".join(f"{name}: {profile.summary}" for name, profile in PROFILES.items())
        + ".",
        choices=lambda _: PROFILES,
        common=True,
    )
    recipe: Recipe = about(
        "reference",
        "How the job is set up. reference: fp32, eager, the defaults of torch. tuned: bf16, channels-last, an "
        "allocator that keeps memory.",
    )
    batch: Count | None = about(None, "Images per step and device.", never=_UNTRAINED)
    image_px: Count | None = about(None, "Width and height of the images.", never=_WITHOUT_MODEL)
    channels: Literal["1", "3"] | None = about(
        None,
        f"Channels of the images of workloads that take one or three. Default: those of {option('data')}, else the "
        "workload's.",
        never=_WITHOUT_MODEL,
    )
    steps: Count | None = about(None, "Measured steps of a trial that takes no turns.", never=_UNTRAINED)
    warmup_steps: NotNegative | None = about(None, "Steps before the measured ones.", never=_UNTRAINED)
    epochs: Count | None = about(
        None,
        f"Measured epochs of a trial, in place of {option('steps')}: each goes once through the data set, in whole "
        "batches. The first is timed apart and stands for the warm-up. Drawn data have no end, and so no epochs.",
        only=_REAL,
    )
    checkpoint: Literal["off", "on", "fsync"] = about(
        "off",
        f"Write a checkpoint after each of the {option('epochs')}, timed apart. fsync: wait until it is on the disk.",
        only=_REAL,
    )
    design: Literal["sequential", "alternating", "both"] = about(
        SEQUENTIAL,
        "How the trials of a block share the machine. sequential: one after the other, each launched and ended. "
        "alternating: all open at once, their jobs take short bursts of steps in turns; on a busy machine this takes a "
        "fraction of the blocks, and gives no elapsed times. both: the sequential trials of each block, then the "
        "alternating ones.",
    )
    rounds: Count | None = about(
        None, f"Turns of each job in a block, with {option('design')} alternating or both. Default: {ROUNDS}."
    )
    burst_steps: Count | None = about(
        None,
        f"Steps of one turn, or measurements of a probe, with {option('design')} alternating or both. Default: "
        f"{BURST_STEPS} steps, 1 measurement.",
    )
    trial_timeout: Count | None = about(
        None, "Seconds after which a job, or a turn of it, is given up. Default: the profile's.", meaning=False
    )

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        ways = [option(name) for name in ("steps", "warmup_steps") if getattr(self, name) is not None]
        ways += [] if self.design == SEQUENTIAL else [f"{option('design')} {self.design}"]
        if self.epochs and ways:
            raise RequestError(f"{option('epochs')} and {' and '.join(ways)} exclude each other", remedy="give one")
        if self.checkpoint != "off" and not self.epochs:
            raise RequestError(
                f"{option('checkpoint')} {self.checkpoint}: checkpoints are written after whole epochs",
                remedy=f"add {option('epochs')} 2, or leave it out",
            )
        return self

    @property
    def turns(self) -> Alternating | None:
        """Return how the jobs take turns; None where they do not."""
        if self.design == SEQUENTIAL:
            return None
        return Alternating(rounds=self.rounds or ROUNDS, burst_steps=self.burst_steps or BURST_STEPS)


class TargetOptions(OptionGroup):
    """Where it runs."""

    target: tuple[Text, ...] = about(
        TARGETS,
        "Where the job runs. With all, targets that this machine cannot carry are left out.",
        choices=lambda _: TARGETS,
        common=True,
    )
    engine: Text | None = about(
        None, "Container engine. Default: the first that works.", members=(ENGINES,), common=True
    )
    context: Text | None = about(
        None, f"With {option('engine')} kubernetes: context of the kubeconfig. Default: the current one."
    )
    namespace: Text | None = about(
        None, f"With {option('engine')} kubernetes: namespace of the pods. Default: the context's.", meaning=False
    )
    node: Text | None = about(
        None,
        f"With {option('engine')} kubernetes: node that the pods run on. Default: the one that is this machine, or the "
        "only one. Ranks, or server and client, need one each, with commas between them. container=N1,container-vm=N2: "
        "N2 is a virtual machine, whose pods are the target container-vm.",
        parse=nodes_of,
    )
    registry: Text | None = about(
        None,
        f"With {option('engine')} kubernetes: registry that has the image, such as registry.example/team. Default: it "
        "is imported into the containerd of this machine.",
        meaning=False,
    )
    containerd: Text | None = about(
        None, f"With {option('engine')} kubernetes: socket of this machine's containerd.", meaning=False
    )
    runtime_class: Text | None = about(
        None, f"With {option('engine')} kubernetes: runtime class of the pods, such as gvisor or kata."
    )
    image: Text | None = about(
        None,
        "Image that the targets run, by its name or the first 6 or more characters of its digest: see bench image "
        "list. Default: the newest of the suite's own.",
    )
    provider: Text = about("qemu", "What runs the virtual machines.", members=(MACHINES,))
    accel: Literal["auto", "kvm", "tcg"] = about(
        "auto", "How virtual machines run. auto: kvm where a guest boots under it, else tcg, which emulates the CPU."
    )
    isa: Literal["shared", "native"] = about(
        "shared",
        "Vector instructions. shared: every target is capped to what all of them have. native: each uses what it has.",
    )
    ablate: tuple[Text, ...] = about(
        (),
        lambda: (
            "Switch one property at a time, in the same blocks. "
            + "; ".join(f"{name}: {get_ablation(name).summary}" for name in ABLATIONS.own)
            + "."
        ),
        members=(ABLATIONS,),
    )


class EnvelopeOptions(OptionGroup):
    """Envelope of every target."""

    cpus: Count | Text | None = about(
        None, "How many CPUs (2), or which (0-1,4). Default: all that this process may use.", parse=_cpus, common=True
    )
    memory: Text | None = about(
        None, "Memory of every target, such as 4G. Default: the profile's.", parse=memory_of, common=True
    )
    threads: Count | None = about(None, "Threads of the training. Default: one per CPU.")


class Repetitions(OptionGroup):
    """How often it is measured, in a run and in a sweep alike."""

    blocks: Count | None = about(
        None,
        "How many times every target is measured, in random order. Default: 1.",
        also=("--repeat",),
        meaning=False,
        common=True,
    )
    until: Text | None = about(
        None,
        "Go on, block by block, until every 95 % interval is within plus or minus this: 2%. decided: until every "
        f"comparison has a verdict at the {option('margin')}.",
        parse=_until,
        never=_SHARED,
        meaning=False,
        common=True,
    )
    detect: Text | None = about(
        None,
        "Measure as many blocks as it takes to detect, with a chance of 80 %, a target whose throughput differs from "
        "bare metal's by this: 2%. The test is two-sided at 5 %, corrected for all targets of the job. The number is "
        "planned once: from earlier runs on this machine, or else after the first 10 blocks.",
        parse=parse_share,
        never=_SHARED,
        meaning=False,
        common=True,
    )
    margin: Text | None = about(
        None,
        "The difference from bare metal that does not matter: within it a target is equivalent, beyond it slower or "
        "faster. bench compare and bench report take it from the plan. Default: 2%.",
        parse=parse_share,
        meaning=False,
        common=True,
    )
    min_blocks: Count | None = about(None, f"With {_ENDS}: at least this many blocks.", never=_SHARED, meaning=False)
    max_blocks: Count | None = about(
        None, f"With {_ENDS}: at most this many blocks. Default: {MOST_BLOCKS}.", never=_SHARED, meaning=False
    )
    warmup_blocks: NotNegative | None = about(
        None,
        f"Blocks before the first that are recorded and not counted. Default: 1 with {_ENDS}, or with 3 blocks and "
        "more.",
        meaning=False,
    )
    aa: Annotated[bool, Field(strict=True)] = about(
        False, "Measure bare metal twice in every block: the difference is what is only noise.", meaning=False
    )
    seed: Seed = about(0, "Random seed of trial order and data.")

    @model_validator(mode="after")
    def _one_way_to_end(self) -> Self:
        most, least = option("max_blocks"), option("min_blocks")
        ways = [option(name) for name in ("until", "detect") if getattr(self, name)]
        if len(ways) > 1:
            raise RequestError(f"{' and '.join(ways)} exclude each other", remedy="give one of them")
        if ways and self.blocks:
            raise RequestError(
                f"{ways[0]} and {option('blocks')} exclude each other", remedy=f"use {most} with {ways[0]}"
            )
        if not ways and (self.min_blocks or self.max_blocks):
            raise RequestError(
                f"{least} and {most} are about {_ENDS}", remedy=f"give one of these, or {option('blocks')} alone"
            )
        if ways and (self.min_blocks or 1) > (self.max_blocks or MOST_BLOCKS):
            raise RequestError(
                f"{least} {self.min_blocks} is above {most} {self.max_blocks or MOST_BLOCKS}", remedy="exchange them"
            )
        return self

    @property
    def open_ended(self) -> bool:
        """Return whether it depends on the records how many blocks there are."""
        return self.until is not None or self.detect is not None

    @property
    def difference(self) -> float | None:
        """Return the difference to be detected, as a share; None without ``detect``."""
        return None if self.detect is None else parse_share(self.detect)

    @property
    def decides(self) -> bool:
        """Return whether it ends when every comparison has a verdict."""
        return self.until == DECIDED

    @property
    def half_width(self) -> float | None:
        """Return how wide half an interval may be in the end, as a share; None unless ``until`` says so."""
        return None if self.until is None or self.decides else parse_share(self.until)

    @property
    def margin_share(self) -> float | None:
        """Return the difference that does not matter, as a share; None for the usual one."""
        return None if self.margin is None else parse_share(self.margin)


class RepetitionOptions(Repetitions):
    """How often."""

    budget: Text | None = about(
        None,
        f"With {_ENDS}: begin no new block after this time: 30m.",
        parse=parse_duration_s,
        never=_SHARED,
        meaning=False,
    )

    @model_validator(mode="after")
    def _a_budget_ends_something(self) -> Self:
        if self.budget and not self.open_ended:
            raise RequestError(
                f"{option('budget')} {self.budget} ends nothing without {_ENDS}",
                remedy=f"add {option('until')} decided, or leave it out: {option('blocks')} says how long the run is",
            )
        return self

    @property
    def budget_s(self) -> float | None:
        """Return the seconds after which no block is begun; None where there is no such time."""
        return None if self.budget is None else parse_duration_s(self.budget)


class GpuOptions(OptionGroup):
    """GPUs."""

    device: Literal["cpu", "cuda"] = about("cpu", "What the job computes on.")
    devices: Count | None = about(None, f"GPUs of one job, with {option('device')} cuda. Default: 1.")
    parallel: Literal["none", "parameter-cpu", "ddp"] = about(
        "none",
        "How several devices work on one model. parameter-cpu: parameters on the CPU, as in Table 1 of the paper. "
        "ddp: DistributedDataParallel.",
    )
    gpus: Text | None = about(None, "GPUs for containers and bare metal, by index: 0,1.", parse=gpu_indices)
    vfio: Text | None = about(
        None, "GPUs for virtual machines, by PCI address: 0000:01:00.0,0000:02:00.0.", parse=pci_addresses
    )


class DataOptions(OptionGroup):
    """Data sets."""

    data: Text | None = about(
        None,
        f"What is trained on: generated[:DIR], {', '.join(f'{kind}:DIR' for kind in DATA_KINDS.own)}, with "
        f"{option('scenario')} real or distributed; or synthetic.",
        parse=parse_data,
        never=_UNTRAINED,
    )
    data_disk: Text | None = about(
        None,
        "Block device that bench data disk has put the data set on: every target reads it from there. Default: "
        "containers and bare metal read the directory, a VM reads a disk in a file beside it.",
        only=_DATA,
    )
    frame_stride: Count | None = about(
        None, "Take one frame in so many of each video, with frames:DIR. Default: 1, all that are there.", only=_DATA
    )
    cache: PageCache | None = about(
        None, "Page cache of the data set's files, verified: cold or warm. Default: cold.", only=_DATA
    )
    loader_workers: NotNegative | None = about(
        None, "Processes that read and decode images. Default: one per CPU.", only=_DATA
    )
    decoder: Literal["auto", "simplejpeg", "pillow"] = about(
        "auto",
        "Decoder of JPEG files. auto: simplejpeg (libjpeg-turbo), and pillow for files that it refuses.",
        only=_DATA,
    )


class ProbeOptions(OptionGroup):
    """Scenario probe."""

    probe: tuple[Text, ...] = about(PROBES.names, "What is probed.", members=(PROBES,), only=_PROBE)
    fio_job: Path | None = about(None, "Job file of fio for the disk probe.", only=_PROBE)


class DistributedOptions(OptionGroup):
    """Several instances, and other machines."""

    strategy: Strategy = about(
        "parameter-server",
        "Who adds the gradients up: parameter-server, parameter-server-async or all-reduce.",
        only=_DISTRIBUTED,
    )
    workers: Count | None = about(None, "Workers of the job. Default: 2.", only=_DISTRIBUTED)
    ps: Count | None = about(None, "Parameter servers of the job. Default: 1; all-reduce has none.", only=_DISTRIBUTED)
    lab: Text | None = about(
        None,
        "Virtual nodes on this machine: nodes=3,rate=1gbit[,delay=5ms]. Default: a node for each instance, 1gbit.",
        parse=parse_lab,
        only=JOINED,
    )
    inventory: Path | None = about(
        None,
        f"Machines reached by SSH, in place of a lab: hosts.toml. With {option('scenario')} synthetic and "
        f"{option('engine')} kubernetes: the node of the pods, on which bare metal and other engines are then opened.",
        only=(*JOINED, "synthetic"),
    )
    network: ContainerNetwork = about(
        "overlay",
        "Network of the containers. overlay: VXLAN between the nodes, as flannel makes it. bridge: address "
        "translation and published ports. host: the node's own.",
        only=JOINED,
    )
    comm_timeout: Count | None = about(
        None,
        "Seconds after which a silent rank or server is given up. Default: 60; 600 with emulated VMs.",
        only=JOINED,
        meaning=False,
    )


class SharedOptions(OptionGroup):
    """Scenario shared."""

    aggressor: tuple[Text, ...] = about(
        ("alexnet",),
        "What runs beside the victim, one at a time. Every model trains; disk runs fio, "
        "memory a triad, network iperf3 to itself, cpu matrix products.",
        members=(WORKLOADS, AGGRESSORS),
        only=_SHARED,
    )
    aggressors: Count | None = about(
        None, "How many instances run the aggressor, all the same. Default: 1.", only=_SHARED
    )
    aggressor_batch: Count | None = about(
        None, "Images per step of an aggressor that trains. Default: the profile's.", only=_SHARED
    )
    bare_metal_cpus: BareMetalCpus = about(
        "unrestricted",
        "unrestricted: every job on bare metal has the whole envelope, as in the paper. equal: each has a share of "
        "its own, as on other targets.",
        only=_SHARED,
    )


class ServingOptions(OptionGroup):
    """Scenario serve."""

    requests: Annotated[int, Field(gt=0, le=MOST_REQUESTS, strict=True)] | None = about(
        None, "Requests of each part of the measurement. Default: the profile's.", only=_SERVE
    )
    rates: Text | None = about(
        None,
        "Requests per second that are sent whether those before are answered or not: 10,50. Default: the profile's.",
        parse=parse_rates,
        only=_SERVE,
    )
    clients: Annotated[int, Field(gt=0, le=MOST_CLIENTS, strict=True)] | None = about(
        None,
        "Connections at saturation, and the most that are open at a rate. Default: the profile's.",
        only=_SERVE,
    )


class CommandOptions(OptionGroup):
    """Scenario command."""

    command: Text | None = about(
        None,
        'The program and its arguments: "python train.py --epochs 1". They are split into words once, and no shell '
        "sees them. Records hold them: give no secrets.",
        parse=parse_command,
        only=_COMMAND,
    )
    command_files: Path | None = about(
        None,
        "Directory of yours that every target has, read-only, as the working directory of the command.",
        only=_COMMAND,
        own_code=True,
    )
    throughput_pattern: Text | None = about(
        None,
        "How to find the throughput, in units per second, in a line that the command prints: a regular expression "
        "with a group (?P<throughput>...) and, if it likes, one (?P<step>...); or json, for lines that are objects "
        "with these keys. Default: none is read.",
        parse=parse_pattern,
        only=_COMMAND,
    )
    unit: Annotated[Text, Field(pattern=UNIT)] = about(
        "samples", f"What the throughput counts, with {option('throughput_pattern')}: tokens.", only=_COMMAND
    )
