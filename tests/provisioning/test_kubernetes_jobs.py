"""Blocks as Jobs: the manifest, what the cluster says of them, and following one to its end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioning.batch import kubernetes
from provisioning.batch.kubernetes import JobProcess
from provisioning.batch.options import KubernetesOptions
from provisioning.batch.pool import Executor
from provisioning.kubernetes import owned
from provisioning.kubernetes.cluster import MANAGED
from provisioning.kubernetes.refusals import ApiError, AwayError
from suite.errors import BenchError, RequestError
from suite.sweep.file_transfer import ENDED, GIVEN, TransferError, encode, packed, unpacked
from tests.kubernetes_schema import invalid

OPTIONS = KubernetesOptions(image="registry.example.org/virtbench-suite:0123456789ab")
FILE = encode("sweep.json", "{}")


def job(block: int = 3, **options: Any) -> dict[str, Any]:
    given = packed([FILE, GIVEN])
    return kubernetes.manifest(OPTIONS.model_copy(update=options), "bench-smoke-1a2b3c4d", block, given, ["bench"])


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return dict(manifest["spec"]["template"]["spec"])


@pytest.mark.parametrize("options", [{}, {"nodes": ("n1", "n2"), "claim": "records", "queue": "training"}])
def test_the_job_of_a_block_is_valid_in_1_20_and_today(options: dict[str, Any]) -> None:
    assert invalid(job(**options)) == []


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("context", "arn:aws:eks:us-west-1:123456789012:cluster/demo", True),
        ("context", "default/api-demo-example-org:6443/kube:admin", True),
        ("context", "gke_demo_europe-west3_demo", True),
        ("context", "kind cluster@home", True),
        ("context", "-x", False),
        ("context", "two\nlines", False),
        ("memory", "1.5Gi", True),
        ("memory", "800M", True),
        ("memory", "1Ti", True),
        ("memory", "0", False),
        ("memory", "1GiB", False),
    ],
)
def test_a_plan_takes_the_names_and_quantities_of_clusters(key: str, value: str, *, taken: bool) -> None:
    if taken:
        assert getattr(KubernetesOptions.model_validate({"image": "bench", key: value}), key) == value
        return
    with pytest.raises(ValueError, match=key):
        KubernetesOptions.model_validate({"image": "bench", key: value})


def test_a_claim_and_a_bench_outside_of_the_pod_are_refused_together() -> None:
    with pytest.raises(ValueError, match="no access to the claim"):
        KubernetesOptions(image="bench", claim="records", privileged_bench="/opt/bench")


def test_a_block_begins_with_the_files_that_it_was_given() -> None:
    template = job()["spec"]["template"]
    assert unpacked(template["metadata"]["annotations"][kubernetes.GIVEN]) == [FILE, GIVEN]


def test_more_files_than_a_job_holds_are_refused_before_it_is_made() -> None:
    with pytest.raises(RequestError, match="a Job takes"):
        kubernetes.manifest(OPTIONS, "bench-a-1", 0, "x" * 300_000, ["bench"])


@pytest.mark.parametrize("name", ["nightly", "a.b_c", "n" * 64])
def test_the_label_of_a_sweep_is_one_that_kubernetes_takes(name: str) -> None:
    label = kubernetes.label_of(f"bench-{name}-1a2b3c4d")
    assert len(f"{label}-000-abcde") <= 63
    assert label.replace("-", "").isalnum()
    assert label.endswith("-1a2b3c4d")


class FakeCluster:
    """A server with one Job at most, whose pod runs through ``phases``, one a look, and has said ``log``."""

    def __init__(self, phases: list[dict[str, Any]], log: list[str]) -> None:
        self.phases, self.log = phases, log
        self.job: dict[str, Any] | None = None
        self.created = 0
        self.breaks_after = len(log)
        self.events: list[str] = []
        self.looked = threading.Event()

    def path(self, plural: str, name: str = "", group: str = "v1", part: str = "") -> str:
        return "/".join(filter(None, (group, plural, name, part)))

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.job:
            raise ApiError("it is there", 409)
        self.created += 1
        self.job = {**manifest, "metadata": {**manifest["metadata"], "uid": "u"}, "status": {}}
        return self.job

    def get(self, path: str, **_: object) -> dict[str, Any]:
        assert path == "v1/events"
        return {"items": [{"type": "Warning", "reason": "FailedCreate", "message": message} for message in self.events]}

    def request(self, method: str, path: str, **_: object) -> dict[str, Any]:
        if method == "DELETE":
            self.job = None
            return {}
        if path.endswith("jobs"):
            return {"items": [self.job] if self.job else []}
        self.looked.set()
        if not self.phases:
            return {"items": []}
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        if self.job and "job" in phase:
            self.job["status"] = {"conditions": [{"type": phase["job"], "status": "True"}]}
        metadata = {"name": "p", "creationTimestamp": "2026", "ownerReferences": [{"uid": "u"}]}
        return {"items": [{"metadata": metadata, "spec": {"nodeName": "n1"}, "status": phase["status"]}]}

    def delete(self, kind: str, name: str) -> None:
        self.request("DELETE", f"{kind}/{name}")

    def listed(self, kind: str, labels: dict[str, str]) -> list[dict[str, Any]]:
        del labels
        found: list[dict[str, Any]] = self.request("GET", kind)["items"]
        return found

    def log_lines(self, pod: str, container: str, within_s: float) -> Iterator[str]:
        assert container == pod_of(job())["containers"][0]["name"], "a pod with a sidecar has no log without a name"
        del pod, within_s
        yield from self.log[: self.breaks_after]
        if self.breaks_after < len(self.log):
            self.breaks_after = len(self.log)
            raise AwayError("test", "gone for a moment")


UNPLACED = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}
WAITING = {"status": {"phase": "Pending", "conditions": [UNPLACED]}}
RUNNING = {"status": {"phase": "Running"}}
DONE = {"status": {"phase": "Succeeded"}, "job": "Complete"}
RECORD = encode("cell/trials/000-vm.json", "{}")


def executor(cluster: FakeCluster, tmp_path: Path, received: list[str]) -> Executor:
    def start(block: int) -> JobProcess:
        return JobProcess(cluster, SWEEP, block, job(block), tmp_path / "logs", 0.001)  # type: ignore[arg-type]

    return Executor("kubernetes-0", start, lambda _, line: received.append(line))


def test_a_block_is_followed_through_its_log_and_its_job_removed(tmp_path: Path) -> None:
    received: list[str] = []
    cluster = FakeCluster([WAITING, RUNNING, DONE], ["on n1", RECORD, ENDED])
    executor(cluster, tmp_path, received).run(3)
    assert received == [RECORD]
    assert cluster.job is None
    assert (tmp_path / "logs/kubernetes-003.log").read_text() == "on n1\n"


def test_a_log_that_breaks_off_is_read_on_and_no_record_taken_twice(tmp_path: Path) -> None:
    received: list[str] = []
    cluster = FakeCluster([RUNNING], [RECORD, "more", ENDED])
    cluster.breaks_after = 1
    executor(cluster, tmp_path, received).run(3)
    assert received == [RECORD]


def test_a_job_that_is_there_already_is_followed_and_not_made_again(tmp_path: Path) -> None:
    cluster = FakeCluster([DONE], [ENDED])
    cluster.create(job())
    executor(cluster, tmp_path, []).run(3)
    assert cluster.created == 1


def test_an_evicted_block_is_lost_with_the_clusters_reason_and_may_be_tried_again(tmp_path: Path) -> None:
    evicted = {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "job": "Failed"}
    cluster = FakeCluster([RUNNING, evicted], [RECORD])
    with pytest.raises(BenchError, match="the pod was evicted: low on memory") as raised:
        executor(cluster, tmp_path, []).run(3)
    assert not isinstance(raised.value, RequestError)
    assert cluster.job is None


def test_what_bench_refuses_in_its_pod_is_a_refusal_here(tmp_path: Path) -> None:
    ended = {"state": {"terminated": {"reason": "Error", "exitCode": RequestError.exit_code}}}
    refused = {"status": {"phase": "Failed", "containerStatuses": [ended]}, "job": "Failed"}
    with pytest.raises(RequestError, match="no such model"):
        executor(FakeCluster([refused], ["bench: no such model"]), tmp_path, []).run(3)


def test_an_image_that_the_node_cannot_get_is_a_refusal_and_leaves_no_job(tmp_path: Path) -> None:
    waiting = {"reason": "ErrImagePull", "message": 'failed to pull and unpack image "localhost/virtbench-suite:1"'}
    status = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    cluster = FakeCluster([{"status": status}], [])
    with pytest.raises(RequestError, match=r"the pod of bench does not begin: .*ErrImagePull: failed") as raised:
        executor(cluster, tmp_path, []).run(3)
    assert "imagePullCredentialsVerificationPolicy: NeverVerify" in str(raised.value.remedy)
    assert cluster.job is None


@pytest.mark.parametrize("error", [RequestError("another plan"), TransferError("no record of the block")])
def test_a_block_whose_records_are_refused_here_names_its_node_and_leaves_no_job(
    error: BenchError, tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise error

    cluster = FakeCluster([RUNNING], [RECORD, ENDED])
    follower = executor(cluster, tmp_path, [])
    follower.receive = refuse
    with pytest.raises(type(error), match=f"on n1: {error.message}"):
        follower.run(3)
    assert cluster.job is None


FORBIDDEN = 'Error creating: pods "bench-0-x" is forbidden: '


@pytest.mark.parametrize(
    ("event", "said", "remedy"),
    [
        (f'{FORBIDDEN}violates PodSecurity "baseline:latest": privileged', "admission refused it: ", "--namespace"),
        (f'{FORBIDDEN}pod rejected: RuntimeClass "kata" not found', "does not have this runtime class", "kubectl"),
    ],
)
def test_a_pod_that_is_not_admitted_is_a_refusal_and_leaves_no_job(
    event: str, said: str, remedy: str, tmp_path: Path
) -> None:
    cluster = FakeCluster([], [])
    cluster.events = [event]
    with pytest.raises(RequestError, match=f"the pod of bench does not begin: .*{said}") as raised:
        executor(cluster, tmp_path, []).run(3)
    assert event in raised.value.message
    assert remedy in str(raised.value.remedy)
    assert cluster.job is None


def test_a_pod_that_a_quota_holds_back_is_waited_for_and_says_so() -> None:
    cluster = FakeCluster([], [])
    cluster.create(job())
    cluster.events = [f"{FORBIDDEN}exceeded quota: compute"]
    (found,) = kubernetes.jobs(cluster, "bench-smoke-1a2b3c4d")  # type: ignore[arg-type]
    assert (found.state, found.reason) == ("waiting", f"no pod was made: FailedCreate: {cluster.events[0]}")


def test_stop_leaves_the_job_in_the_cluster(tmp_path: Path) -> None:
    cluster = FakeCluster([WAITING], [])
    follower = executor(cluster, tmp_path, [])

    def stop() -> None:
        cluster.looked.wait(10)
        follower.stop()

    threading.Thread(target=stop).start()
    with pytest.raises(BenchError, match="not followed any more"):
        follower.run(3)
    assert cluster.job is not None


def test_a_job_that_waits_says_why() -> None:
    cluster = FakeCluster([WAITING], [])
    cluster.create(job())
    (found,) = kubernetes.jobs(cluster, "bench-smoke-1a2b3c4d")  # type: ignore[arg-type]
    assert (found.block, found.state) == (3, "waiting")
    assert found.reason == "the pod cannot be scheduled: Insufficient memory"


class LeavingCluster(FakeCluster):
    """A server whose pods go one after the other, one look each."""

    context = namespace = "test"

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        super().__init__([], [])
        self.looks = list(looks)

    def listed(self, kind: str, labels: dict[str, str]) -> list[dict[str, Any]]:
        assert kind == "v1/pods"
        found = self.looks[0] if not MANAGED.keys() <= labels.keys() or len(self.looks) == 1 else self.looks.pop(0)
        return [{"metadata": each} for each in found if labels.items() <= each["labels"].items()]


SWEEP = "bench-smoke-1a2b3c4d"
LABELS = {**MANAGED, kubernetes.SWEEP: SWEEP, kubernetes.BLOCK: "3"}
BENCH_POD: dict[str, Any] = {"name": "bench-3", "uid": "3", "labels": LABELS}
OPENED: dict[str, Any] = {"name": "virtbench-1", "uid": "4", "labels": MANAGED, "ownerReferences": [{"uid": "3"}]}
OTHERS: list[dict[str, Any]] = [
    {**BENCH_POD, "name": "bench-4", "uid": "5", "labels": {**LABELS, kubernetes.BLOCK: "4"}},
    {**OPENED, "name": "virtbench-2", "ownerReferences": [{"uid": "5"}]},
]
BLOCK_3 = kubernetes.BlockJob(f"{SWEEP}-003", "running", "on n1", "bench-3", begun=True, block=3)


def test_removal_waits_until_the_pods_of_the_blocks_and_those_they_opened_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owned, "LOOKED_EVERY_S", 0.001)
    cluster = LeavingCluster([BENCH_POD, OPENED, *OTHERS], [OPENED, *OTHERS], [OPENED], OTHERS)
    kubernetes.remove_all(cluster, SWEEP, [BLOCK_3])  # type: ignore[arg-type]
    assert cluster.looks == [OTHERS], "the pods of other blocks are not waited for"


def test_a_pod_that_stays_is_named_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "LOOKED_EVERY_S", 0.001)
    monkeypatch.setattr(kubernetes, "GONE_WITHIN_S", 0.01)
    with pytest.raises(BenchError, match="pods virtbench-1 are still in test") as raised:
        kubernetes.remove_all(LeavingCluster([BENCH_POD], [OPENED]), SWEEP, [BLOCK_3])  # type: ignore[arg-type]
    assert "describe pods virtbench-1" in str(raised.value.remedy)
