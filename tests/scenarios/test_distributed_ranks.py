"""A distributed job as the host sees it: what the ranks say becomes one measurement, or the first failure is named."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from provisioning.machines.ssh import free_port
from scenarios import distributed
from scenarios.distributed import Distributed
from scenarios.job import digest_of_ranks
from scenarios.members import source_sha256
from scenarios.own_workload import adopt
from suite.errors import MeasurementError
from suite.interfaces import Instance, Measurement, TurnTaker
from suite.job.datasets import Dataset
from suite.job.distributed import DistributedJob
from suite.job.envelope import GIB, Envelope
from suite.job.job import Alternating, Devices
from suite.job.lab import LabSpec
from suite.job.profiles import Sizes
from suite.plan import Trial
from suite.registries import WORKLOADS
from tests.scenarios.conftest import HereNode, fails
from tests.scenarios.test_job import KEPT, STEPS, event
from tests.worker.conftest import SMALL

DISTRIBUTED = DistributedJob(strategy="parameter-server", workers=2, servers=1, network="overlay", lab=LabSpec(nodes=3))
ENVELOPE = Envelope(cpus=(0, 1, 2), memory_bytes=3 * GIB, threads=3)
EXCHANGED = {"bytes_sent": 40, "bytes_received": 30}
BEGIN = [
    event("started", 100.0),
    event("imported", 102.0),
    event("environment", 102.5, environment={"kernel": "6.1", "threads": 1}),
    event("built", 103.0),
]
SERVER = [*BEGIN, event("done", 110.0, exchanged=EXCHANGED)]


def worker(span_s: float) -> list[str]:
    return [
        *BEGIN,
        event("warmup", 104.0, step=1, of=2),
        event("warmup", 105.0, step=2, of=2),
        event("measuring", 105.5, steps=3),
        event("measured", 105.5 + span_s),
        event("steps", 116.0, steps=STEPS, usage={}, weights_sha256=f"{span_s:064.0f}"),
        event("done", 116.5, exchanged=EXCHANGED, drawn=[f"{span_s:064.0f}"]),
    ]


@pytest.fixture
def planned(trial: Trial) -> Trial:
    return trial.with_job(scenario="distributed", distributed=DISTRIBUTED, envelope=ENVELOPE)


def instances(nodes: Sequence[Any]) -> list[Instance]:
    return [Instance(node, f"10.0.0.{number}", "eth0") for number, node in enumerate(nodes, start=1)]


@pytest.fixture
def measure(planned: Trial, observer: Any) -> Callable[..., Measurement]:
    """``measure(*nodes)``: what comes of a job whose ranks are on these; ``job`` has other fields of it."""

    def measured(*nodes: Any, trial: Trial = planned, **job: Any) -> Measurement:
        return Distributed().measure(trial.with_job(**job), instances(nodes), observer, nullcontext())

    return measured


@pytest.fixture
def nodes(scripted: Any) -> list[Any]:
    """A server, a worker that takes 4 s, and one that takes 8."""
    return [scripted(*SERVER), scripted(*worker(4.0)), scripted(*worker(8.0))]


def serverless(trial: Trial, strategy: Any, **job: Any) -> Trial:
    parts = DistributedJob(strategy=strategy, workers=2, servers=0, network="overlay", lab=LabSpec(nodes=2))
    return trial.with_job(scenario="distributed", distributed=parts, envelope=ENVELOPE, **job)


def test_the_throughput_is_the_sum_of_the_workers_and_every_rank_is_recorded(measure: Any, nodes: list[Any]) -> None:
    measured = measure(*nodes)
    assert measured.throughput_per_s == 2 * 3 / 4.0 + 2 * 3 / 8.0
    roles = [(rank.role, rank.address) for rank in measured.ranks]
    assert roles == [("server", "10.0.0.1"), ("worker", "10.0.0.2"), ("worker", "10.0.0.3")]
    assert [rank.throughput_per_s for rank in measured.ranks] == [None, 1.5, 0.75]
    assert [rank.sent_bytes for rank in measured.ranks] == [40, 40, 40]
    assert measured.ranks[1].compute_s == 4.0
    assert measured.weights_sha256 == f"{4:064}", "the steps and the weights are the first worker's"
    assert measured.drawn_sha256 == digest_of_ranks([f"{4:064}", f"{8:064}"]), "each worker draws by itself"
    told = [json.loads(node.started[0][1])["distributed"] for node in nodes]
    assert [each["rank"] for each in told] == [0, 1, 2]
    assert {(each["master"], each["timeout_s"]) for each in told} == {("10.0.0.1", 60)}
    assert all("OMP_WAIT_POLICY=passive" in node.started[0][0] for node in nodes)


def test_the_devices_of_all_workers_count_and_a_server_has_none_of_them(
    planned: Trial, measure: Any, nodes: list[Any]
) -> None:
    """The founding paper's two GPUs for each of two workers."""
    several = planned.with_job(devices=Devices(device="cuda", devices=2, parallel="parameter-cpu"))
    measured = measure(*nodes, trial=several)
    assert several.job.global_batch == 2 * 2 * 2, "batch, devices, workers"
    assert [rank.throughput_per_s for rank in measured.ranks] == [None, 2 * 2 * 3 / 4.0, 2 * 2 * 3 / 8.0]
    assert measured.throughput_per_s == 2 * 2 * 3 / 4.0 + 2 * 2 * 3 / 8.0
    told = [json.loads(node.started[0][1]) for node in nodes]
    given = [(each["device"], each["devices"], each["parallel"]) for each in told]
    assert given == [("cpu", 1, "none"), *[("cuda", 2, "parameter-cpu")] * 2]
    recorded = {name: measured.details[name] for name in ("device", "devices", "parallel")}
    assert recorded == several.job.devices.model_dump(exclude={"sync"})


def test_a_split_gan_is_proven_by_the_weights_of_both_ranks(trial: Trial, measure: Any, nodes: list[Any]) -> None:
    measured = measure(*nodes[1:], trial=serverless(trial, "split"))
    assert measured.weights_sha256 == digest_of_ranks([f"{4:064}", f"{8:064}"])


def test_a_round_of_messages_is_one_of_all_workers(planned: Trial, measure: Any, nodes: list[Any]) -> None:
    rounds = planned.with_job(shares_batch=True)
    assert measure(*nodes, trial=rounds).throughput_per_s == 2 * 3 / 4.0
    assert (rounds.job.global_batch, planned.job.global_batch) == (2, 4)


@pytest.mark.parametrize(("strategy", "keeper"), [("all-reduce", 0), ("split", 1)])
def test_the_rank_that_has_the_generator_keeps_it(
    strategy: str, keeper: int, trial: Trial, measure: Any, scripted: Any
) -> None:
    said = [*worker(4.0)[:-1], event("model", 116.2, epoch=None, training_s=4.0, **KEPT), worker(4.0)[-1]]
    nodes = [scripted(*(said if rank == keeper else worker(4.0))) for rank in range(2)]
    measured = measure(*nodes, trial=serverless(trial, strategy, keep_model="last"))
    told = [json.loads(node.started[0][1]).get("keep_model") for node in nodes]
    assert told == ["last" if rank == keeper else None for rank in range(2)]
    assert [one.weights_sha256 for one in measured.kept] == [*measured.models] == [KEPT["weights_sha256"]]


def test_who_lost_a_peer_is_not_blamed_for_it(measure: Any, scripted: Any) -> None:
    lost = event("error", 106.0, kind="network", message="lost worker 1 (rank 2)")
    nodes = [
        scripted(*BEGIN, lost, status=1),
        scripted(*worker(4.0)[:7], 0.1, lost, status=1),
        scripted(*worker(4.0)[:7], 0.2, status=-9),
    ]
    with fails(MeasurementError, "killed", r"^worker \(rank 2\) on ") as raised:
        measure(*nodes)
    assert all(node.process.killed for node in nodes)
    assert "lost worker 1 (rank 2)" in raised.value.output_tail


def test_a_rank_that_stays_silent_is_ended_and_not_blamed(
    measure: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "LAST_WORDS_S", 0.1)
    lost = event("error", 106.0, kind="network", message="no beat of worker 0 (rank 1)")
    silent = (scripted(*BEGIN, 1.0, status=-9) for _ in range(2))
    with fails(MeasurementError, "network", "no beat of worker 0"):
        measure(scripted(*BEGIN, lost, status=1), *silent)


def test_a_job_without_a_cluster_is_refused(trial: Trial, measure: Any, scripted: Any) -> None:
    with pytest.raises(MeasurementError, match="without its instances"):
        measure(scripted(), trial=trial)


# ------------------------------------------------------------------------------------------------------ taking turns


@pytest.fixture
def in_turns(planned: Trial, tmp_path: Path) -> Trial:
    """Two rounds of two steps."""
    (tmp_path / "small.py").write_text(SMALL)
    model, sizes = adopt(str(tmp_path / "small.py")), Sizes(batch=1, image_px=16, warmup_steps=1, steps=4)
    job = {"model": model, "workload_sha256": source_sha256(WORKLOADS, model)}
    return planned.with_job(turns=Alternating(rounds=2, burst_steps=2), sizes=sizes, **job)


@pytest.fixture
def taker(in_turns: Trial, here: HereNode, observer: Any) -> Iterator[TurnTaker]:
    """A server and two workers, as programs, on loopback."""
    job = Distributed().turn_taker(in_turns, [Instance(here, "127.0.0.1", "lo", port=free_port())] * 3, observer)
    yield job
    job.kill()


def test_the_workers_of_a_job_take_their_turns_as_one(taker: TurnTaker, here: HereNode) -> None:
    taker.begin()
    assert len(here.processes) == 3
    turns = [taker.turn() for _ in range(2)]
    measured: Any = taker.end()
    assert [turn.steps for turn in turns] == [2, 2]
    workers = [rank for rank in measured.ranks if rank.role == "worker"]
    assert len(workers) == 2
    for rank in workers:
        assert 0 < rank.measured_s <= sum(turn.span_s for turn in turns)
        assert rank.throughput_per_s == pytest.approx(4 / rank.measured_s)
        assert (rank.sent_bytes or 0) > 0
    assert measured.throughput_per_s == pytest.approx(sum(rank.throughput_per_s or 0.0 for rank in workers))
    assert len(measured.steps.elapsed_s or ()) == 4
    assert not any(process.running() for process in here.processes)


def test_a_rank_that_is_killed_between_turns_is_blamed_and_the_others_end(taker: TurnTaker, here: HereNode) -> None:
    taker.begin()
    here.processes[0].kill()
    with fails(MeasurementError, "killed", r"^server \(rank 0\) on "):
        taker.turn()
    assert not any(process.running() for process in here.processes)


def test_the_epochs_are_the_first_workers_and_throughput_is_of_epochs_alone(
    planned: Trial, measure: Any, scripted: Any
) -> None:
    def of_epochs(*epochs_s: float) -> list[str]:
        told = event("steps", 116.0, steps=STEPS, usage={}, epochs_s=[*epochs_s], weights_sha256=f"{4:064}")
        return [*worker(8.0)[:-2], told, worker(8.0)[-1]]

    sizes = planned.job.sizes
    assert sizes
    data = Dataset(kind="mnist", directory="/d", sha256="ab" * 32, listing_sha256="cd" * 32, images=4, size_bytes=40)
    trained = planned.with_job(sizes=sizes.model_copy(update={"epochs": 3}))
    trained = trained.with_job(dataset=None, checkpoint=None)
    nodes = [scripted(*SERVER), scripted(*of_epochs(4.0, 1.0, 1.0)), scripted(*of_epochs(2.0, 2.0, 2.0))]
    measured: Any = measure(*nodes, trial=trained)
    assert measured.epochs.seconds == [4.0, 1.0, 1.0]
    assert measured.throughput_per_s == pytest.approx(2 * 3 / 6.0 + 2 * 3 / 6.0)
    assert trained.with_job(dataset=data).job.epoch_steps == 1, "a step of both workers takes four images"
