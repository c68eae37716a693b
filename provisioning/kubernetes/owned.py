"""The owners of the objects that the suite makes in a cluster: an entry of the ledger, and the pod that bench runs in.

An entry holds all that is needed to find the cluster again, and the kinds of objects that were made for the owner. They
are removed by their label. If bench runs in a pod, as the variables of ``FIELDS`` show, that pod owns those that it
opens, and the cluster removes them with it.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from provisioning.kubernetes.cluster import OWNER, Cluster, Object
from provisioning.kubernetes.refusals import ApiError
from suite.errors import MeasurementError, RequestError
from suite.untrusted.parse import JSON_TEXT

FORM = rf'\[{JSON_TEXT}, {JSON_TEXT}, "[a-z0-9-]+", "[a-z0-9/,.]+", "virtbench-[0-9a-f]{{12}}"\]'
GONE_WITHIN_S = 120.0
LOOKED_EVERY_S = 0.2
FORBIDDEN = 403
NOT_FOUND = 404
KUEUE = "kueue.x-k8s.io"
"""The group of the API of Kueue, which suspends Jobs until their turn."""
POD = "VIRTBENCH_POD"
UID = "VIRTBENCH_POD_UID"
NODE = "VIRTBENCH_NODE"
FIELDS = {POD: "metadata.name", UID: "metadata.uid", NODE: "spec.nodeName"}
"""The variables, by the fields of the pod that they hold."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_KUBECONFIG = ".kubeconfig"
"""The name of the file that ``use_account`` writes."""


def entry(cluster: Cluster, owner: str, kinds: Sequence[str]) -> str:
    """Return the entry, of the kind ``kubernetes``, for all objects with the owner's label.

    ``kinds`` are such as ``v1/pods`` and ``batch/v1/jobs``, in the order in which they are removed.
    """
    kind_list = ",".join(kinds)
    return json.dumps([cluster.kubeconfig, cluster.context, cluster.namespace, kind_list, owner])


def remove(entry_text: str) -> None:
    """Remove the objects of an entry; harmless if there are none. Raises BenchError."""
    config, context, namespace, kinds, owner = json.loads(entry_text)
    cluster = Cluster.connect(context, namespace, config)
    remove_selected(cluster, {OWNER: owner}, kinds.split(","))


def remove_selected(cluster: Cluster, labels: Mapping[str, str], kinds: Sequence[str]) -> list[str]:
    """Remove the objects with these labels at once, and wait until the server has none of them; return their names."""

    def names(kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in cluster.listed(kind, labels)]

    removed = []
    for kind in kinds:
        plural = kind.rpartition("/")[2]
        for name in names(kind):
            removed.append(f"{plural}/{name}")
            with not_found_is_fine():
                cluster.delete(kind, name, gracePeriodSeconds=0)
        await_gone(cluster, plural, partial(names, kind), GONE_WITHIN_S)
    return removed


def await_gone(cluster: Cluster, plural: str, remaining: Callable[[], Sequence[str]], within_s: float) -> None:
    """Wait until no name remains. Raises MeasurementError with the names that remain after this time."""
    deadline = time.monotonic() + within_s
    while names := remaining():
        if time.monotonic() > deadline:
            kubectl = f"kubectl --context {cluster.context} -n {cluster.namespace}"
            raise MeasurementError(
                f"{plural} {', '.join(names)} are still in {cluster.namespace} after {within_s:g} s",
                kind="kubernetes",
                remedy=f"see why: {kubectl} describe {plural} {names[0]}",
            )
        time.sleep(LOOKED_EVERY_S)


@contextmanager
def not_found_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise


def find(cluster: Cluster, path: str) -> Object | None:
    with not_found_is_fine():
        return cluster.get(path)
    return None


def demand_claim(cluster: Cluster, name: str) -> None:
    """Raise RequestError unless the claim is there: a pod would wait for it without an end."""
    if find(cluster, cluster.path("persistentvolumeclaims", name)) is None:
        remedy = f"kubectl -n {cluster.namespace} get pvc lists the claims; name one with --data KIND:CLAIM/PATH"
        raise RequestError(f"there is no claim {name} in the namespace {cluster.namespace}", remedy=remedy)


def demand_queue(cluster: Cluster, name: str) -> None:
    """Raise RequestError unless the namespace has this queue of Kueue.

    A Job would wait for it without an end or, where there is no Kueue to suspend it, not wait at all. Whoever may not
    list the queues is not refused: nothing else needs that right.
    """
    wanted = f"engine.queue = {name!r}"
    try:
        queues = _queues(cluster)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return
    if queues is None:
        remedy = "install Kueue there; without engine.queue the Jobs start at once"
        raise RequestError(f"{wanted}: the cluster of the context {cluster.context} has no Kueue", remedy=remedy)
    if name not in queues:
        remedy = f"choose from: {', '.join(queues)}" if queues else f"create a LocalQueue in {cluster.namespace}"
        raise RequestError(f"{wanted}: the namespace {cluster.namespace} has no such queue", remedy=remedy)


def _queues(cluster: Cluster) -> list[str] | None:
    """Return the names of Kueue's queues in the namespace; None if the cluster does not have its API."""
    group = find(cluster, f"/apis/{KUEUE}")
    if group is None:
        return None
    path = cluster.path("localqueues", group=group["preferredVersion"]["groupVersion"])
    return [item["metadata"]["name"] for item in cluster.get(path)["items"]]


def own_node() -> str | None:
    """Return the node of this pod; None outside of pods."""
    return os.environ.get(NODE)


def owners() -> list[dict[str, str]]:
    """Return this pod as the owner of those that it opens; empty outside of pods."""
    if POD not in os.environ:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": os.environ[POD],
            "uid": os.environ[UID],
        }
    ]


def use_account(directory: Path) -> None:
    """Reach the cluster with the rights of this pod's service account, by a kubeconfig that is written for it."""
    if POD not in os.environ:
        return
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    context = {"cluster": "own", "user": "own", "namespace": (ACCOUNT / "namespace").read_text()}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "own", "cluster": {"server": server, "certificate-authority": f"{ACCOUNT}/ca.crt"}}],
        "users": [{"name": "own", "user": {"tokenFile": f"{ACCOUNT}/token"}}],
        "contexts": [{"name": "own", "context": context}],
        "current-context": "own",
    }
    path = directory / _KUBECONFIG
    path.write_text(json.dumps(config))
    os.environ["KUBECONFIG"] = str(path)


def forget_account(directory: Path) -> None:
    """Remove the kubeconfig that ``use_account`` has written."""
    (directory / _KUBECONFIG).unlink(missing_ok=True)
