"""Distributed training by real processes on loopback: the same weights as one process, and an end whatever happens."""

import math
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from provisioning.machines.ssh import free_port
from tests.forked import context
from tests.worker import distributed_rank
from tests.worker.conftest import own_workload, ranks
from tests.worker.distributed_rank import Given, batch_of, network_of, tiny_model
from worker.training.device import Device, Numerics
from worker.training.step import Samples
from worker.training.trainer import Single
from worker.workloads.collectives import EXCHANGES, MESSAGES

STEPS = 4
TIMEOUT_S = 10.0
"""For ranks of which one is lost. Where none is to be, a busy machine must not make it seem so: then it is PATIENT."""
PATIENT: dict[str, Any] = {"timeout_s": 60.0}
BOUND_S = TIMEOUT_S + 20
"""In which all ranks must have ended after one is lost. The rest over the timeout is for a machine that is busy."""
GATHER_S = 10.0
"""In which ranks must come that can."""


class Job:
    """Ranks as processes, which are forked from one that has imported torch already."""

    def __init__(
        self,
        folder: Path,
        strategy: str,
        workers: int = 2,
        servers: int = 1,
        orders: dict[int, dict[str, Any]] | None = None,
        **membership: Any,
    ) -> None:
        self._folder = folder
        self._ranks: dict[int, tuple[ForkServerProcess, Connection]] = {}
        shape = {"strategy": strategy, "workers": workers, "servers": servers}
        place = {"master": "127.0.0.1", "port": free_port(), "interface": "lo"}
        times = {"timeout_s": TIMEOUT_S, "join_timeout_s": 60.0}
        for rank in range(workers + servers):
            own = (orders or {}).get(rank, {})
            if own.get("fault") == "absent":
                continue
            order = {"steps": STEPS, "weights": str(self.weights_file(rank)), **own}
            order["distributed"] = {**shape, "rank": rank, **place, **times, **membership}
            ours, theirs = context().Pipe(duplex=False)
            process = context().Process(target=distributed_rank.main, args=(order, theirs))
            process.start()
            theirs.close()
            self._ranks[rank] = process, ours

    def results(self, ranks: list[int] | None = None, within_s: float = 90.0) -> dict[int, dict[str, Any]]:
        """What the ranks said at their end. Fails when one has not ended in time."""
        end_s = time.monotonic() + within_s
        said: dict[int, dict[str, Any]] = {}
        for rank in ranks or list(self._ranks):
            process, pipe = self._ranks[rank]
            if pipe.poll(max(0.0, end_s - time.monotonic())):
                try:
                    said[rank] = pipe.recv()
                except EOFError:
                    said[rank] = {}
            process.join(max(1.0, end_s - time.monotonic()))
            assert process.exitcode is not None, f"rank {rank} has not ended"
        return said

    def weights_file(self, rank: int) -> Path:
        return self._folder / f"weights-{rank}.pt"

    def fault_s(self, rank: int) -> float:
        """When the rank's fault came; the processes of one machine have one clock."""
        return float(self.weights_file(rank).with_suffix(".fault").read_text())

    def weights(self, rank: int) -> dict[str, torch.Tensor]:
        loaded: dict[str, torch.Tensor] = torch.load(self.weights_file(rank))
        return loaded

    def end(self) -> None:
        for process, pipe in self._ranks.values():
            process.kill()
            process.join()
            pipe.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(*arrangement: Any, **membership: Any) -> Job:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Job(folder, *arrangement, **membership))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def whole_training(name: str) -> tuple[dict[str, torch.Tensor], dict[str, list[float]]]:
    """The weights and losses of one process that trains a workload on the whole batch."""
    workload, network = distributed_rank.WORKLOADS[name], network_of(name)
    trainer = Single(workload, network, Device("cpu"), Given(batch_of(name)), Numerics())
    samples = Samples.allocate(STEPS, trainer.phases, trainer.parts)
    with distributed_rank.drawing_part(0, 1):
        for step in range(STEPS):
            trainer.step(samples, step)
    return network.state_dict(), samples.lost()


@pytest.mark.parametrize(
    ("strategy", "workers", "servers", "order"),
    [
        *(("parameter-server", 2, 1, {}), ("parameter-server", 3, 2, {})),
        *(("all-reduce", 1, 0, {}), ("all-reduce", 2, 0, {}), ("all-reduce", 3, 0, {})),
        # The founding paper's: two devices for each of two workers. The devices of a CPU are the same one every time.
        ("parameter-server", 2, 1, {"devices": 2}),
        ("parameter-server", 2, 2, {"devices": 3, "numerics": {"channels_last": True}}),
        *(("all-reduce", 2, 0, {"workload": name}) for name in ("gan", "gan-published", "dcgan", "vae", "own")),
    ],
)
def test_a_synchronous_strategy_trains_as_one_process(
    strategy: str, workers: int, servers: int, order: dict[str, Any], start: Any
) -> None:
    """Adam divides by the size of a gradient: where that is nothing but rounding, a weight moves by up to its rate."""
    name, ranks = order.get("workload", "tiny"), range(servers, servers + workers)
    job = start(strategy, workers, servers, dict.fromkeys(range(servers + workers), order), **PATIENT)
    said = job.results()
    wanted, losses = whole_training(name)
    untrained, weights = network_of(name).state_dict(), [job.weights(rank) for rank in ranks]
    rtol, atol, rel = (1e-5, 1e-7, 1e-5) if name == "tiny" else (1e-4, 2e-4, 1e-3)
    for key, tensor in wanted.items():
        assert not torch.equal(tensor, untrained[key])
        torch.testing.assert_close(weights[0][key], tensor, rtol=rtol, atol=atol, msg=key)
        assert all(torch.equal(weights[0][key], other[key]) for other in weights), key
    for loss in losses.keys() - {"generated-deviation"}:  # which is that of a rank's own images
        mean = [sum(said[rank]["losses"][loss][step] for rank in ranks) / workers for step in range(STEPS)]
        assert mean == pytest.approx(losses[loss], rel=rel)
    if strategy == "all-reduce":
        step_bytes = 2 * (workers - 1) * sum(tensor.nbytes for tensor in wanted.values()) // workers
        assert {said[rank][way] for rank in ranks for way in ("bytes_sent", "bytes_received")} == {STEPS * step_bytes}
    columns = said[servers]["steps"]
    assert name == "tiny" or all(seconds > 0 for seconds in columns["communicate_s"])
    for step, compute_s in enumerate(columns["compute_s"]):
        assert 0 <= sum(column[step] for column in columns["phases"].values()) <= compute_s


@pytest.mark.parametrize("order", [{}, {"devices": 2}])
def test_what_is_sent_is_counted_at_both_ends_and_times_are_a_steps_own(order: dict[str, Any], start: Any) -> None:
    said = start("parameter-server", 2, 2, dict.fromkeys(range(4), order), **PATIENT).results()
    elements = sum(-(-parameter.numel() // 16) * 16 for parameter in tiny_model().parameters())
    # Every step both ways; before the first, one worker sends its parameters and the others receive them.
    assert said[2]["bytes_sent"] == (STEPS + 1) * elements * 4
    assert said[3]["bytes_sent"] == said[2]["bytes_received"] == STEPS * elements * 4
    assert said[3]["bytes_received"] == (STEPS + 1) * elements * 4
    servers, workers = [said[0], said[1]], [said[2], said[3]]
    assert sum(each["bytes_received"] for each in servers) == sum(each["bytes_sent"] for each in workers)
    assert sum(each["bytes_sent"] for each in servers) == sum(each["bytes_received"] for each in workers)
    assert [each["updates"] for each in servers] == [STEPS, STEPS]
    assert said[2]["addresses"] == dict.fromkeys(range(4), "127.0.0.1")
    columns = said[2]["steps"]
    assert columns["copy_s"] is None
    for elapsed_s, *parts_s in zip(
        *(columns[f"{name}_s"] for name in ("elapsed", "compute", "communicate")), strict=True
    ):
        assert 0 < min(parts_s) <= max(parts_s) < elapsed_s


def test_all_reduce_shows_the_communication_that_nothing_hides(start: Any) -> None:
    said = start("all-reduce", 2, 0, {1: {"fault": "slow", "at_step": 2, "fault_s": 3.0}}, **PATIENT).results()
    waited_s = said[0]["steps"]["communicate_s"]
    # The one that is late is waited for, in the reduction.
    assert waited_s[2] > 0.3
    assert all(seconds >= 0 for seconds in waited_s)


DRAWN = """
from worker.workloads.workload import Workload

class Drawn(Workload):
    def build(self, shape):
        from torch import nn
        return nn.ModuleDict({"one": nn.Linear(1, 1)})

    def optimizers(self, network):
        import torch
        return {"one": torch.optim.SGD(network.parameters(), lr=0.1)}

    def step(self, training, images, labels):
        import torch
        next(training.network.parameters()).sum().backward()
        training.update("one")
        return {"images": images.double().mean(), "noise": torch.randn(())}

TOKENS = Drawn(name="drawn", unit="images", sizes={}, losses=("images", "noise"))
"""
"""A user's workload that tells of each step what it was given, and what it drew."""


@pytest.mark.parametrize("stored", [False, True])
def test_each_worker_trains_with_images_and_noise_of_its_own_and_with_equal_weights(
    stored: bool, epochs: dict[str, Any]
) -> None:
    given = {**epochs, "epochs": None, **own_workload(DRAWN, steps=4)}
    said = ranks(given if stored else {**given, "data": None}, "all-reduce", 2, 0)
    one, other = (next(event for event in events if event["event"] == "steps") for events, _ in said)
    assert one["weights_sha256"] == other["weights_sha256"]
    for name in ("images", "noise"):
        assert not set(one["losses"][name]) & set(other["losses"][name]), name


@pytest.mark.parametrize(
    "strategy", ["parameter-server", pytest.param("parameter-server-async", marks=pytest.mark.thorough)]
)
def test_two_workers_of_two_devices_each_train_as_programs(strategy: str, spec: dict[str, Any]) -> None:
    """The founding paper's ranks, as ``bench run`` starts them: the server computes nothing and has one device."""
    of_workers: dict[str, Any] = {"devices": 2, "parallel": "parameter-cpu", "threads": 2}
    said = ranks({**spec, **own_workload()}, strategy, 2, 1, **of_workers)
    seeds = [line for _, errors in said for line in errors.splitlines() if line.startswith("draws from")]
    assert len(set(seeds)) == len(seeds) == 4, "each of the four devices draws images for itself"
    steps = [next(event for event in events if event["event"] == "steps") for events, _ in said[1:]]
    assert all(seconds > 0 for each in steps for seconds in each["steps"]["communicate_s"])
    assert (steps[0]["weights_sha256"] == steps[1]["weights_sha256"]) or strategy == "parameter-server-async"


@pytest.mark.parametrize(("name", "batches"), [("gan", 2), ("gan-published", 3), ("dcgan", 2)])
def test_a_split_gan_trains_as_one_process_and_sends_images_one_way_and_their_gradient_the_other(
    name: str, batches: int, start: Any
) -> None:
    job = start("split", 2, 0, {rank: {"workload": name} for rank in range(2)}, **PATIENT)
    said = job.results()
    wanted, losses = whole_training(name)
    halves = [job.weights(rank) for rank in range(2)]
    assert {key.split(".")[0] for key in halves[0]} == {"discriminator"}
    assert {key.split(".")[0] for key in halves[1]} == {"generator"}
    for key, tensor in (halves[0] | halves[1]).items():
        torch.testing.assert_close(tensor, wanted[key], rtol=1e-5, atol=1e-6, msg=key)
    assert said[0]["losses"] == {key: pytest.approx(column, rel=1e-5) for key, column in losses.items()}
    assert said[1]["losses"] == {}
    images_bytes, orders_bytes = distributed_rank.GLOBAL_BATCH * 28 * 28 * 4, 16
    assert said[1]["bytes_sent"] == said[0]["bytes_received"] == STEPS * (batches - 1) * images_bytes
    assert said[0]["bytes_sent"] == said[1]["bytes_received"] == STEPS * (images_bytes + (batches + 1) * orders_bytes)
    for rank in range(2):
        assert all(seconds > 0 for seconds in said[rank]["steps"]["communicate_s"])


def test_collectives_measure_every_message_alike_on_all_ranks_and_compute_nothing(start: Any) -> None:
    workers = 3
    orders = {rank: {"workload": "collectives", "steps": 2} for rank in range(workers)}
    said = start("all-reduce", workers, 0, orders, **PATIENT).results()
    for each in said.values():
        latencies, bandwidths = ({n: m for n, m in each["metrics"].items() if n.endswith(k)} for k in ("cy", "width"))
        assert len(latencies) == len(bandwidths) == 3 * len(MESSAGES) == 18
        # The time is that of the slowest worker, so that all of them say the same.
        assert {name: metric["samples"] for name, metric in each["metrics"].items()} == {
            name: metric["samples"] for name, metric in said[0]["metrics"].items()
        }
        for (operation, size), latency, bandwidth in zip(EXCHANGES, latencies.items(), bandwidths.items(), strict=True):
            assert latency[0] == f"{operation}-{size}-latency"
            assert bandwidth[0] == f"{operation}-{size}-bandwidth"
            assert len(latency[1]["samples"]) == 2
            # nccl-tests' doc/PERFORMANCE.md: an all-reduce moves 2(n-1)/n of its bytes over each link.
            share = 2 * (workers - 1) / workers if operation == "all-reduce" else 1
            moved = [us * rate for us, rate in zip(latency[1]["samples"], bandwidth[1]["samples"], strict=True)]
            assert moved == pytest.approx([share * MESSAGES[size]] * 2)
        assert latencies["all-reduce-64MiB-latency"]["value"] > latencies["all-reduce-4KiB-latency"]["value"]
        # What is in the smallest message is in all six, and was summed six times a step; in the largest alone, once.
        sums = [sum(range(1, workers + 1)) * workers ** (2 * times - 1) for times in range(1, len(MESSAGES) + 1)]
        assert each["message"] == each["landing"] == sums
        assert "bytes_sent" not in each
        for elapsed_s, communicate_s in zip(each["steps"]["elapsed_s"], each["steps"]["communicate_s"], strict=True):
            assert 0.9 * elapsed_s < communicate_s <= elapsed_s


@pytest.mark.parametrize("servers", [1, 2])
def test_asynchronous_workers_train_at_their_own_pace(servers: int, start: Any) -> None:
    orders = {servers: {"steps": 30}, servers + 1: {"steps": 12, "fault": "slow", "at_step": 3, "fault_s": 0.5}}
    said = start("parameter-server-async", 2, servers, orders, **PATIENT).results()
    assert [said[server]["updates"] for server in range(servers)] == [42] * servers
    for rank in (servers, servers + 1):
        losses = said[rank]["losses"]["loss"]
        assert all(map(math.isfinite, losses))
        assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("kind", "strategy", "workers", "servers", "victim", "workload"),
    [
        ("killed", "parameter-server", 2, 1, 1, "tiny"),
        ("killed", "parameter-server", 2, 2, 0, "tiny"),
        pytest.param("killed", "parameter-server-async", 2, 1, 2, "tiny", marks=pytest.mark.thorough),
        pytest.param("killed", "all-reduce", 3, 0, 1, "tiny", marks=pytest.mark.thorough),
        ("stopped", "parameter-server", 2, 1, 1, "tiny"),
        ("stopped", "parameter-server", 2, 1, 0, "tiny"),
        ("killed", "split", 2, 0, 0, "gan"),
        pytest.param("stopped", "split", 2, 0, 1, "gan", marks=pytest.mark.thorough),
        # gloo leaves who waits for such a chunk waiting, so that some ranks end without their main thread.
        pytest.param("killed", "parameter-server", 2, 1, 1, "large", marks=pytest.mark.thorough),
        ("stopped", "parameter-server-async", 2, 1, 1, "large"),
        ("killed", "all-reduce", 3, 0, 1, "large"),
        pytest.param("stopped", "all-reduce", 3, 0, 1, "large", marks=pytest.mark.thorough),
    ],
)
def test_a_rank_that_is_lost_ends_all_others_and_is_named(
    kind: str, strategy: str, workers: int, servers: int, victim: int, workload: str, start: Any
) -> None:
    orders: dict[int, dict[str, Any]] = {
        rank: {"workload": workload, "steps": 100_000} for rank in range(workers + servers)
    }
    in_mid_step = victim < servers or workload == "large"
    orders[victim] |= {"fault": kind, **({"after_s": 1.5} if in_mid_step else {"at_step": 2})}
    job = start(strategy, workers, servers, orders)
    others = [rank for rank in orders if rank != victim]
    said = job.results(others)
    for each in said.values():
        assert each["kind"] == "network"
        assert each["failed_s"] - job.fault_s(victim) < BOUND_S + 2
        # Rank 0 holds the rendezvous and ends as soon as it knows: a rank that looks only then misses rank 0.
        assert f"(rank {victim})" in each["message"] or "rendezvous" in each["message"]
        if (kind, workload) == ("stopped", "tiny"):
            assert ("is gone" if victim == 0 else "hears no more of") in each["message"]
    assert any(f"(rank {victim})" in each["message"] for each in said.values()) or workload == "gan"


def test_a_step_may_take_longer_than_the_timeout(start: Any) -> None:
    said = start("parameter-server", 2, 1, {2: {"fault": "slow", "at_step": 1, "fault_s": 1.5 * TIMEOUT_S}}).results()
    assert said[0]["updates"] == STEPS
    assert said[1]["steps"]["communicate_s"][1] > TIMEOUT_S


@pytest.mark.parametrize(
    ("strategy", "servers", "orders", "told"),
    [
        (
            "parameter-server",
            1,
            {2: {"fault": "out-of-memory", "at_step": 1}},
            {
                **dict.fromkeys(
                    (0, 1), ("network", "worker 1 (rank 2) failed: MemoryError: no more memory in the test")
                ),
                2: ("out-of-memory", "no more memory"),
            },
        ),
        (
            "parameter-server",
            1,
            {2: {"steps": 2}},
            {0: ("request", "worker 1 (rank 2) made fewer steps"), 1: ("network", "made fewer steps")},
        ),
        (
            "all-reduce",
            0,
            {rank: {"workload": "never updates"} for rank in range(2)},
            {0: ("request", "the step of never updates averages nothing between the ranks")},
        ),
    ],
)
def test_the_others_learn_why_a_rank_failed(
    strategy: str, servers: int, orders: Any, told: dict[int, tuple[str, str]], start: Any
) -> None:
    said = start(strategy, 2, servers, orders, **PATIENT).results()
    for rank, (kind, text) in told.items():
        assert said[rank]["kind"] == kind
        assert text in said[rank]["message"]


def test_a_rank_that_never_comes_is_named_by_all_others(start: Any) -> None:
    """Jobs that wait side by side."""
    alone = {"join_timeout_s": GATHER_S}
    jobs = [start("parameter-server", 2, 2, {absent: {"fault": "absent"}}, **alone) for absent in (0, 2)]
    for absent, job in zip((0, 2), jobs, strict=True):
        said = job.results()
        assert len(said) == 3
        for each in said.values():
            assert each["kind"] == "network"
            assert f"(rank {absent})" in each["message"]
            assert "did not reach" in each["message"] or "cannot reach" in each["message"]
            assert each["failed_s"] - each["began_s"] < GATHER_S + BOUND_S


def test_a_port_that_is_taken_is_named(start: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - it has to be in the way of a server of all addresses
        taken.listen()
        port = taken.getsockname()[1]
        said = start("all-reduce", 1, 0, port=port).results()
    assert said[0]["kind"] == "network"
    assert f"port {port}" in said[0]["message"]
