"""What a step's exchange with a parameter server costs, against the ways of torch.distributed to do the same: plain
ones, and the pattern of its RPC tutorial.

One server and ``--workers`` workers exchange ResNet-50's 25.6 million variables without any training. The ways take
turns within each round, so that a change of the machine meets all of them. Run on loopback, or with ``--nodes`` in
network namespaces (one per rank, the server first) whose links are limited to ``--rate-gbit``:

    python benchmarks/parameter_server.py
    python benchmarks/parameter_server.py --nodes n0 n1 n2 --master 10.0.0.1 --interface eth0 --rate-gbit 1
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rpc_exchange import Server, exchange, joined_by_rpc
from torch import distributed

from scenarios.worker.distributed.cluster import Cluster
from scenarios.worker.distributed.exchange import Exchange
from scenarios.worker.distributed.group import Group, joined
from scenarios.worker.distributed.serve import serve
from scenarios.worker.distributed.variables import Variables

ELEMENTS = 25_557_040  # ResNet-50's 25,557,032 in whole lines
LEARNING_RATE = 0.01


class Ready(Variables):
    """Variables whose gradients are all there at once: nothing but the exchange is left of a step."""

    def __init__(self) -> None:
        super().__init__(torch.nn.ParameterList([torch.zeros(ELEMENTS)]))

    def expect(self) -> None: ...

    def complete(self) -> None:
        for number in range(len(self._pending)):
            self._on_chunk(number)


def timed(steps: int, step: Callable[[], object]) -> list[float]:
    taken_s = []
    for _ in range(steps):
        begin_s = time.monotonic()
        step()
        taken_s.append(time.monotonic() - begin_s)
    return taken_s


def chunks(group: Group, steps: int, chunk_bytes: int) -> list[float]:
    """The suite's own way."""
    if group.cluster.is_server:
        serve(group, learning_rate=LEARNING_RATE, threads=torch.get_num_threads())
        return []
    exchange = Exchange(group, Ready(), chunk_bytes)

    def step() -> None:
        exchange.begin()
        exchange.finish()

    taken_s = timed(steps, step)
    exchange.close()
    return taken_s


def reduce_and_broadcast(group: Group, steps: int) -> list[float]:
    values, gradients = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def step() -> None:
        distributed.reduce(gradients, dst=0)
        if group.cluster.is_server:
            values.add_(gradients, alpha=-LEARNING_RATE / group.cluster.workers)
        distributed.broadcast(values, src=0)

    return timed(steps, step)


def send_and_receive(group: Group, steps: int) -> list[float]:
    values, gradients = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def step() -> None:
        if not group.cluster.is_server:
            distributed.send(gradients, 0)
            distributed.recv(values, 0)
            return
        for rank in group.cluster.worker_ranks:
            distributed.recv(gradients, rank)
            values.add_(gradients, alpha=-LEARNING_RATE / group.cluster.workers)
        for rank in group.cluster.worker_ranks:
            distributed.send(values, rank)

    return timed(steps, step)


def all_reduce(_: Group, steps: int) -> list[float]:
    """Of the server too, as in the project's notes."""
    gradients = torch.zeros(ELEMENTS)
    return timed(steps, lambda: distributed.all_reduce(gradients) and None)


def rpc(group: Group, steps: int) -> list[float]:
    """torch.distributed.rpc's own pattern; its server answers beside the main thread."""
    if group.cluster.is_server:
        return []
    gradients = torch.zeros(ELEMENTS)
    return timed(steps, lambda: exchange(gradients) is None)


def run_rank(cluster: Cluster, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of every step, by the way it went."""
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Group, int], list[float]]] = {
        f"chunks of {size / 2**20:g} MiB": lambda group, steps, size=size: chunks(group, steps, size)  # type: ignore[misc]
        for size in options.chunk_bytes
    }
    if not options.own_only:
        ways |= {"reduce, broadcast": reduce_and_broadcast, "send, receive": send_and_receive, "all-reduce": all_reduce}
        ways |= {"rpc": rpc}
    taken_ms: dict[str, list[float]] = {name: [] for name in ways}
    server = Server(ELEMENTS, cluster.workers, LEARNING_RATE) if cluster.is_server else None
    place = f"{cluster.master}:{cluster.port + 1}"
    with joined(cluster) as group, joined_by_rpc(cluster.rank, cluster.world, place, cluster.interface, server):
        for number in range(options.rounds + 1):
            for name, way in ways.items():
                distributed.barrier()
                taken_s = way(group, options.steps)
                # The first round warms up.
                taken_ms[name] += [1e3 * each for each in taken_s if number]
    return taken_ms


def start(rank: int, options: argparse.Namespace) -> "subprocess.Popen[str]":
    argv = [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank)]
    if options.nodes:
        argv = ["nsenter", f"--net=/run/netns/{options.nodes[rank]}", *argv]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def show(taken_ms: dict[str, list[float]], options: argparse.Namespace) -> None:
    print(f"{'':24}{'median ms':>12}{'least':>9}{'most':>9}{'share of the link':>20}")
    for name, each_ms in taken_ms.items():
        median_ms = statistics.median(each_ms)
        # What the server's link carries in each direction.
        gbit_per_s = options.workers * ELEMENTS * 4 * 8 / median_ms / 1e6
        share = f"{gbit_per_s / options.rate_gbit:.1%}" if options.rate_gbit else f"{gbit_per_s:.1f} Gbit/s"
        print(f"{name:24}{median_ms:12.0f}{min(each_ms):9.0f}{max(each_ms):9.0f}{share:>20}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--chunk-bytes", type=int, nargs="+", default=[1 << 20, 4 << 20, 16 << 20])
    parser.add_argument("--own-only", action="store_true", help="without the plain ways")
    parser.add_argument("--nodes", nargs="+", default=[], help="network namespaces, the server's first")
    parser.add_argument("--master", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=29555)
    parser.add_argument("--interface", default="lo")
    parser.add_argument("--rate-gbit", type=float)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.rank is None:
        ranks = [start(rank, options) for rank in range(options.workers + 1)]
        said = [process.communicate()[0] for process in ranks]
        if any(process.returncode for process in ranks):
            raise SystemExit("a rank failed; see above")
        show(json.loads(said[-1]), options)
        return
    cluster = Cluster(
        "parameter-server", options.rank, options.workers, 1, options.master, options.port, options.interface
    )
    print(json.dumps(run_rank(cluster, options)))


if __name__ == "__main__":
    main()
