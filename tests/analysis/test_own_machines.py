"""Ratios between targets that each have a machine of their own, and records that were on another one."""

from pathlib import Path
from typing import Any

import pytest

from analysis.audit.audit import audit
from analysis.compare.comparison import compare
from analysis.load.records import load
from suite.records.environment import Environment, Environments
from suite.targets import TARGETS, VMS, OwnMachine

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


def test_ratios_between_machines_are_formed_and_marked(tmp_path: Path, save: Any) -> None:
    for target in TARGETS:
        places = Environments(host=Environment(hostname="here"), target=facts(target))
        save("run", target=target, machines=MACHINES, environment=places)
    (group,) = compare(load([tmp_path / "run"])).groups
    marks = {summary.target: summary.marks for summary in group.targets}
    other = ("other machine, disk",)
    assert marks == {"bare-metal": (), "container": (), "vm": other, "container-vm": other}
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
    tmp_path: Path, save: Any, target: str, changes: dict[str, Any], said: str | None
) -> None:
    places = Environments(host=Environment(), target=facts(target, **changes))
    save("run", target=target, machines=MACHINES, environment=places)
    found = [one.what for one in audit(load([tmp_path / "run"])).findings if one.kind == "inside"]
    assert (found == []) if said is None else any(said in text for text in found), found
