"""Jobs that wait in a queue of Kueue: the stand-in's (see ``tests.stand_ins.kueue``), and queues that are not there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from commands.sweep.backends import kubernetes
from commands.sweep.backends.dispatch import Executor
from commands.sweep.backends.kubernetes import SWEEP_LABEL, JobProcess
from provisioning.batch.options import KubernetesOptions
from provisioning.kubernetes import owned
from provisioning.kubernetes.owned import demand_queue
from provisioning.kubernetes.refusals import ApiError
from suite.errors import RequestError
from suite.sweep.file_transfer import ENDED, GIVEN, encode, packed
from tests.provisioning.conftest import raises
from tests.provisioning.kubernetes.namespace import Namespace
from tests.stand_ins.kueue import GROUP, VERSION, QueuedNamespace

SWEEP = "bench-smoke-1a2b3c4d"
OPTIONS = KubernetesOptions(image="registry.example.org/virtbench-suite:0123456789ab", queue="training")
RECORD = encode("cell/trials/000-vm.json", "{}")
JOBS = {SWEEP_LABEL: SWEEP}


def job(block: int, *records: str) -> dict[str, Any]:
    return kubernetes.manifest(OPTIONS, SWEEP, block, packed([encode("sweep.json", "{}"), *records, GIVEN]))


def run(cluster: Namespace, block: int, place: Path, receive: Callable[[int, str], None]) -> list[int]:
    """Run the block to its end; return how many files each of its Jobs began with."""
    received: list[str] = []
    files: list[int] = []

    def make_job() -> dict[str, Any]:
        files.append(len(received))
        return job(block, *received)

    def keep(number: int, line: str) -> None:
        received.append(line)
        receive(number, line)

    def start(_: int) -> JobProcess:
        return JobProcess(cluster, make_job, place / "logs", 0.001)

    Executor(f"kubernetes-{block}", start, keep).run(block)
    return files


def test_blocks_run_as_their_queue_admits_them_and_none_beside_another(tmp_path: Path) -> None:
    cluster = QueuedNamespace(log=[RECORD, ENDED])
    received: list[tuple[int, str]] = []
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run, cluster, block, tmp_path, lambda *line: received.append(line)) for block in range(3)]
    assert [ended.result() for ended in runs] == [[0]] * 3
    assert sorted(received) == [(block, RECORD) for block in range(3)]
    assert max(map(len, cluster.admitted)) == 1
    assert not cluster.objects


def test_a_block_that_is_preempted_is_queued_again_with_the_records_that_it_has(tmp_path: Path) -> None:
    cluster = QueuedNamespace(log=[RECORD, ENDED], breaks=[1])
    received: list[str] = []

    def receive(block: int, line: str) -> None:
        received.append(line)
        cluster.preempted.append(f"{SWEEP}-{block:03d}")
        cluster.log[:] = [ENDED]

    assert run(cluster, 0, tmp_path, receive) == [0, 1]
    assert received == [RECORD]
    admitted = (f"{SWEEP}-000",)
    assert [names for names, _ in groupby(cluster.admitted)] == [admitted, (), admitted, ()]
    assert [change.partition(" ")[0] for change in cluster.changes] == ["POST", "DELETE", "POST", "DELETE"]


def test_a_block_that_is_preempted_before_its_first_record_waits_in_the_same_job(tmp_path: Path) -> None:
    admitted = (f"{SWEEP}-000",)
    cluster = QueuedNamespace(log=[RECORD, ENDED], preempted=[*admitted])
    received: list[str] = []
    assert run(cluster, 0, tmp_path, lambda _, line: received.append(line)) == [0]
    assert received == [RECORD]
    assert [names for names, _ in groupby(cluster.admitted)] == [admitted, (), admitted, ()]
    assert [change.partition(" ")[0] for change in cluster.changes] == ["POST", "DELETE"]


def test_a_job_that_waits_for_its_queue_says_so_and_a_stop_removes_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "LOOKED_EVERY_S", 0.001)
    cluster = QueuedNamespace()
    for block in (0, 1):
        kubernetes.submit(cluster, job(block))
    running, waiting = [kubernetes.jobs(cluster, JOBS) for _ in range(3)][-1]
    assert (running.state, running.reason, running.begun) == ("running", "on n1", True)
    assert (waiting.state, waiting.reason, waiting.begun) == ("waiting", "the Job is suspended: Job suspended", False)
    assert "kubectl get workloads" in str(waiting.hindrance and waiting.hindrance.remedy)
    kubernetes.remove_all(cluster, SWEEP, [waiting])
    assert [left.block for left in kubernetes.jobs(cluster, JOBS)] == [0]


def test_a_queue_that_is_not_there_is_refused_with_those_that_are() -> None:
    demand_queue(QueuedNamespace(), "training")
    with raises(RequestError, "engine.queue = 'traning': the namespace lab has no such queue", "training, batch"):
        demand_queue(QueuedNamespace(queues=("training", "batch")), "traning")
    with raises(RequestError, "has no such queue", "create a LocalQueue in lab"):
        demand_queue(QueuedNamespace(queues=()), "training")


def test_without_kueue_a_queue_is_refused_for_its_jobs_would_not_wait() -> None:
    with raises(RequestError, "the cluster of the context here has no Kueue", "the Jobs start at once"):
        demand_queue(Namespace(), "training")


@pytest.mark.parametrize("path", [f"/apis/{GROUP}", f"/apis/{VERSION}/namespaces/lab/localqueues"])
def test_whoever_may_not_list_the_queues_is_not_refused(path: str) -> None:
    demand_queue(QueuedNamespace(refusals={path: ApiError("it is forbidden", 403)}), "unknown")
    with raises(ApiError, "it is broken"):
        demand_queue(QueuedNamespace(refusals={path: ApiError("it is broken", 500, remedy="mend it")}), "training")
