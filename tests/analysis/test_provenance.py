"""The command that repeats a run: given to bench again, it makes an equal plan."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from analysis.load.records import load
from analysis.report.provenance import provenance, run_command
from commands.run.command import run
from commands.run.request_command import request_of
from scenarios.distributed import DistributedOptions
from suite.job.distributed import DistributedJob, MachineSpec
from suite.job.envelope import GIB, Envelope
from suite.job.lab import LabSpec, parse_lab
from suite.job.profiles import PROFILES
from suite.plan import Plan
from suite.request.request import RunRequest
from suite.results.store import Run
from tests.analysis.conftest import Save
from tests.jobs import plan_of

LAB = LabSpec(nodes=4, rate="100mbit", delay="5ms")
DISTRIBUTED = DistributedJob(
    strategy="parameter-server-async", workers=2, servers=2, network="bridge", lab=LAB, comm_timeout_s=90
)
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
        "sizes": PROFILES["smoke"].sizes_of("resnet50"),
        "envelope": Envelope(cpus=(4, 5), memory_bytes=2 * GIB, threads=2),
        "trial_timeout_s": PROFILES["smoke"].trial_timeout_s,
    }
    return plan_of(**(usual | changes))


def arranged(distributed: DistributedJob) -> RunRequest:
    """Return the request for a distributed job."""
    place = {"lab": "nodes=4,rate=100mbit,delay=5ms"} if distributed.lab else {"inventory": Path("/my/hosts.toml")}
    return RunRequest.of(
        {
            "scenario": "distributed",
            "strategy": distributed.strategy,
            "workers": distributed.workers,
            **({"ps": distributed.servers} if distributed.servers else {}),
            "network": distributed.network,
            "comm_timeout": distributed.comm_timeout_s,
            **place,
        }
    )


def parsed(made: Plan) -> RunRequest:
    """Return the request that ``bench run`` reads from the command."""
    bench, command, *words = run_command(made)
    assert (bench, command) == ("bench", "run")
    return request_of(run, words)


@pytest.mark.parametrize(
    "distributed",
    [DISTRIBUTED, DISTRIBUTED.model_copy(update={"strategy": "all-reduce", "servers": 0, "network": "host"})],
)
def test_a_distributed_run_is_repeated_with_its_arrangement(distributed: DistributedJob) -> None:
    asked = parsed(plan(distributed=distributed, request=arranged(distributed)))
    ranks, told = asked.options(DistributedOptions), asked.joining
    assert (ranks.strategy, ranks.workers, told.network) == (distributed.strategy, 2, distributed.network)
    assert ranks.ps == (distributed.servers or None)
    assert parse_lab(str(told.lab)) == LAB
    assert told.comm_timeout == 90
    assert told.inventory is None


def test_a_run_on_machines_is_repeated_with_so_many_cpus_of_each() -> None:
    distributed = DISTRIBUTED.model_copy(update={"lab": None, "machines": MACHINES, "workers": 1, "servers": 1})
    told = parsed(plan(distributed=distributed, request=arranged(distributed)))
    assert (str(told.joining.inventory), told.joining.lab) == ("/my/hosts.toml", None)
    assert told.envelope.cpus == "2"


def test_pods_are_repeated_with_so_many_cpus_as_the_kubelet_gave() -> None:
    given = Envelope(cpus=(4, 5), memory_bytes=2 * GIB, threads=2, node_chosen=True)
    assert parsed(plan(scenario="synthetic", engine="kubernetes", envelope=given)).envelope.cpus == "2"


def test_what_was_asked_for_is_repeated_with_what_it_came_to() -> None:
    asked = {
        "scenario": "distributed",
        "inventory": Path("/my/hosts.toml"),
        "target": "container",
        "until": "2%",
        "max_blocks": 9,
        "budget": "2h",
        "trial_timeout": 77,
        "isa": "native",
        "comm_timeout": 90,
    }
    distributed = DISTRIBUTED.model_copy(update={"lab": None, "machines": MACHINES, "workers": 1, "servers": 1})
    found = parsed(plan(request=RunRequest.of(asked), distributed=distributed, blocks=7, engine="runc")).given()
    assert found == {
        **{name: asked[name] for name in ("scenario", "inventory", "trial_timeout", "isa", "comm_timeout")},
        "target": ("container",),
        "model": ("resnet50",),
        "engine": "runc",
        "blocks": 7,
        "warmup_blocks": 0,
        "cpus": "2",
        "memory": str(2 * GIB),
        "threads": 2,
    }


def test_a_report_has_the_command(tmp_path: Path, save: Save) -> None:
    save(scenario="distributed", distributed=DISTRIBUTED)
    Run(tmp_path / "run").begin(made := plan(distributed=DISTRIBUTED, request=arranged(DISTRIBUTED)))
    (found,) = provenance(load([tmp_path / "run"]))
    assert found.commands[0] == shlex.join(run_command(made))
    assert "--strategy parameter-server-async --workers 2 --ps 2" in found.commands[0]
    assert "--lab nodes=4,rate=100mbit,delay=5ms" in found.commands[0]
