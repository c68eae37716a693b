"""The command that repeats a run: given to bench again, it makes an equal plan."""

import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from analysis.load.records import load
from analysis.report.provenance import provenance, run_command
from commands.run.command import run
from suite.job.distributed import Cluster, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec, parse_lab
from suite.job.profiles import PROFILES
from suite.plan import Plan
from suite.results.store import Run
from tests.analysis.conftest import Save
from tests.jobs import plan_of

LAB = LabSpec(nodes=4, rate="100mbit", delay="5ms")
CLUSTER = Cluster(strategy="parameter-server-async", workers=2, servers=2, network="bridge", lab=LAB, comm_timeout_s=90)
MACHINES = tuple(
    MachineSpec(name=name, address="10.0.0.1", interface="eth0", cpus=cpus)
    for name, cpus in (("a", (4, 5)), ("b", (0, 1)))
)


def plan(**changes: Any) -> Plan:
    usual: dict[str, Any] = {
        "scenario": "distributed",
        "targets": ("container",),
        "models": ("resnet50",),
        "profile": "smoke",
        "sizes": PROFILES["smoke"].workloads["resnet50"],
        "envelope": Envelope(cpus=(4, 5), memory_bytes=2 * GIB, threads=2),
        "trial_timeout_s": PROFILES["smoke"].trial_timeout_s,
    }
    return plan_of(**(usual | changes))


def parsed(made: Plan) -> dict[str, Any]:
    """The options of ``bench run`` as click reads them from the command."""
    bench, command, *words = run_command(made)
    assert (bench, command) == ("bench", "run")
    with click.Context(run) as context:
        run.parse_args(context, words)
        return context.params


@pytest.mark.parametrize(
    "cluster", [CLUSTER, CLUSTER.model_copy(update={"strategy": "all-reduce", "servers": 0, "network": "host"})]
)
def test_a_distributed_run_is_repeated_with_its_cluster(cluster: Cluster) -> None:
    told = parsed(plan(cluster=cluster))
    assert (told["strategy"], told["workers"], told["network"]) == (cluster.strategy, 2, cluster.network)
    assert told["servers"] == (cluster.servers or None)
    assert parse_lab(told["lab"]) == LAB
    assert told["comm_timeout"] == 90
    assert told["inventory"] is None


def test_a_run_on_machines_is_repeated_on_an_inventory_and_with_so_many_cpus_of_each() -> None:
    cluster = CLUSTER.model_copy(update={"lab": None, "machines": MACHINES, "workers": 1, "servers": 1})
    told = parsed(plan(cluster=cluster))
    assert (str(told["inventory"]), told["lab"], told["cpus"]) == ("hosts.toml", None, "2")


def test_devices_a_job_file_and_a_timeout_are_repeated() -> None:
    options: dict[str, Any] = {"device": "cuda", "devices": 2, "parallel": "ddp", "fio_job": "f" * 64}
    told = parsed(plan(scenario="synthetic", **options, trial_timeout_s=77))
    assert (told["device"], told["devices"], told["parallel"], told["trial_timeout"]) == ("cuda", 2, "ddp", 77)
    assert told["fio_job"] == Path("sha256-ffffffffffff.fio")
    assert "--trial-timeout" not in run_command(plan())


def test_a_report_has_the_command(tmp_path: Path, save: Save) -> None:
    save(scenario="distributed", cluster=CLUSTER)
    Run(tmp_path / "run").begin(made := plan(cluster=CLUSTER))
    (found,) = provenance(load([tmp_path / "run"]))
    assert found.commands[0] == shlex.join(run_command(made))
    assert (
        "--strategy parameter-server-async --workers 2 --ps 2 --lab nodes=4,rate=100mbit,delay=5ms" in found.commands[0]
    )
