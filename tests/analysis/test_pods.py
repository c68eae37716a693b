"""Pods: the audit tells by the job's envelope and machines that its containers were pods, and not by an engine."""

from typing import Any

import pandas as pd
import pytest

from analysis.audit.inside import inside
from analysis.load.records import Facts, Text
from suite.job.distributed import NODE_INTERFACE, DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from tests.jobs import plan_of

POD = Facts({"container_engine.name": "kubernetes", "container_engine.network": "pod", "pod.node": "n1"})


def joined(network: Any, interface: str) -> DistributedJob:
    machines = (MachineSpec(name="n1", address="n1", interface=interface, cpus=(0,)),)
    return DistributedJob(strategy="all-reduce", workers=1, servers=0, network=network, machines=machines)


@pytest.mark.parametrize(
    ("envelope", "distributed", "pods"),
    [
        ({"node_chosen": True}, None, True),
        ({"pinning": "quota"}, None, True),
        ({}, joined("pod", "eth0"), True),
        ({}, joined("host", NODE_INTERFACE), True),
        ({}, joined("host", "eth0"), False),
        ({}, None, False),
    ],
)
def test_a_pod_contradicts_a_job_without_a_cluster_alone(
    envelope: dict[str, Any], distributed: DistributedJob | None, pods: bool
) -> None:
    own = Envelope(cpus=(0, 1), memory_bytes=GIB, threads=2, **envelope)
    scenario = "distributed" if distributed else "synthetic"
    job = plan_of(scenario=scenario, engine="kubernetes", envelope=own, distributed=distributed).job
    text = Text(job.model_dump_json())
    trial = {"path": "run/trials/a.json", "target": "container", "ablation": None, "facts": POD, "job": text}
    found = [finding.what for finding in inside(pd.DataFrame([trial]), {text: job})]
    assert job.of_pods is pods
    assert any("its job has no cluster" in what for what in found) is not pods
    assert pods == (found == [])
