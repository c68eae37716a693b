"""Where records were made: machines of their own, hosts that differ, and pods."""

from typing import Any

import pandas as pd
import pytest

from analysis.audit.audit import audit
from analysis.audit.inside import inside
from analysis.load.records import Facts, SharedJob
from suite.job.distributed import NODE_INTERFACE, DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.records.environment import Environment, Environments
from suite.records.fields import checked_part
from suite.targets import TARGETS, VMS, OwnMachine
from tests.analysis.conftest import Save
from tests.jobs import plan_of

MACHINES = (
    OwnMachine(name="m1", targets=("bare-metal", "container"), cpus=(0, 1)),
    OwnMachine(name="m2", targets=("vm", "container-vm"), cpus=(4, 5)),
)


def facts(target: str, **changes: Any) -> Environment:
    guest = target in VMS
    seen = {
        "userland_sha256": "a" * 64,
        "torch_cpu_capability": "AVX2",
        "cpu_model": "a CPU",
        "machine": "m2" if guest else "m1",
        "machine_disk": "ext4 on /dev/vda" if guest else "ext4 on a disk",
        "kernel": "6.1",
        "host_cpus": [4, 5] if guest else [0, 1],
        "cpus": [0, 1],
        "hypervisor": "KVM" if guest else None,
        "accelerator": None if guest else "none",
    }
    return Environment(**{**seen, **changes})


def test_ratios_between_machines_are_formed_and_marked(save: Save) -> None:
    for target in TARGETS:
        places = Environments(host=Environment(hostname="here"), target=facts(target))
        save("run", target=target, machines=MACHINES, environment=places)
    (group,) = save.compare().groups
    marks = {summary.target: summary.marks for summary in group.targets}
    assert marks == {target: ("other machine, disk",) if target in VMS else () for target in TARGETS}
    assert all(measured["throughput"].ratio for measured in group.of_kind("target").values())


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("bare-metal", {}, None),
        ("vm", {}, None),
        ("bare-metal", {"machine": "m2"}, "it was on m2, and its target is listed on m1"),
        ("vm", {"machine": None}, "it was on this machine, and its target is listed on m2"),
        ("vm", {"hypervisor": None}, "m2 is listed for vm, container-vm, and its CPU reports no hypervisor"),
        (
            "bare-metal",
            {"hypervisor": "KVM"},
            "m1 is listed for bare-metal, container, and its CPU reports a hypervisor",
        ),
        ("bare-metal", {"accelerator": "tcg"}, "it was in a virtual machine under tcg"),
    ],
)
def test_the_audit_holds_the_machine_of_a_record_against_its_job(
    save: Save, target: str, changes: dict[str, Any], said: str | None
) -> None:
    places = Environments(host=Environment(), target=facts(target, **changes))
    save("run", target=target, machines=MACHINES, environment=places)
    found = [one.what for one in audit(save.load()).findings if one.kind == "inside"]
    assert (found == []) if said is None else any(said in text for text in found), found


FACTS = {"userland_sha256": "a" * 64, "torch_cpu_capability": "AVX2", "cpu_model": "a CPU", "cpus": [0, 1]}


def of(name: str, **changes: Any) -> dict[str, Any]:
    """The environment of a record that was made on this host."""
    host = checked_part(Environment, {**FACTS, "hostname": name, "memory_bytes": 64 << 30, "kernel": "6.1"} | changes)
    return {"environment": Environments(host=host, target=checked_part(Environment, FACTS))}


def test_records_of_hosts_that_are_not_equal_are_compared_with_a_warning_that_names_the_difference(save: Save) -> None:
    for target in ("bare-metal", "container"):
        save("a", target=target, block=0, **of("a", mitigations={"mds": "on"}))
        save("b", target=target, block=1, **of("b", mitigations={"mds": "off"}, memory_bytes=32 << 30))
    (warning,) = [one for one in save.compare("a", "b").warnings if one.kind == "hosts-differ"]
    assert warning.message.endswith("(a, b): memory: a 64 GiB, b 32 GiB; mitigations of mds: not the same on a and b")


def test_equal_hosts_are_pooled_without_a_word_but_form_no_ratio_in_a_block(save: Save) -> None:
    for target in ("bare-metal", "container"):
        save(target=target, block=0, **of("a"))
        save(target=target, block=1, **of("b"))
    found = save.compare()
    assert "hosts-differ" not in [one.kind for one in found.warnings]
    assert found.groups[0].of_target("container")["throughput"].blocks == 2
    for target, host in (("bare-metal", "a"), ("container", "b")):
        save("block", target=target, **of(host))
    (refusal,) = (one for one in save.compare("block").warnings if one.kind == "incomparable")
    assert "host b against a" in refusal.message


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
    trial = {"path": "run/trials/a.json", "target": "container", "ablation": None, "facts": POD, "job": SharedJob(job)}
    found = [finding.what for finding in inside(pd.DataFrame([trial]))]
    assert job.of_pods is pods
    assert any("its job has no cluster" in what for what in found) is not pods
    assert pods == (found == [])
