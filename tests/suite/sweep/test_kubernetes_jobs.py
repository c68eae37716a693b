"""Blocks as Jobs: the manifest, what the cluster says of them, and following one to its end."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from commands.sweep.backends import kubernetes
from commands.sweep.backends.base import job_name
from commands.sweep.backends.dispatch import Executor
from commands.sweep.backends.kubernetes import BLOCK_LABEL, SWEEP_LABEL, JobProcess
from provisioning.batch.options import KubernetesOptions
from provisioning.kubernetes import owned
from provisioning.kubernetes.cluster import MANAGED
from suite.errors import BenchError, MeasurementError, RequestError
from suite.sweep.file_transfer import ENDED, GIVEN, TransferError, encode, packed
from tests.kubernetes_schema import invalid
from tests.provisioning.kubernetes.namespace import Namespace
from tests.suite.sweep.conftest import make_sweep

OPTIONS = KubernetesOptions(image="registry.example.org/virtbench-suite:0123456789ab")
FILE = encode("sweep.json", "{}")


def job(block: int = 3, **options: Any) -> dict[str, Any]:
    given = packed([FILE, GIVEN])
    return kubernetes.manifest(OPTIONS.model_copy(update=options), SWEEP, block, given)


@pytest.mark.parametrize("options", [{}, {"nodes": ("n1", "n2"), "claim": "records", "queue": "training"}])
def test_the_job_of_a_block_is_valid_in_1_20_and_today(options: dict[str, Any]) -> None:
    assert invalid(job(**options)) == []


def test_more_files_than_a_job_holds_are_refused_before_it_is_made() -> None:
    with pytest.raises(RequestError, match="a Job takes"):
        kubernetes.manifest(OPTIONS, "bench-a-1", 0, "x" * 300_000)


@pytest.mark.parametrize("name", ["nightly", "a.b_c", "n" * 64])
def test_the_label_of_a_sweep_is_one_that_kubernetes_takes(name: str, tmp_path: Path) -> None:
    label = kubernetes.label(make_sweep(name=name), tmp_path)
    assert len(f"{label}-000-abcde") <= 63
    assert label.replace("-", "").isalnum()
    assert label.endswith(job_name(make_sweep(), tmp_path)[-9:])


@dataclass(frozen=True)
class Looked(Namespace):
    """A server whose pods are others with each look: those of a Job run through ``phases``, or ``looks`` has them.

    A phase has the status of the pod, its name if it is not p, and the condition of the Job; without a status no pod is
    there.
    """

    phases: list[dict[str, Any]] = field(default_factory=list)
    looks: list[list[dict[str, Any]]] = field(default_factory=list)
    looked: threading.Event = field(default_factory=threading.Event)

    def listed(self, kind: str, labels: Mapping[str, str], patience_s: float = 0) -> list[dict[str, Any]]:
        if kind != "v1/pods":
            return super().listed(kind, labels, patience_s)
        self.looked.set()
        if self.looks:
            every = MANAGED.keys() <= labels.keys() and len(self.looks) > 1
            found = self.looks.pop(0) if every else self.looks[0]
            return [{"metadata": each} for each in found if labels.items() <= each["labels"].items()]
        made = next((each for place, each in self.objects.items() if "/jobs/" in place), None)
        if not self.phases or not made:
            return []
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        if "job" in phase:
            made["status"] = {"conditions": [{"type": phase["job"], "status": "True"}]}
        if "status" not in phase:
            return []
        owner = [{"uid": made["metadata"]["uid"]}]
        metadata = {"name": phase.get("pod", "p"), "creationTimestamp": "2026", "ownerReferences": owner}
        return [{"metadata": metadata, "spec": {"nodeName": "n1"}, "status": phase["status"]}]


def cluster_of(phases: list[dict[str, Any]], log: list[str], *refused: str) -> Looked:
    events = [{"type": "Warning", "reason": "FailedCreate", "message": message} for message in refused]
    return Looked(phases=phases, log=log, status={}, happened=events)


UNPLACED = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}
WAITING = {"status": {"phase": "Pending", "conditions": [UNPLACED]}}
RUNNING = {"status": {"phase": "Running"}}
DONE = {"status": {"phase": "Succeeded"}, "job": "Complete"}
RECORD = encode("cell/trials/000-vm.json", "{}")


def executor(cluster: Looked, tmp_path: Path, received: list[str]) -> Executor:
    def start(block: int) -> JobProcess:
        return JobProcess(cluster, lambda: job(block), tmp_path / "logs", 0.001)

    return Executor("kubernetes-0", start, lambda _, line: received.append(line))


def test_a_block_is_followed_through_its_log_and_its_job_removed(tmp_path: Path) -> None:
    received: list[str] = []
    cluster = cluster_of([WAITING, RUNNING, DONE], ["on n1", RECORD, ENDED])
    executor(cluster, tmp_path, received).run(3)
    assert received == [RECORD]
    assert not cluster.objects
    assert (tmp_path / "logs/kubernetes-003.log").read_text() == "on n1\n"


def test_a_log_that_breaks_off_is_read_on_and_no_record_taken_twice(tmp_path: Path) -> None:
    received: list[str] = []
    cluster = cluster_of([RUNNING], [RECORD, "more", ENDED])
    cluster.breaks.append(1)
    executor(cluster, tmp_path, received).run(3)
    assert received == [RECORD]


def test_a_job_that_is_there_already_is_followed_and_not_made_again(tmp_path: Path) -> None:
    cluster = cluster_of([DONE], [ENDED])
    cluster.create(job())
    executor(cluster, tmp_path, []).run(3)
    assert [change.partition(" ")[0] for change in cluster.changes] == ["POST", "DELETE"]


def test_a_job_whose_pod_was_replaced_is_made_anew_with_the_records_that_it_had_sent(tmp_path: Path) -> None:
    """A newer server makes another pod in the place of one that was evicted, which would measure all trials again."""
    received: list[str] = []
    another = RUNNING | {"pod": "q"}
    cluster = cluster_of([RUNNING, another, another], [RECORD, ENDED])
    cluster.breaks.append(1)
    executor(cluster, tmp_path, received).run(3)
    assert received == [RECORD, RECORD]
    assert [change.partition(" ")[0] for change in cluster.changes] == ["POST", "DELETE", "POST", "DELETE"]


FORBIDDEN = 'Error creating: pods "bench-0-x" is forbidden: '
PSA, CLASS = 'violates PodSecurity "baseline:latest": privileged', 'pod rejected: RuntimeClass "kata" not found'
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
EXITED = {"state": {"terminated": {"reason": "Error", "exitCode": RequestError.exit_code}}}
PULLS = {"reason": "ErrImagePull", "message": 'failed to pull and unpack image "localhost/virtbench-suite:1"'}
REFUSED = {"status": {"phase": "Failed", "containerStatuses": [EXITED]}, "job": "Failed"}
UNPULLED = {"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": PULLS}}]}}
BEGINS_NOT = "the pod of bench does not begin: .*"


@pytest.mark.parametrize(
    ("cluster", "kind", "said", "remedy"),
    [
        (([RUNNING, {"status": EVICTED, "job": "Failed"}], [RECORD]), MeasurementError, "evicted: low on memory", ""),
        (([REFUSED], ["bench: no such model"]), RequestError, "no such model", ""),
        (([UNPULLED], []), RequestError, f"{BEGINS_NOT}ErrImagePull: failed", "VerificationPolicy: NeverVerify"),
        (([], [], FORBIDDEN + PSA), RequestError, f"{BEGINS_NOT}admission refused it: .*{PSA}", "--namespace"),
        (([], [], FORBIDDEN + CLASS), RequestError, f"{BEGINS_NOT}.* this runtime class.*{CLASS}", "kubectl"),
    ],
    ids=["evicted, to be tried again", "refused by bench in its pod", "no image", "not admitted", "no runtime class"],
)
def test_a_block_that_ends_badly_says_why_and_leaves_no_job(
    cluster: tuple[Any, ...], kind: type[BenchError], said: str, remedy: str, tmp_path: Path
) -> None:
    server = cluster_of(*cluster)
    with pytest.raises(BenchError, match=said) as raised:
        executor(server, tmp_path, []).run(3)
    assert (type(raised.value), remedy in str(raised.value.remedy)) == (kind, True)
    assert not server.objects


@pytest.mark.parametrize("error", [RequestError("another plan"), TransferError("no record of the block")])
def test_a_block_whose_records_are_refused_names_its_node_and_leaves_no_job(error: BenchError, tmp_path: Path) -> None:
    cluster = cluster_of([RUNNING], [RECORD, ENDED])
    follower = executor(cluster, tmp_path, [])
    follower.receive = Mock(side_effect=error)
    with pytest.raises(type(error), match=f"on n1: {error.message}"):
        follower.run(3)
    assert not cluster.objects


QUOTA = f"{FORBIDDEN}exceeded quota: compute"


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (([WAITING], []), "the pod cannot be scheduled: Insufficient memory"),
        (([], [], QUOTA), f"no pod was made: FailedCreate: {QUOTA}"),
    ],
    ids=["no node", "a quota"],
)
def test_a_job_that_waits_says_why(cluster: tuple[Any, ...], why: str) -> None:
    server = cluster_of(*cluster)
    server.create(job())
    (found,) = kubernetes.jobs(server, {SWEEP_LABEL: SWEEP})
    assert (found.block, found.state, found.reason) == (3, "waiting", why)


def test_stop_leaves_the_job_in_the_cluster(tmp_path: Path) -> None:
    cluster = cluster_of([WAITING], [])
    follower = executor(cluster, tmp_path, [])

    def stop() -> None:
        cluster.looked.wait(10)
        follower.stop()

    threading.Thread(target=stop).start()
    with pytest.raises(BenchError, match="not followed any more"):
        follower.run(3)
    assert cluster.objects


SWEEP = "bench-smoke-1a2b3c4d"
LABELS = {**MANAGED, SWEEP_LABEL: SWEEP, BLOCK_LABEL: "3"}
BENCH_POD: dict[str, Any] = {"name": "bench-3", "uid": "3", "labels": LABELS}
OPENED: dict[str, Any] = {"name": "virtbench-1", "uid": "4", "labels": MANAGED, "ownerReferences": [{"uid": "3"}]}
OTHERS: list[dict[str, Any]] = [
    {**BENCH_POD, "name": "bench-4", "uid": "5", "labels": {**LABELS, BLOCK_LABEL: "4"}},
    {**OPENED, "name": "virtbench-2", "ownerReferences": [{"uid": "5"}]},
]
BLOCK_3 = kubernetes.BlockJob("running", "on n1", begun=True, name=f"{SWEEP}-003", pod="bench-3")


def test_removal_waits_until_pods_of_the_blocks_and_those_they_opened_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "LOOKED_EVERY_S", 0.001)
    cluster = Looked(looks=[[BENCH_POD, OPENED, *OTHERS], [OPENED, *OTHERS], [OPENED], OTHERS])
    kubernetes.remove_all(cluster, SWEEP, [BLOCK_3])
    assert cluster.looks == [OTHERS], "the pods of other blocks are not waited for"


def test_a_pod_that_stays_is_named_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr(kubernetes, "GONE_WITHIN_S", 0.01)
    with pytest.raises(BenchError, match="pods virtbench-1 are still in lab") as raised:
        kubernetes.remove_all(Looked(looks=[[BENCH_POD], [OPENED]]), SWEEP, [BLOCK_3])
    assert "describe pods virtbench-1" in str(raised.value.remedy)
