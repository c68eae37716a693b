"""The options of a run: each is declared here, once.

From a declaration come the option of ``bench run`` with its help and completion, the key of plan files with its schema
and its row in docs/reference/options.md, the refusal of scenarios that do not know it, and its place in the command
that repeats a run. To add an option, write a field here and use it.
"""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from suite.errors import RequestError, option
from suite.job.ablations import get_ablation
from suite.job.datasets import SYNTHETIC, PageCache, parse_data
from suite.job.distributed import ContainerNetwork
from suite.job.envelope import parse_bytes, parse_cpu_changes, parse_cpu_list
from suite.job.job import SEQUENTIAL, Alternating
from suite.job.lab import parse_lab
from suite.job.preemption import parse_preemption
from suite.job.profiles import PROFILES, Recipe
from suite.registries import ABLATIONS, CLOUDS, DATA_KINDS, ENGINES, MACHINES, SCENARIOS, SITES, WORKLOADS
from suite.request.option import Asked, Count, Need, NotNegative, OptionGroup, Text, about, given
from suite.request.traits import traits_of
from suite.targets import CONTAINERS, TARGETS

ROUNDS = 8
BURST_STEPS = 2
"""The turns of a job in a block, and the steps of one, unless the request gives others. Longer bursts decide later
(``benchmarks/deciding_by_default.py``)."""
LEAST_BURST_S = 0.1
"""What the bursts of short steps should last: those of 16 ms differed by 19 % on a shared host, those of 270 ms by 8 %,
and beyond that processes differ, by 6 %, which more blocks alone average out."""
_LEAST_MEMORY_BYTES = 1 << 20
"""A bare number below it is no memory of a target: its unit was forgotten."""
_IN_TURNS = (given("design", "alternating", "both"),)
_ON_GPUS = (given("device", "cuda"),)
_IN_CONTAINERS = (
    Need(
        f"{option('target')} {' or '.join(sorted(CONTAINERS))}",
        lambda asked: not asked("target") or not CONTAINERS.isdisjoint(asked("target")),
        f"add {option('target')} container",
        valued="target",
    ),
)


def _takes_turns_with(need: Need) -> Need:
    """Return a condition that counts for jobs that take turns alone."""
    return replace(need, holds=lambda asked: asked("design") != SEQUENTIAL and need.holds(asked))


def _reads(asked: Asked) -> bool:
    return traits_of(asked("scenario")).needs_data or asked("data") not in (None, SYNTHETIC)


DATA_SET = Need("a data set", _reads, f"name one with {option('data')}")
_DRAWN = Need("drawn images, for a data set has channels of its own", lambda asked: not _reads(asked), "use drawn ones")


def _models(scenario: str | None) -> tuple[str, ...]:
    scenarios = SCENARIOS.own if scenario is None else (scenario,)
    names = (name for each in scenarios for name in traits_of(each).model_names())
    return tuple(dict.fromkeys(names))


def gpu_words(text: str) -> tuple[str, ...]:
    """Return the GPUs of ``"0,1"`` or ``"GPU-8932f937"``. Raises RequestError for other text."""
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if not re.fullmatch(r"\d+(:\d+)?|(GPU|MIG)-[0-9a-f-]+", word):
            raise RequestError(f"{word!r} is not an index or UUID of a GPU", remedy="write it as 0,1; see bench doctor")
    return words


def learning_rate_of(text: str) -> float:
    """Return a learning rate. Raises RequestError for what is not a number above 0."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise RequestError(f"{text!r} is not a learning rate", remedy="write it as 0.0002 or 2e-4")
    return rate


def memory_of(text: str) -> int:
    """Return the bytes of an amount of memory. Raises RequestError for one whose unit was forgotten: ``4``."""
    size_bytes = parse_bytes(text)
    if text.strip().isdigit() and size_bytes < _LEAST_MEMORY_BYTES:
        raise RequestError(f"{text!r} is {size_bytes} bytes", remedy=f"is {size_bytes}G meant? write {size_bytes}G")
    return size_bytes


def _sudden(text: str) -> None:
    if parse_preemption(text).notice_s:
        raise RequestError(f"{text!r} has a notice", remedy="give mean alone; bench compare --preempt counts a notice")


class MeasurementOptions(OptionGroup):
    """Work that is measured."""

    scenario: Text = about(
        "synthetic",
        "Arrangement of the work. synthetic: training on data in memory. real: training on images from disk. "
        "probe: single costs of a layer. distributed: one job over several instances. shared: a job alone and next "
        "to another. command: your program, unchanged. serve: a generator, or your own server, behind HTTP. startup: "
        "many instances opened together.",
        members=(SCENARIOS,),
        common=True,
    )
    model: tuple[Text, ...] = about(
        (),
        "Workload to train or serve, or ./my_model.py with yours. ./my_model.py:NAME is one of several in a file. "
        f"alexnet-small, with its small batch, is a victim of {option('scenario')} shared. Default: resnet50; with "
        f"{option('scenario')} serve gan; with shared those of the paper, except in the profile smoke.",
        choices=_models,
        members=(WORKLOADS,),
        of="workloads",
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
        "Training setup. reference: fp32, eager, torch's defaults. tuned: bf16, channels-last, an allocator that "
        "keeps memory.",
    )
    batch: Count | None = about(None, "Images or tokens per step and device.", of="trains")
    image_px: Count | None = about(None, "Width and height of the images.", of="workloads")
    tokens: Count | None = about(None, "Tokens of a sequence, which divide the batch.", of="workloads")
    channels: Literal["1", "3"] | None = about(
        None,
        f"Image channels of workloads that accept one or three. Default: those of {option('data')}, else the "
        "workload's.",
        of="workloads",
        idle_without=(_DRAWN,),
    )
    learning_rate: Text | None = about(
        None,
        "Learning rate of every optimizer of the workload, such as 2e-4. Default: the workload's own.",
        of="trains",
        parse=learning_rate_of,
    )
    steps: Count | None = about(
        None,
        "Measured steps of a trial without turns.",
        of="trains",
        excludes=(
            given("design", "alternating", why=f"give {option('rounds')} and {option('burst_steps')} for its steps"),
        ),
    )
    warmup_steps: NotNegative | None = about(None, "Steps before the measured ones.", of="trains")
    epochs: Count | None = about(
        None,
        f"Measured epochs of a trial, in place of {option('steps')}. Each covers the data set once, in whole "
        "batches. The first is reported separately and replaces the warm-up.",
        of="epochs",
        needs=(DATA_SET,),
        excludes=(given("steps"), given("warmup_steps"), *_IN_TURNS),
    )
    checkpoint: Literal["off", "on", "fsync"] = about(
        "off",
        "Write checkpoints, timed separately. They come after each of the "
        f"{option('epochs')}, or each {option('checkpoint_every')} steps; throughput and epochs leave them out. fsync: "
        "wait until it is on the disk.",
        of="checkpoints",
        needs=(given("epochs", example="2"), given("checkpoint_every", example="10")),
        excludes=(given("parallel", "parameter-cpu", "ddp", why="no checkpoint is written of several devices"),),
    )
    checkpoint_every: Count | None = about(
        None,
        f"Steps between checkpoints; must divide {option('steps')}. It is for drawn data: checkpoints are then on the "
        "disk that the disk probe measures, and with a data set temporary files.",
        of="checkpoints",
        needs=(given("checkpoint", "on", "fsync"),),
        excludes=(DATA_SET, given("inventory", why="the disk is one of this machine"), *_IN_TURNS),
    )
    preempt: Text | None = about(
        None,
        "Train once more after each trial while the instance is killed at random moments, with this mean between them "
        "(mean=60s), and opened again. The training goes on from its checkpoint and must end with the same weights.",
        of="checkpoints",
        parse=_sudden,
        needs=(given("checkpoint", "on", "fsync"),),
        excludes=(
            given("warmup_steps", why="a job that goes on takes no warm-up steps, and this one has none"),
            *(given("generate"), given("keep_model"), *_IN_TURNS),
            given("device", "cuda", why="its sums are not the same bits each time"),
            given("inventory", why="the instances of its machines are not opened again"),
            given("engine", "kubernetes", why="pods are not opened again"),
        ),
    )
    generate: Count | None = about(
        None,
        "Generate this many images after the measured steps. They are timed separately, and made from noise that the "
        "seed decides.",
        of="generates",
        excludes=_IN_TURNS,
    )
    keep_model: Literal["last", "each"] | None = about(
        None,
        "Keep the network that makes the images. It is in models/ of the run: the last, or that of each epoch.",
        of="keeps",
        needs=(
            Need(
                f"{option('epochs')} for each",
                lambda asked: asked("keep_model") != "each" or asked("epochs") is not None,
                f"give last, or add {option('epochs')} 3 in {option('scenario')} real",
            ),
        ),
        excludes=_IN_TURNS,
    )
    resize_at: Text | None = about(
        None,
        "Change the CPUs of the instance while it trains, as STEP=CPUS. 0=1,10=2: one CPU from the first measured "
        "step on, two from the eleventh; threads follow. allocated-cpu-time is what it was given. Compare cells of a "
        "sweep by resize_at.",
        of="resizes",
        parse=parse_cpu_changes,
        excludes=(
            *_IN_TURNS,
            given("preempt", why="an instance that is opened again has all its CPUs"),
            given("device", "cuda", why="the CPUs of a job on a GPU do not train"),
            given("inventory", why="instances of this machine are resized"),
        ),
    )
    design: Literal["sequential", "alternating", "both"] | None = about(
        None,
        "Order of the trials of a block. sequential: one after the other. alternating: all targets open at once, "
        "their jobs taking short bursts of steps in turns, and commands half a second; on a busy machine this needs a "
        "fraction of the blocks, but gives no elapsed times of trainings. both: sequential trials, then alternating "
        "ones. Default: alternating for trainings and commands that are decided by default, see "
        f"{option('blocks')}; else sequential.",
        excludes=(
            _takes_turns_with(given("inventory", why="its machines hold one job at a time")),
            _takes_turns_with(
                given("parallel", "ddp", why="its ranks are processes of their own and take no turns"),
            ),
        ),
    )
    rounds: Count | None = about(
        None,
        f"Turns of each job of steps per block, with {option('design')} alternating or both. Default: {ROUNDS}.",
        needs=_IN_TURNS,
    )
    burst_steps: Count | None = about(
        None,
        f"Steps, or probe measurements, per turn, with {option('design')} alternating or both. Default: "
        f"{BURST_STEPS} steps, or as many as should take {LEAST_BURST_S} s if they are short; 1 measurement.",
        needs=_IN_TURNS,
    )
    trial_timeout: Count | None = about(
        None,
        "Seconds after which a job, or one turn of it, is aborted. Default: the profile's; with an emulated CPU ten "
        f"times the forecast, if that is more; within a {option('budget')}, unless ten times the forecast are more.",
        meaning=False,
    )

    @property
    def turns(self) -> Alternating | None:
        if self.design in (None, SEQUENTIAL):
            return None
        return Alternating(rounds=self.rounds or ROUNDS, burst_steps=self.burst_steps or BURST_STEPS)


class TargetOptions(OptionGroup):
    """Where it runs."""

    target: tuple[Text, ...] = about(
        (),
        "Where the job runs. Default: the targets that are measured there without emulation. all: every target that "
        "this machine can run.",
        choices=lambda _: TARGETS,
        common=True,
    )
    engine: Text | None = about(
        None,
        "Container engine. Default: the first that works. Given again: the container by that engine too, in the "
        f"same blocks, as with {option('ablate')}.",
        members=(ENGINES,),
        further="ablate",
        idle_without=_IN_CONTAINERS,
        common=True,
    )
    oci_runtime: Text | None = about(
        None,
        f"With {option('engine')} docker or podman: the OCI runtime of containers, as it is set up there: kata, runsc, "
        f"crun. Compared with the usual one: {option('ablate')} oci-runtime=NAME.",
        idle_without=_IN_CONTAINERS,
        excludes=(given("inventory", why="it is a runtime of this machine"),),
    )
    image: Text | None = about(
        None,
        "Image of the targets, by name or by at least 6 characters of its digest: see bench image list. Default: "
        "the newest image of the suite.",
    )
    provider: Text = about("qemu", "Provider of the virtual machines.", members=(MACHINES,))
    accel: Literal["auto", "kvm", "tcg"] = about(
        "auto", "Virtualisation of the CPU. auto: kvm if a guest boots under it, else tcg, which emulates the CPU."
    )
    isa: Literal["shared", "native"] = about(
        "shared", "Vector instructions. shared: cap every target to those that all have. native: do not cap."
    )
    ablate: tuple[Text, ...] = about(
        (),
        lambda: (
            "Switch one property at a time, in the same blocks. "
            + "; ".join(f"{name}: {get_ablation(name).summary}" for name in ABLATIONS.own)
            + "."
        ),
        members=(ABLATIONS,),
        valued=True,
    )


class EnvelopeOptions(OptionGroup):
    """Envelope of every target."""

    cpus: Count | Text | None = about(
        None,
        "Number of CPUs (2), or a list (0-1,4). Default: all that this process may use.",
        parse=lambda text: (text.isascii() and text.strip().isdigit()) or parse_cpu_list(text),
        common=True,
    )
    memory: Text | None = about(
        None, "Memory of every target, such as 4G. Default: the profile's.", parse=memory_of, common=True
    )
    threads: Count | None = about(None, "Threads of the training. Default: one per CPU.")


class GpuOptions(OptionGroup):
    """GPUs."""

    device: Literal["cpu", "cuda"] = about("cpu", "Device that computes.", synonyms={"gpu": "cuda"})
    devices: Count | None = about(
        None,
        f"GPUs per job, or per worker of a distributed job, with {option('device')} cuda. Default: 1.",
        idle_without=_ON_GPUS,
    )
    parallel: Literal["none", "parameter-cpu", "ddp"] = about(
        "none",
        "Parallelism over several devices. parameter-cpu: parameters on the CPU, as in Table 1 of the paper, also for "
        "each worker of parameter servers. ddp: DistributedDataParallel.",
        idle_without=_ON_GPUS,
    )
    sync: Literal["step", "span"] = about(
        "step",
        "When the host waits for the GPU. step: after each step, whose time and phases are then known. span: only at "
        "the ends of the measured span, as most training does; single steps then have no times.",
        of="trains",
        idle_without=_ON_GPUS,
        excludes=(
            given("parallel", "parameter-cpu", "ddp", why="their devices wait for each other in each step"),
            given("scenario", "distributed", "shared", why="it reports the times of steps"),
            given("epochs", why="each epoch has its own time"),
            given("checkpoint", "on", "fsync", why="each checkpoint waits for its steps"),
            *_IN_TURNS,
        ),
    )
    gpus: Text | None = about(
        None,
        "GPUs by index (0,1), by UUID (GPU-8932f937), or instances by MIG (0:1, MIG-c6d4f1ef). Default: those of "
        f"CUDA_VISIBLE_DEVICES, as Slurm sets it, else the first {option('devices')}.",
        parse=gpu_words,
        idle_without=_ON_GPUS,
    )


class DataOptions(OptionGroup):
    """Data sets."""

    data: Text | None = about(
        None,
        "Data to train on, such as imagenet:DIR. Known are generated[:DIR], "
        f"{', '.join(f'{kind}:DIR' for kind in DATA_KINDS.own)} with {option('scenario')} real or distributed; or "
        f"synthetic. With {option('engine')} kubernetes, KIND:CLAIM/PATH is a directory of a claim.",
        parse=parse_data,
        names_place=True,
        of="trains",
    )
    data_disk: Text | None = about(
        None,
        "Block device from which targets read the data set. bench data disk writes it. Default: containers "
        "and bare metal read the directory, a VM reads a packed disk file.",
        of="reads",
        needs=(DATA_SET,),
        excludes=(given("inventory", why="it is a device of this machine"),),
    )
    frame_stride: Count | None = about(
        None, "With frames:DIR, use every Nth frame of each video. Default: 1.", of="reads", needs=(DATA_SET,)
    )
    cache: PageCache | None = about(
        None,
        "Page cache of the data set's files, which is verified. Default: cold. Of your own server: cold, it starts "
        "without its programs and files in memory; warm, it has run once before. Default: as other trials left it.",
        of="reads",
        shared_with=("serve",),
        needs=(DATA_SET, given("port", example="8000")),
    )
    loader_workers: NotNegative | None = about(
        None, "Processes that read and decode images. Default: one per CPU.", of="reads", idle_without=(DATA_SET,)
    )
    decoder: Literal["auto", "simplejpeg", "pillow"] = about(
        "auto",
        "Decoder of JPEG files. auto: simplejpeg (libjpeg-turbo), and pillow for files that it rejects.",
        of="reads",
        idle_without=(DATA_SET,),
    )


class JoiningOptions(OptionGroup):
    """Several instances, and other machines."""

    lab: Text | None = about(
        None,
        "Virtual nodes on this machine: nodes=3,rate=1gbit. Also delay=5ms. Default: one node per instance, 1gbit.",
        parse=parse_lab,
        of="joined",
        excludes=(given("inventory", why="it is a network on this machine"),),
    )
    inventory: Path | None = about(
        None,
        "Machines reached by SSH: hosts.toml. Each target runs on the machine that is listed for it; with "
        f"{option('engine')} kubernetes, what is compared with the pods, on their node. Instances that are joined: one "
        "on each, in place of a lab.",
        of="inventory",
    )
    site: Text | None = about(
        None,
        "Site of the targets. Default: the one that the other options lead to.",
        members=(SITES,),
        stored_as_default=False,
    )
    hire: Text | None = about(
        None,
        f"Machines that {option('site')} nova or ironic hires for the run alone: cloud=NAME,KEY=VALUE,... with the "
        "options of bench machines up, whose files are named by absolute paths.",
        needs=(
            Need(f"{option('site')} of a cloud", lambda asked: asked("site") in CLOUDS, f"add {option('site')} nova"),
        ),
        stored_as_default=False,
    )
    network: ContainerNetwork = about(
        "overlay",
        "Network of the containers. overlay: VXLAN between the nodes, like flannel. bridge: address translation "
        "and published ports. host: the network of the node.",
        of="joined",
        idle_without=_IN_CONTAINERS,
    )
    comm_timeout: Count | None = about(
        None,
        "Seconds after which a silent rank or server is given up. Default: 60; 600 with emulated VMs.",
        of="joined",
        meaning=False,
    )
