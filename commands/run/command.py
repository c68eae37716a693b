"""``bench run``: the options, and the way from them to records."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.run.options import choice, duration, number, positive, shares
from commands.run.prepare import Ready, host_environment, observing, ready
from suite.errors import RequestError
from suite.job.ablations import get_ablation
from suite.job.distributed import CONTAINER_NETWORKS, STRATEGIES
from suite.job.profiles import PROFILES
from suite.job.sharing import AGGRESSORS, BARE_METAL_CPUS, VICTIMS
from suite.plan import TARGETS, Plan
from suite.registries import ABLATIONS, ENGINES, MACHINES
from suite.results.store import Run, new_run_directory

if TYPE_CHECKING:
    from suite.interfaces import Observer
    from suite.records.record import TrialRecord

# As their registries have them; a test holds them together. Not imported: the help of bench is to be there at once.
SCENARIOS = ("synthetic", "real", "probe", "distributed", "shared")
PROBES = ("disk", "memory", "network", "cpu", "syscall", "startup")


@click.command()
@click.option(
    "--scenario",
    default="synthetic",
    callback=choice(SCENARIOS),
    show_default=True,
    help="synthetic: training on data in memory. real: on images from the disk. probe: what a layer costs in "
    "itself. distributed: one job over several instances. shared: a job alone and beside another on the same machine.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("all",),
    callback=choice(TARGETS, several=True),
    help="bare-metal, container, vm, container-vm, or all that this machine can carry. Repeatable.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    callback=choice(VICTIMS, several=True),
    help="inception_v3, resnet50, alexnet, or all; with --scenario shared also alexnet-small (its small batch). "
    "Repeatable. Default: resnet50; all with --scenario shared, but for the smoke profile.",
)
@click.option(
    "--probe",
    "probes",
    multiple=True,
    default=("all",),
    callback=choice(PROBES, several=True),
    help=f"With --scenario probe: {', '.join(PROBES)}, or all. Repeatable.",
)
@click.option(
    "--profile",
    default="quick",
    callback=choice(tuple(PROFILES)),
    show_default=True,
    help="; ".join(f"{name}: {profile.summary}" for name, profile in PROFILES.items()),
)
@click.option(
    "--recipe",
    default="reference",
    callback=choice(("reference", "tuned")),
    show_default=True,
    help="reference: fp32, eager, torch's defaults. tuned: bf16, channels-last, an allocator that keeps memory.",
)
@click.option("--engine", callback=choice(ENGINES.names()), help="The container engine. Default: the first that works.")
@click.option(
    "--provider",
    default="qemu",
    callback=choice(MACHINES.names()),
    show_default=True,
    help="The machine provider of the VMs.",
)
@click.option(
    "--accel",
    default="auto",
    callback=choice(("auto", "kvm", "tcg")),
    show_default=True,
    help="Of the VMs. auto: kvm where a guest really boots under it, else tcg (emulation).",
)
@click.option(
    "--isa",
    default="shared",
    callback=choice(("shared", "native")),
    show_default=True,
    help="Vector instructions. shared: all targets are capped to what all of them have. native: each uses what it has.",
)
@click.option(
    "--ablate",
    "ablations",
    multiple=True,
    callback=choice(ABLATIONS.names(), several=True),
    help="Switch one property at a time, in the same blocks. Repeatable; all. "
    + "; ".join(f"{name}: {get_ablation(name).summary}" for name in ABLATIONS.own),
)
@click.option(
    "--data", help="With --scenario real: generated[:DIR], imagenet:DIR, imagefolder:DIR, cifar10:DIR, mnist:DIR."
)
@click.option(
    "--data-disk",
    help="A block device that bench data disk has put the data set on: every target reads it from there. "
    "Default: containers and bare metal read the directory, a VM a disk in a file beside it.",
)
@click.option("--cache", callback=choice(("cold", "warm")), help="Of the data set's files, verified. Default: cold.")
@number("--loader-workers", help="Processes that read and decode. Default: one per CPU.")
@click.option(
    "--decoder",
    default="auto",
    callback=choice(("auto", "simplejpeg", "pillow")),
    show_default=True,
    help="Of JPEG files. auto: libjpeg-turbo, and Pillow for what it refuses.",
)
@click.option("--fio-job", type=click.Path(path_type=Path), help="Of the disk probe: a job file.")
@click.option(
    "--strategy",
    default="parameter-server",
    callback=choice(STRATEGIES),
    show_default=True,
    help="With --scenario distributed: who adds the gradients up.",
)
@number("--workers", help="With --scenario distributed. Default: 2.")
@number("--ps", "servers", help="Parameter servers. Default: 1; all-reduce has none.")
@click.option(
    "--lab", help="Virtual nodes on this machine: nodes=3,rate=1gbit[,delay=5ms]. Default: a node each, 1gbit."
)
@click.option(
    "--inventory", type=click.Path(path_type=Path), help="Machines reached by SSH, in place of a lab: hosts.toml."
)
@click.option(
    "--network",
    default="overlay",
    callback=choice(CONTAINER_NETWORKS),
    show_default=True,
    help="Of distributed containers. overlay: VXLAN between the nodes, as flannel makes it. "
    "bridge: address translation and published ports. host: the node's own.",
)
@click.option(
    "--aggressor",
    "aggressors",
    multiple=True,
    default=("alexnet",),
    callback=choice(AGGRESSORS, several=True),
    show_default=True,
    help="With --scenario shared: what runs beside the victim. alexnet, resnet50, inception_v3 train; disk (fio), "
    "memory (triad), network (iperf3 to itself), cpu (matrix products); or all. Repeatable: one at a time.",
)
@number("--aggressors", "copies", help="How many instances run the aggressor, all the same. Default: 1.")
@number("--aggressor-batch", help="Images per step of an aggressor that trains. Default: the profile's.")
@click.option(
    "--bare-metal-cpus",
    default="unrestricted",
    callback=choice(BARE_METAL_CPUS),
    show_default=True,
    help="With --scenario shared. unrestricted: jobs on bare metal all have the whole envelope, as in the paper. "
    "equal: each has a share of its own, as on other targets.",
)
@number("--comm-timeout", help="Seconds after which a silent rank is given up. Default: 60; 600 with emulated VMs.")
@click.option("--cpus", help="How many (2), or which (0-1,4). Default: all that this process may use.")
@click.option("--memory", help="Of every target, such as 4G. Default: the profile's.")
@number("--threads", help="Of the training. Default: one per CPU.")
@number("--blocks", "--repeat", "blocks", help="How many times every target is measured, in random order. Default: 1.")
@click.option(
    "--warmup-blocks",
    type=int,
    callback=positive,
    help="Blocks before the first that are recorded and not counted. Default: 1 with --until or 3 blocks and more.",
)
@click.option(
    "--until",
    callback=shares,
    help="Go on, block by block, until every 95 % interval is within plus or minus this: 2%.",
)
@number("--min-blocks", help="With --until: at least so many.")
@number("--max-blocks", help="With --until: at most so many. Default: 100.")
@click.option("--budget", "budget_s", callback=duration, help="With --until: begin no new block after this time: 30m.")
@click.option("--aa", is_flag=True, help="Measure bare metal twice in every block: shows what is only noise.")
@number("--seed", help="Of the order and of the data. Default: 0.")
@number("--batch", help="Images per step and device.")
@number("--image-px", help="Width and height of the images.")
@number("--steps", help="Measured steps.")
@number("--warmup-steps", help="Steps before them.")
@number("--trial-timeout", help="Seconds after which a job is given up.")
@click.option("--device", default="cpu", callback=choice(("cpu", "cuda")), show_default=True)
@number("--devices", help="GPUs of one job (with --device cuda). Default: 1.")
@click.option(
    "--parallel",
    default="none",
    callback=choice(("none", "parameter-cpu", "ddp")),
    show_default=True,
    help="Several devices: variables on the CPU (the paper's Table 1), or DistributedDataParallel.",
)
@click.option("--gpus", help="GPUs for containers and bare metal, by index: 0,1.")
@click.option("--vfio", help="GPUs for VMs, by PCI address: 0000:01:00.0,0000:02:00.0.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory of the run. An interrupted run there continues."
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
def run(**options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Run a scenario on targets and record every trial.

    \b
    Examples:
      bench run --target all --profile smoke
      bench run --scenario synthetic --target container-vm --model resnet50 --profile smoke
      bench run --scenario real --data generated --cache cold --target all --profile smoke
      bench run --scenario real --data imagenet:/data/ilsvrc --data-disk /dev/nvme1n1
      bench run --scenario probe --probe disk --probe memory --target all
      bench run --scenario distributed --target container --lab nodes=3,rate=1gbit
      bench run --scenario distributed --target bare-metal --target container --inventory hosts.toml
      bench run --scenario shared --target all --profile smoke
      bench run --scenario shared --target bare-metal --target container --aggressor disk --aggressor memory
      bench run --target bare-metal --target container --model all --repeat 10 --engine podman
      bench run --target bare-metal --target container --blocks 10 --ablate seccomp --ablate pinning
      bench run --target all --aa --until 2% --budget 2h
      bench run --target all --out results/night         (again after Ctrl-C: continues)
    """
    with observing() as observer:
        made = ready(options, observer.note)
        made.prepare(observer.note)
        store = Run(options["out"] or new_run_directory())
        records = _records(made, options, store, observer)
    _tell(records, store, as_json=options["as_json"])


def _records(made: Ready, options: dict[str, Any], store: Run, observer: "Observer") -> "list[TrialRecord]":
    from provisioning import ledger
    from provisioning.metrics.accounting import open_account
    from suite.loop import Loop

    records = []
    loop = Loop(made.scenario, made.open_target, store, observer, host_environment, open_account)
    with store.exclusive(), ledger.holding("run-directory", str(store.directory.absolute())):
        for step in _steps(made.plan, options, store, observer.note):
            records += loop.run(step)
    return records


def _tell(records: "list[TrialRecord]", store: Run, *, as_json: bool) -> None:
    failed = [record.trial_id for record in records if record.outcome.status == "failed"]
    if as_json:
        trials = [record.trial_id for record in records]
        told = {"run_id": store.run_id, "directory": str(store.directory), "trials": trials, "failed": failed}
        click.echo(json.dumps(told))
    else:
        click.echo(f"{len(records) - len(failed)} trials measured, {len(failed)} failed: {store.directory}", err=True)
        click.echo(f"see them with: bench compare {store.directory}", err=True)
    if failed:
        sys.exit(1)


def _steps(plan: Plan, options: dict[str, Any], store: Run, note: Callable[[str], None]) -> Iterator[Plan]:
    """The plan as it is, or with ``--until`` block after block of it until the intervals are narrow enough."""
    if options["until"] is None:
        yield plan
        return
    import time

    from analysis.load.records import load
    from analysis.statistics.sequential import LEAST_BLOCKS, should_stop_run

    least, most = options["min_blocks"] or LEAST_BLOCKS, options["max_blocks"] or 100
    if least > most:
        raise RequestError(f"--min-blocks {least} is above --max-blocks {most}", remedy="exchange them")
    deadline = time.monotonic() + options["budget_s"] if options["budget_s"] else None
    stored = store.plan()
    # A run that was killed had decided to go on when it grew: the block it had begun is finished first.
    for blocks in range(min(stored.blocks, most) if stored else 1, most + 1):
        yield plan.model_copy(update={"blocks": blocks})
        if deadline is not None and time.monotonic() > deadline:
            note(f"stopped after {blocks} blocks: the budget of {options['budget_s']:.0f} s is spent")
            return
        decision = should_stop_run(load([store.directory]), options["until"], min_blocks=least, max_blocks=most)
        if decision.stop:
            note(f"stopped after {blocks} blocks: {decision.reason}")
            return
