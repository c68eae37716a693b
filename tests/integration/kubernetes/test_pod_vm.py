"""The target container-vm as a pod: both nodes of the test's cluster are of one kernel, which is found out."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from analysis.audit.audit import audited
from analysis.compare.comparison import compare
from analysis.load.records import load
from provisioning.isa import CPUINFO
from suite.process_identity import boot_id
from tests.integration.bench import REPOSITORY, inside, records_in, refusal, some
from tests.integration.kubernetes.test_pod import SMALL, left
from tests.integration.ssh_machines import fleet
from tests.kubernetes_cluster import cluster as fixture

pytestmark = [pytest.mark.integration, pytest.mark.thorough]
APART = f"""
import sys
from dataclasses import replace
sys.path.insert(0, {str(REPOSITORY)!r})
from provisioning.engines.kubernetes import KubernetesEngine, PodNode
from provisioning.kubernetes.node import ClusterNode
from suite.process_identity import boot_id
class Apart(PodNode):
    def run(self, argv, **how):
        done = super().run(argv, **how)
        return replace(done, stdout=done.stdout.replace(boot_id(), boot_id() + "-apart"))
boot, inside = ClusterNode.boot_id.fget, KubernetesEngine._inside
ClusterNode.boot_id = property(lambda node: boot(node) + "-apart" * (node.name == sys.argv[1]))
def _inside(engine, node, name):
    pod = inside(engine, node, name)
    return Apart(**vars(pod)) if engine.virtual else pod
KubernetesEngine._inside = _inside
from cli import main
main(sys.argv[2:])
"""
"""Runs bench with a node, and the pods on it, that say that they have booted apart; all else is as it is."""


def words(cluster: fixture.Cluster, out: Path) -> list[str]:
    container, virtual = cluster.nodes[:2]
    targets = [word for name in ("bare-metal", "container", "container-vm") for word in ("--target", name)]
    node = ["--engine", "kubernetes", "--node", f"container={container},container-vm={virtual}"]
    return ["run", *targets, *node, *SMALL, "--out", str(out)]


@pytest.mark.timeout(300)
def test_two_nodes_of_one_kernel_are_no_machine_and_a_virtual_one_on_it(
    cluster: fixture.Cluster, tmp_path: Path
) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes of a cluster of one's own may have booted apart")
    container, virtual = cluster.nodes[:2]
    said = f"--node: {container} of container and {virtual} of container-vm run under one kernel"
    assert said in refusal(*words(cluster, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert left() == []


@pytest.mark.timeout(900)
@pytest.mark.skipif("hypervisor" not in CPUINFO.read_text(), reason="this machine is no virtual one, and the nodes are")
@pytest.mark.parametrize("by_ssh", [False, True], ids=["on-this-machine", "by-ssh"])
def test_a_pod_on_a_virtual_machine_is_measured_beside_bare_metal_and_container(
    cluster: fixture.Cluster, tmp_path: Path, by_ssh: bool
) -> None:
    if not cluster.containerd:
        pytest.skip("the nodes of a cluster of one's own are not said to have booted apart")
    container, virtual = cluster.nodes[:2]
    # Both nodes have the image under this name, so that none asks a registry for it.
    asked = [sys.executable, "-c", APART, virtual, *words(cluster, tmp_path / "run"), "--registry", "localhost"]
    with fleet(tmp_path, 1) if by_ssh else nullcontext() as machines:
        asked += ["--inventory", str(machines.inventory())] if machines else []
        done = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    records = records_in(tmp_path / "run")
    targets = {record.target: inside(record) for record in records}
    assert targets.keys() == {"bare-metal", "container", "container-vm"}
    assert [record.outcome.status for record in records] == ["ok"] * 3, [record.outcome for record in records]
    assert bool(targets["bare-metal"].machine) == by_ssh
    assert {record.job.layers.accelerator for record in records} == {None}
    for target, node in (("container", container), ("container-vm", virtual)):
        seen, pod = targets[target], some(targets[target].pod)
        assert (pod.node, pod.this_machine) == (node, target == "container")
        assert pod.virtual == (target == "container-vm")
        assert (pod.boot_id == boot_id()) == (target == "container")
        assert tuple(seen.host_cpus or ()) == tuple(seen.cpus or ()) == cluster.cpus[node]
        assert seen.hypervisor, "it is recorded of every target"
        assert seen.accelerator == ("none" if target == "container" else None)
    assert cluster.cpus[container] != cluster.cpus[virtual], "each pod is held to the CPUs of its own node"
    record = next(each for each in records if each.target == "container-vm")
    assert record.conditions is None, "this machine is not the one that it ran on"
    assert record.substitutes == []
    (group,) = compare(audited(load([tmp_path / "run"]))).groups
    found = {summary.target: summary for summary in group.targets}
    assert group.of_target("container-vm")["throughput"].ratio, "normalised to bare metal"
    assert "other machine" in found["container-vm"].marks
    assert "other machine" not in found["container"].marks
    assert left() == []
