"""Distributed jobs whose instances are pods: what is planned of the nodes that are named, and what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from commands.run.joined import pod_job
from provisioning.engines.base import Allotment
from provisioning.targets import Choices
from suite.errors import RequestError
from suite.job.distributed import instances_of
from suite.job.envelope import GIB, Envelope
from suite.request.request import RunRequest
from suite.request.scenario import scenario_of

ENVELOPE = Envelope(cpus=(0,), memory_bytes=2 * GIB, threads=1)
TWO = {"scenario": "distributed", "engine": "kubernetes", "node": "n1,n2", "workers": 1, "target": ("container",)}


def choices(*cpus: tuple[int, ...] | None) -> Any:
    """The choices of nodes that give these CPUs; None where they give a quota."""
    engines = [SimpleNamespace(allotment=lambda *_, found=each: Allotment(found)) for each in cpus]
    placed = [SimpleNamespace(image=None, container_engine=engine) for engine in engines]
    return SimpleNamespace(placed=placed, accelerator="tcg")


def planned(given: Any, **changed: Any) -> Any:
    request = RunRequest.of({**TWO, **changed})
    given.engine_options = {"node": request.value("node")} if request.value("node") else {}
    return pod_job(request, scenario_of(request), given, request.targets.target, ENVELOPE, lambda _: None)


def test_each_instance_has_a_node_and_the_cpus_that_it_gives() -> None:
    job, envelope = planned(choices((4,), (7,)))
    assert [(each.name, each.cpus) for each in job.machines] == [("n1", (4,)), ("n2", (7,))]
    assert (job.network, job.roles, job.lab) == ("pod", ("server", "worker"), None)
    assert envelope.pinning is None
    shares = instances_of(job, envelope)
    assert [each.envelope.cpus for each in shares] == [(4,), (7,)]
    assert {each.envelope.memory_bytes for each in shares} == {2 * GIB}, "each pod has all of it"


def test_where_a_node_gives_none_by_number_all_have_a_quota() -> None:
    job, envelope = planned(choices((4,), None))
    assert envelope.pinning == "quota"
    assert {each.cpus for each in job.machines} == {(0,)}


def test_pods_can_have_the_network_of_their_nodes() -> None:
    job, _ = planned(choices((4,), (7,)), network="host")
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
        planned(choices((4,), (7,)), **options)
    assert caught.value.remedy


def test_options_with_commas_are_one_for_each_node() -> None:
    given = {"node": "n1,n2", "containerd": "/a,/b", "context": "c"}
    image: Any = None
    placed = Choices(image, "kubernetes", "tcg", engine_options=given).placed
    assert [each.engine_options for each in placed] == [
        {"node": "n1", "containerd": "/a", "context": "c"},
        {"node": "n2", "containerd": "/b", "context": "c"},
    ]
    assert len(Choices(image, "runc", "tcg").placed) == 1
