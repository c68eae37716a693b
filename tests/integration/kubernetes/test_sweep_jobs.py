"""Sweeps as Jobs of a genuine cluster: the trials that were planned, none lost or twice where a kubelet is killed.

And a CronJob that fires one.
"""

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from provisioning.images.image import current
from provisioning.images.suite import build_suite
from provisioning.kubernetes.cluster import MANAGED
from provisioning.kubernetes.cluster import Cluster as Api
from provisioning.kubernetes.owned import demand_queue, find
from suite.errors import RequestError
from suite.plan import Plan
from tests.integration.bench import BENCH, REPOSITORY, bench, records_in
from tests.integration.kubernetes.conftest import names
from tests.integration.machine import wait_for
from tests.integration.remote_sweep import RemoteSweep
from tests.kubernetes_cluster.cluster import Cluster, import_everywhere
from tests.provisioning.conftest import raises

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PLAN = """
name = "pods"
targets = ["container"]
blocks = {blocks}
warmup_blocks = 0
[options]
profile = "smoke"
engine = "kubernetes"
registry = "localhost"
[envelope]
cpus = 1
[engine]
kind = "kubernetes"
image = {image}
nodes = [{node}]
poll_s = 0.5
"""
BINDING = """
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}Binding
metadata: {{name: {role}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {role}}}
subjects: [{{kind: ServiceAccount, name: virtbench, namespace: default}}]
"""
BOUND = {"virtbench": "Role", "virtbench-submit": "Role", "virtbench-nodes": "ClusterRole"}
ACCOUNT = """
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: virtbench, namespace: default}
"""
VOLUME = """
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: firings}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {{path: {path}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: firings, namespace: default}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: firings
  resources: {{requests: {{storage: 1Gi}}}}
"""


KUEUE = "kueue.x-k8s.io"
OF_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LOCAL_QUEUES: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"localqueues.{KUEUE}"},
    "spec": {
        "group": KUEUE,
        "scope": "Namespaced",
        "names": {"kind": "LocalQueue", "plural": "localqueues", "singular": "localqueue"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_a_queue_is_looked_up_in_the_api_of_kueue(api: Api) -> None:
    """Its controller needs a newer server: what is genuine here is how a server serves its API, or does not.

    This one, built by a newer Go than it was made for, ends the connection when it is to store a custom object.
    """
    with raises(RequestError, "the cluster of the context .* has no Kueue"):
        demand_queue(api, "training")
    api.request("POST", OF_DEFINITIONS, LOCAL_QUEUES)
    try:
        path = api.path("localqueues", group=f"{KUEUE}/v1beta1")
        wait_for("the queues of Kueue", lambda: find(api, path) is not None, lambda: path)
        with raises(RequestError, "has no such queue", "create a LocalQueue in default"):
            demand_queue(api, "training")
    finally:
        api.request("DELETE", f"{OF_DEFINITIONS}/localqueues.{KUEUE}")


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of bench on every node, and the account that its pods have, with the roles of the documentation."""
    reference, archive = build_suite(current(), print)
    import_everywhere(archive, reference)
    roles = "---\n".join((REPOSITORY / f"docs/guide/roles/{name}.yaml").read_text() for name in ("pods", "jobs"))
    place = tmp_path_factory.mktemp("role") / "role.yaml"
    bindings = "".join(BINDING.format(role=role, kind=kind) for role, kind in BOUND.items())
    create(cluster, place, roles + ACCOUNT + bindings)
    return f"localhost/{reference}"


def create(cluster: Cluster, place: Path, manifests: str) -> None:
    place.write_text(manifests)
    library: Any = kubernetes
    library.config.load_kube_config(str(cluster.kubeconfig))
    library.utils.create_from_yaml(library.client.ApiClient(), str(place))


def left() -> list[str]:
    """Return what of the suite is in the cluster: Jobs, their pods, and the pods that these have opened."""
    wanted = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    listed = ("/apis/batch/v1/jobs", "/api/v1/pods")
    return [name for path in listed for name in names(Api.connect().get(path, labelSelector=wanted))]


def wait_until_empty() -> None:
    wait_for("an empty cluster", lambda: not left(), lambda: f"left: {left()}", 180)


@pytest.fixture
def sweep(cluster: Cluster, image: str, tmp_path: Path) -> RemoteSweep:
    return RemoteSweep(tmp_path, PLAN.format(blocks=2, image=json.dumps(image), node=json.dumps(cluster.nodes[0])))


def test_blocks_run_as_jobs_and_a_killed_kubelet_costs_no_trial(sweep: RemoteSweep, cluster: Cluster) -> None:
    wait_for("the first record", lambda: bool(sweep.records()), sweep.said, 300)
    kept = sweep.records()
    if cluster.containerd:
        cluster.process("kubelet", cluster.nodes[0]).kill()
        time.sleep(1)
        cluster.restart_kubelet(cluster.nodes[0])
    sweep.end_complete(kept)
    assert "in the cluster" not in sweep.bench("status").stdout
    wait_until_empty()


def test_cancel_removes_the_jobs_and_the_next_run_completes_them(sweep: RemoteSweep) -> None:
    wait_for("a job", lambda: "block 0, running" in sweep.bench("status").stdout, sweep.said, 120)
    cancelled = sweep.bench("cancel")
    assert re.search("block [01] was removed from the cluster", cancelled.stderr)  # the first may have ended meanwhile
    assert not left(), "cancel waits until the pods are gone"
    assert sweep.end() != 0
    sweep.start()
    sweep.end_complete()
    wait_until_empty()


def test_a_plan_that_makes_its_pods_privileged_measures_the_node_itself(
    cluster: Cluster, image: str, tmp_path: Path
) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes are elsewhere, and no bench is known to be there")
    plan = PLAN.format(blocks=1, image=json.dumps(image), node=json.dumps(cluster.nodes[0]))
    plan = plan.replace('["container"]', '["bare-metal", "container"]')
    plan = plan.replace('"kubernetes"\nregistry = "localhost"', '"runc"')
    plan += f"privileged_bench = {json.dumps(BENCH)}\n"
    records = RemoteSweep(tmp_path, plan).end_complete()
    assert {record.target for record in records.values()} == {"bare-metal", "container"}
    assert all(record.job.layers.engine == "runc" for record in records.values())
    wait_until_empty()


@pytest.fixture
def volume(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory behind the claim ``firings``."""
    if not cluster.containerd:
        pytest.skip("the claim is a directory of this host, and the nodes are elsewhere")
    place = tmp_path_factory.mktemp("firings")
    place.chmod(0o777)  # the pods' user writes there
    create(cluster, place.with_suffix(".yaml"), VOLUME.format(path=place))
    return place


def test_a_cronjob_fires_a_sweep_whose_records_stay_on_the_claim(
    api: Api, cluster: Cluster, image: str, volume: Path, tmp_path: Path
) -> None:
    plan = PLAN.format(blocks=1, image=json.dumps(image), node=json.dumps(cluster.nodes[0]))
    (tmp_path / "pods.toml").write_text(f'{plan}claim = "firings"\n')
    schedule = partial(bench, "sweep", "schedule", cwd=tmp_path)

    def fired() -> list[Path]:
        return sorted(volume.glob("pods-scheduled/*/schedule.json"))

    def said() -> str:
        found = api.get("/api/v1/namespaces/default/pods")["items"]
        return "\n".join(f"{each['metadata']['name']}: {each['status']}" for each in found) + str([*volume.rglob("*")])

    schedule("pods.toml", "--every", "1m", "--with", "kubernetes")
    try:
        schedule("pods.toml", "--every", "1m", "--with", "kubernetes")  # it is replaced
        assert "pods  * * * * *" in schedule("--list").stdout
        wait_for("a firing", lambda: bool(fired()), said, 300)
    finally:
        schedule("--remove", "pods")
    told = json.loads(fired()[0].read_text())
    assert told["outcome"] == "ok", f"{told} {said()}"
    (planned,) = fired()[0].parent.glob("*/plan.json")
    (trial,) = Plan.model_validate_json(planned.read_bytes()).trials()
    assert [(each.trial_id, each.outcome.status) for each in records_in(planned.parent)] == [(trial.trial_id, "ok")]
    wait_until_empty()
