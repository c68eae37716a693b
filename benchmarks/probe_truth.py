"""Does a probe tell what its tool tells? fio and iperf3 by hand against ``bench run --scenario probe`` on bare metal.

By hand is a plain process on the same CPUs with the same job file, file size, run time and disk. Both sides are
measured in pairs whose order is drawn. Prints for every metric both medians, and the trimmed geometric mean
of the pairs' ratios (suite over hand) with its 95 % interval.

    python benchmarks/probe_truth.py --probe disk --profile quick --pairs 10
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]  # as a script, this file is not part of the suite

from intrusion import interval, output, suite_trial  # noqa: E402

from provisioning.paths import state  # noqa: E402
from suite.job.envelope import format_cpu_list  # noqa: E402
from suite.plan import balanced  # noqa: E402
from worker.probes import network  # noqa: E402
from worker.probes.disk import FILE_MIB, JOBS, RUNTIME_S, readings  # noqa: E402

Numbers = dict[str, float]


def main() -> None:
    options = parse()
    what = ("--scenario", "probe", "--probe", options.probe)
    by_hand = {"disk": fio_by_hand, "network": iperf3_by_hand}[options.probe]
    # Not counted: it says which CPUs the profile means on this machine, and which version of the tool the image holds.
    record = suite_trial(options, *what)
    versions(options, record)
    sides: dict[str, Callable[[], Numbers]] = {
        "hand": lambda: by_hand(options, record["job"]["envelope"]["cpus"]),
        "suite": lambda: values(suite_trial(options, *what)),
    }
    pairs: list[dict[str, Numbers]] = []
    for number in range(1, options.pairs + 1):
        pairs.append({side: sides[side]() for side in balanced(sorted(sides), number - 1, str(options.seed))})
        ratios = {name: pairs[-1]["suite"][name] / value for name, value in pairs[-1]["hand"].items()}
        print(f"pair {number}: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()), flush=True)
    report(options, pairs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probe", default="disk", choices=("disk", "network"))
    parser.add_argument("--profile", default="quick", choices=tuple(FILE_MIB))
    parser.add_argument("--pairs", type=int, default=10, help="at least 2 (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order in each pair")
    parser.add_argument("--bench", default="bench", help="the suite's command, such as '.venv/bin/bench'")
    parser.add_argument(
        "--directory", type=Path, help="where fio by hand writes (default: where the suite makes its data disks)"
    )
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs must be at least 2: one ratio has no interval")
    return options


def values(record: dict[str, Any]) -> Numbers:
    return {name: metric["value"] for name, metric in record["metrics"].items()}


def versions(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Print both versions of the tool: a difference between them is no intrusion of the suite."""
    tool = {"disk": "fio", "network": "iperf3"}[options.probe]
    here = output([tool, "--version"]).splitlines()[0]
    print(f"{tool}: {here} here, {record['details'][tool]} in the image", flush=True)


def fio_by_hand(options: argparse.Namespace, cpus: Sequence[int]) -> Numbers:
    """Give fio the probe's own job file on the command line."""
    variables = {"SIZE": f"{FILE_MIB[options.profile]}m", "RUNTIME": str(RUNTIME_S[options.profile])}
    place = options.directory or state("scratch")
    with tempfile.TemporaryDirectory(dir=place) as directory, tempfile.TemporaryDirectory() as notes:
        report = Path(notes, "report.json")
        argv = ["taskset", "--cpu-list", format_cpu_list(cpus), "fio", "--eta=never", "--output-format=json"]
        argv += [f"--output={report}", f"--directory={directory}", str(JOBS)]
        done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"fio ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return {name: reading.value for name, reading in readings(report.read_text(), done.stderr).items()}


def iperf3_by_hand(options: argparse.Namespace, cpus: Sequence[int]) -> Numbers:
    """Start a server and a client as the manual shows; no tool measures the round trip for comparison."""
    pinned = ["taskset", "--cpu-list", format_cpu_list(cpus), "iperf3"]
    numbers = {}
    for name, ways in (("tcp-throughput", []), ("tcp-throughput-reverse", ["--reverse"])):
        port = str(network.free_port())
        served = [*pinned, "--server", "--one-off", "--port", port, "--forceflush"]
        with subprocess.Popen(served, stdout=subprocess.PIPE, text=True) as server:
            next(line for line in server.stdout or () if "listening" in line)
            client = [*pinned, "--client", network.LOOPBACK, "--port", port, "--json", *ways]
            said = output([*client, "--time", str(network.SECONDS[options.profile])])
            server.communicate()
        numbers[name] = network.parse_session(said).rate.value
    return numbers


def report(options: argparse.Namespace, pairs: Sequence[dict[str, Numbers]]) -> None:
    print(f"{options.probe}, profile {options.profile}, {len(pairs)} pairs (medians; suite / hand, 95 % interval):")
    for name in pairs[0]["hand"]:
        hand, suite = ([pair[side][name] for pair in pairs] for side in ("hand", "suite"))
        mean, low, high = interval([one / other for one, other in zip(suite, hand, strict=True)])
        verdict = "" if low <= 1 <= high else "   the interval does not hold 1"
        middles = f"{statistics.median(hand):12.2f} {statistics.median(suite):12.2f}"
        print(f"  {name:32} {middles}   {mean:.4f}   {low:.4f} to {high:.4f}{verdict}")


if __name__ == "__main__":
    main()
