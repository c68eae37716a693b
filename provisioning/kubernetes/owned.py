"""The objects that the suite has made in a cluster, as an entry of the ledger, and its removal by its label.

The entry names everything that is needed to find the cluster again, and the kinds of objects that were made for the
owner: nothing else is looked at.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from provisioning.kubernetes.cluster import AWAY_AT_MOST_S, OWNER, Cluster
from provisioning.kubernetes.refusals import ApiError
from suite.errors import MeasurementError

FORM = r'\[".+", ".+", "[a-z0-9-]+", "[a-z0-9/,.]+", "virtbench-[0-9a-f]{12}"\]'
GONE_WITHIN_S = 120.0
LOOKED_EVERY_S = 0.2
NOT_FOUND = 404


def entry(cluster: Cluster, owner: str, kinds: Sequence[str]) -> str:
    """Return the entry, of the kind ``kubernetes``, for all objects with the owner's label.

    ``kinds`` are such as ``v1/pods`` and ``batch/v1/jobs``, in the order in which they are removed.
    """
    return json.dumps([cluster.kubeconfig, cluster.context, cluster.namespace, ",".join(kinds), owner])


def remove(what: str) -> None:
    """Remove what an entry names; harmless if nothing of it is there. Raises BenchError."""
    config, context, namespace, kinds, owner = json.loads(what)
    remove_selected(Cluster.connect(context, namespace, config), f"{OWNER}={owner}", kinds.split(","))


def remove_selected(cluster: Cluster, selector: str, kinds: Sequence[str]) -> list[str]:
    """Remove the objects with these labels at once, and wait until the server has none of them; return their names."""
    removed = []
    for kind in kinds:
        path, plural = cluster.path_of_kind(kind), kind.rpartition("/")[2]
        for name in _names(cluster, kind, selector):
            removed.append(f"{plural}/{name}")
            with not_found_is_fine():
                cluster.request(
                    "DELETE",
                    f"{path}/{name}",
                    patience_s=AWAY_AT_MOST_S,
                    query={"gracePeriodSeconds": 0, "propagationPolicy": "Background"},
                )
        await_gone(cluster, plural, partial(_names, cluster, kind, selector), GONE_WITHIN_S)
    return removed


def await_gone(cluster: Cluster, plural: str, left: Callable[[], Sequence[str]], within_s: float) -> None:
    """Wait until ``left`` names no object. Raises MeasurementError that names those which are there too long."""
    deadline = time.monotonic() + within_s
    while names := left():
        if time.monotonic() > deadline:
            kubectl = f"kubectl --context {cluster.context} -n {cluster.namespace}"
            raise MeasurementError(
                f"{plural} {', '.join(names)} are still in {cluster.namespace} after {within_s:g} s",
                kind="kubernetes",
                remedy=f"see why: {kubectl} describe {plural} {names[0]}",
            )
        time.sleep(LOOKED_EVERY_S)


def _names(cluster: Cluster, kind: str, selector: str) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.listed(kind, selector)]


@contextmanager
def not_found_is_fine() -> Iterator[None]:
    """Ignore that something is not there."""
    try:
        yield
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
