"""Clusters: in a lab the envelope is divided, on machines each gives it whole."""

import pytest
from pydantic import ValidationError

from suite.job.distributed import DistributedJob, MachineSpec, instances_of
from suite.job.envelope import Envelope
from suite.job.lab import LabSpec

ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=4 << 30, threads=2)


def machines(count: int) -> tuple[MachineSpec, ...]:
    return tuple(
        MachineSpec(name=f"n{n}", address=f"10.0.0.{n}", interface="eth0", cpus=(n, n + 1)) for n in range(1, count + 1)
    )


def distributed_job(*, lab: LabSpec | None = None, machines: tuple[MachineSpec, ...] = ()) -> DistributedJob:
    return DistributedJob(
        strategy="parameter-server", workers=2, servers=1, network="overlay", lab=lab, machines=machines
    )


def test_each_machine_gives_the_whole_envelope_on_its_own_cpus() -> None:
    planned = instances_of(distributed_job(machines=machines(3)), ENVELOPE)
    assert [each.envelope.cpus for each in planned] == [(1, 2), (2, 3), (3, 4)]
    assert {each.envelope.memory_bytes for each in planned} == {ENVELOPE.memory_bytes}
    assert {each.envelope.threads for each in planned} == {2}
    assert [each.role for each in planned] == ["server", "worker", "worker"]


def test_the_nodes_of_a_lab_share_the_envelope() -> None:
    planned = instances_of(distributed_job(lab=LabSpec(nodes=3)), ENVELOPE)
    assert {each.envelope.memory_bytes for each in planned} == {ENVELOPE.memory_bytes // 3}


@pytest.mark.parametrize(
    ("lab", "count", "said"),
    [(None, 0, "in a lab or on machines"), (LabSpec(nodes=3), 3, "in a lab or on machines"), (None, 2, "2 machines")],
)
def test_a_cluster_stands_in_one_place_with_room_for_every_rank(lab: LabSpec | None, count: int, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        distributed_job(lab=lab, machines=machines(count))
