"""Measure what a step with a parameter server costs: in the suite, by torch.distributed.rpc's pattern, in plain ways.

One server and two workers exchange ResNet-50's 25.6 million parameters, in instances of a target on a lab network:

    python benchmarks/parameter_server.py --target bare-metal --target container

Without ``--batch`` a step is the exchange alone: what share of the link's rate it uses. With it, ResNet-50 trains on
batches of so many images: images per second. The ways take turns within each round, so that a change of the machine
meets all of them; a round of two ways is a pair. Root is needed, and the image. The share is that of the parameters'
own bytes: TCP can carry 95.6 % of a link's rate, and 92.3 % through VXLAN.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import get_args

from parts.exchange_rank import ELEMENTS
from parts.lab_ranks import ended, lab_trial

from provisioning.images.image import current
from provisioning.sites.lab import LabSite
from provisioning.targets import Choices
from scenarios.job import clean_environment
from suite.interfaces import Instance, Process
from suite.job.distributed import ContainerNetwork, DistributedJob
from suite.job.lab import LabSpec, bits_per_s
from suite.plan import Trial
from worker.distributed.parameters import CHUNK_BYTES

PROGRAM = Path(__file__).with_name("parts") / "exchange_rank.py"
WITHIN_S = 1800
PORT = 29500
RPC = "rpc"


def trial_of(target: str, options: argparse.Namespace, choices: Choices) -> Trial:
    workers, lab = options.workers, LabSpec(nodes=options.workers + 1, rate=options.rate)
    job = DistributedJob(strategy="parameter-server", workers=workers, servers=1, network=options.network, lab=lab)
    return lab_trial(target, job, choices, WITHIN_S)


def started(rank: int, instances: list[Instance], options: argparse.Namespace) -> Process:
    here = instances[rank]
    distributed: dict[str, object] = {"strategy": "parameter-server", "workers": options.workers, "servers": 1}
    distributed |= {"rank": rank, "master": instances[0].address, "port": PORT, "interface": here.interface}
    asked = {name: getattr(options, name) for name in ("rounds", "steps", "batch", "image_px", "chunk_bytes", "plain")}
    interpreter, path = here.node.python
    words = clean_environment(1, "reference", PYTHONPATH=path, OMP_WAIT_POLICY="passive")
    argv = [*words, interpreter, "-", json.dumps({"distributed": distributed, **asked})]
    return here.node.start(argv, stdin=PROGRAM.read_bytes())


def measured(target: str, options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Return the seconds of every step of the last worker, by way and round."""
    choices = Choices(current(), options.engine, "tcg")
    with LabSite(choices).opened(trial_of(target, options, choices)) as instances:
        ranks = [started(rank, list(instances), options) for rank in range(len(instances))]
        said = ended(ranks, target, WITHIN_S)
    taken_s: dict[str, list[list[float]]] = json.loads(said[-1][-1])
    return taken_s


def show(target: str, taken_s: dict[str, list[list[float]]], options: argparse.Namespace) -> None:
    network = f", {options.network}" if target == "container" else ""
    print(f"{target}{network}, {options.rate}, batch {options.batch or 'none'}, {options.rounds} rounds")
    print(f"{'':28}{'median ms':>10}{'least':>8}{'most':>8}{'of the link':>13}{'images/s':>10}{'over rpc':>22}")
    for name, rounds in taken_s.items():
        each_s = [second for each in rounds for second in each]
        median_s = statistics.median(each_s)
        # What the server's link carries in each direction.
        share = options.workers * ELEMENTS * 4 * 8 / median_s / bits_per_s(options.rate)
        images = f"{options.workers * options.batch / median_s:.2f}" if options.batch else "-"
        pairs = sorted(sum(other) / sum(own) for own, other in zip(rounds, taken_s[RPC], strict=True))
        over = f"{statistics.median(pairs):.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})"
        times = f"{1e3 * median_s:10.0f}{1e3 * min(each_s):8.0f}{1e3 * max(each_s):8.0f}"
        print(f"{name:28}{times}{share:13.1%}{images:>10}{over:>22}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=("bare-metal", "container"), required=True)
    parser.add_argument("--engine", default="runc")
    parser.add_argument(
        "--network", default="overlay", choices=get_args(ContainerNetwork), help="network of the containers"
    )
    parser.add_argument("--rate", default="1gbit", help="rate of the lab's links")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="steps of each way in a round")
    parser.add_argument("--batch", type=int, default=0, help="images per worker; 0: the exchange alone")
    parser.add_argument("--image-px", type=int, default=64)
    parser.add_argument("--chunk-bytes", type=int, nargs="+", default=[CHUNK_BYTES])
    parser.add_argument("--plain", action="store_true", help="the plain ways of torch.distributed too, exchange alone")
    return parser.parse_args()


def main() -> None:
    options = parse()
    for target in options.target:
        show(target, measured(target, options), options)


if __name__ == "__main__":
    main()
