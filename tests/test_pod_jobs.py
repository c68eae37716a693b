"""Distributed jobs whose instances are pods: what is planned of the nodes that are named, and what is refused."""

from typing import Any

import pytest

from provisioning.sites.cluster import JoinedPods
from suite.errors import RequestError
from suite.job.distributed import instances_of
from suite.job.envelope import GIB
from suite.job.profiles import PROFILES
from suite.request.request import RunRequest
from tests.sites import cluster, inputs_of, pods

TWO = {"scenario": "distributed", "engine": "kubernetes", "node": "n1,n2", "workers": 1, "target": ("container",)}


def planned(*cpus: tuple[int, ...] | None, **changed: Any) -> Any:
    """Return the job on nodes that give these CPUs, None where they give a quota, and its envelope."""
    usual = {**TWO, "cpus": "1", "memory": "2G", "isa": "native"}
    request = RunRequest.of({name: value for name, value in {**usual, **changed}.items() if value is not None})
    options = {"node": request.value("node")} if request.value("node") else {}
    site, inputs = cluster(request.targets.target, joined=tuple(map(pods, cpus)), **options), inputs_of(request)
    site.refuse(inputs, {})
    part = site.part(inputs)
    return part["distributed"], part["envelope"]


def test_each_instance_has_a_node_and_the_cpus_that_it_gives() -> None:
    job, envelope = planned((4,), (7,))
    assert [(each.name, each.cpus) for each in job.machines] == [("n1", (4,)), ("n2", (7,))]
    assert (job.network, job.roles, job.lab) == ("pod", ("server", "worker"), None)
    assert envelope.pinning is None
    shares = instances_of(job, envelope)
    assert [each.envelope.cpus for each in shares] == [(4,), (7,)]
    assert {each.envelope.memory_bytes for each in shares} == {2 * GIB}, "each pod has all of it"


def test_each_pod_has_the_memory_of_the_profile_and_no_multiple_of_it() -> None:
    _, envelope = planned((4,), (7,), memory=None, profile="smoke")
    assert envelope.memory_bytes == PROFILES["smoke"].memory_bytes


def test_where_a_node_gives_none_by_number_all_have_a_quota() -> None:
    job, envelope = planned((4,), None)
    assert envelope.pinning == "quota"
    assert {each.cpus for each in job.machines} == {(0,)}


def test_pods_can_have_the_network_of_their_nodes() -> None:
    job, _ = planned((4,), (7,), network="host")
    assert job.network == "host"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"node": None}, "2 instances .* need a node each"),
        ({"node": "n1"}, "--node n1: 2 instances"),
        ({"node": "n1,n1"}, "--node n1,n1: 2 instances"),
        ({"workers": 2}, "3 instances"),
        ({"target": ("bare-metal", "container")}, "which no other target runs on"),
        ({"network": "bridge"}, "--network bridge is a network on this machine"),
        ({"lab": "nodes=3,rate=1gbit"}, "--lab nodes=3,rate=1gbit is a network on this machine"),
        ({"data": "generated"}, "the nodes of a cluster have no data set of this machine"),
    ],
)
def test_what_pods_of_several_nodes_cannot_have_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        planned((4,), (7,), **options)
    assert caught.value.remedy


def test_options_with_commas_are_one_for_each_node() -> None:
    site = cluster(node="n1,n2", containerd="/a,/b", context="c")
    placed = JoinedPods(site.choices, beside=site).placed
    assert [engine.settings for engine in placed] == [
        {"node": "n1", "containerd": "/a", "context": "c"},
        {"node": "n2", "containerd": "/b", "context": "c"},
    ]
    assert len(JoinedPods(cluster().choices, beside=site).placed) == 1
