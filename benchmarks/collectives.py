"""Compare the workload ``collectives`` with the same exchanges by hand, and with iperf3, on a lab's link.

Each round opens two instances for iperf3 (``--bidir``, the slower direction) and for a script of torch.distributed
(``parts/collectives_rank.py``: gloo, 64 MiB), and runs ``bench run`` once; the order is drawn. Prints each one's bus
bandwidth in MB/s and the suite's over the others', the median of the rounds with the range. Root is needed, and the
image.

    python benchmarks/collectives.py --rate 1gbit
    python benchmarks/collectives.py --rate 10gbit --target container --engine runc
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from parts.lab_ranks import ended, lab_trial

from provisioning.images.image import current
from provisioning.sites.lab import LabSite
from provisioning.targets import Choices
from scenarios.job import clean_environment
from suite.interfaces import Instance, Process
from suite.job.distributed import DistributedJob
from suite.job.lab import LabSpec
from suite.plan import Trial, balanced

PROGRAM = Path(__file__).with_name("parts") / "collectives_rank.py"
MEGABYTES, REPETITIONS, IPERF3_S, WITHIN_S = 64, 5, 5, 600
OPERATIONS = ("all-reduce", "broadcast", "point-to-point")
Bandwidths = dict[str, float]
"""The bus bandwidth in MB/s, by operation. For two ranks the all-reduce's factor 2(n-1)/n is 1."""


def trial_of(options: argparse.Namespace, choices: Choices) -> Trial:
    lab = LabSpec(nodes=2, rate=options.rate)
    distributed = DistributedJob(strategy="all-reduce", workers=2, servers=0, network=options.network, lab=lab)
    return lab_trial(options.target, distributed, choices, WITHIN_S)


def by_iperf3(instances: Sequence[Instance]) -> Bandwidths:
    here, there = (str(instance.address) for instance in instances)
    server = instances[0].node.start(["iperf3", "--server", "--one-off", "--forceflush", "--bind", here])
    client = ["iperf3", "--client", here, "--bind", there, "--time", str(IPERF3_S), "--bidir", "--json"]
    next(server.lines(WITHIN_S))  # it listens
    _, lines = ended([server, instances[1].node.start(client)], instances[0].node.name, WITHIN_S)
    report = json.loads("\n".join(lines))["end"]
    slower = min(report[name]["bits_per_second"] for name in ("sum_received", "sum_received_bidir_reverse"))
    return dict.fromkeys(OPERATIONS, slower / 8e6)


def by_hand(instances: Sequence[Instance]) -> Bandwidths:
    first = instances[0]
    words = [str(first.address), str(first.port or 29500)]

    def started(rank: int, here: Instance) -> Process:
        interpreter, path = here.node.python
        environment = clean_environment(1, "reference", PYTHONPATH=path)
        counts = [str(here.interface), str(MEGABYTES), str(REPETITIONS)]
        return here.node.start([*environment, interpreter, "-", str(rank), *words, *counts], stdin=PROGRAM.read_bytes())

    (lines, _) = ended([started(rank, here) for rank, here in enumerate(instances)], first.node.name, WITHIN_S)
    return {name: MEGABYTES * (1 << 20) / seconds / 1e6 for name, seconds in json.loads(lines[-1]).items()}


def by_suite(options: argparse.Namespace) -> Bandwidths:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        words = ["--scenario", "distributed", "--strategy", "all-reduce", "--model", "collectives", "--out", str(out)]
        words += ["--lab", f"nodes=2,rate={options.rate}", "--target", options.target, "--blocks", "1"]
        if options.target == "container":
            words += ["--engine", options.engine, "--network", options.network]
        subprocess.run([sys.executable, "-m", "cli", "run", *words], check=True, stdout=subprocess.DEVNULL)
        (record,) = (json.loads(path.read_text()) for path in (out / "trials").glob("*.json"))
        return {name: record["metrics"][f"{name}-{MEGABYTES}MiB-bandwidth"]["value"] for name in OPERATIONS}


def main() -> None:
    options = parse()
    choices = Choices(current(), options.engine, "tcg")

    def opened(measure: Callable[[Sequence[Instance]], Bandwidths]) -> Bandwidths:
        with LabSite(choices).opened(trial_of(options, choices)) as instances:
            return measure(instances)

    ways: dict[str, Callable[[], Bandwidths]] = {
        "suite": lambda: by_suite(options),
        "by hand": lambda: opened(by_hand),
        "iperf3": lambda: opened(by_iperf3),
    }
    rounds = []
    for number in range(1, options.rounds + 1):
        rounds.append({name: ways[name]() for name in balanced(list(ways), number - 1, str(options.seed))})
        print(f"round {number}: {rounds[-1]}", flush=True)
    print(f"{options.target}, {options.rate}, {options.rounds} rounds, messages of {MEGABYTES} MiB")
    print(f"{'MB/s':16}{'suite':>8}" + "".join(f"{name:>10}{'suite over it':>24}" for name in list(ways)[1:]))
    for operation in OPERATIONS:
        row = f"{operation:16}{statistics.median(each['suite'][operation] for each in rounds):8.1f}"
        for name in list(ways)[1:]:
            ratios = sorted(each["suite"][operation] / each[name][operation] for each in rounds)
            rate = statistics.median(each[name][operation] for each in rounds)
            row += f"{rate:10.1f}{f'{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})':>24}"
        print(row)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("bare-metal", "container"), default="bare-metal")
    parser.add_argument("--engine", default="runc")
    parser.add_argument("--network", default="overlay", help="network of the containers")
    parser.add_argument("--rate", default="1gbit", help="rate of the lab's links")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order in each round")
    return parser.parse_args()


if __name__ == "__main__":
    main()
