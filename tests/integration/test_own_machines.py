"""Each target on a machine of its own: an sshd in a network namespace, and one in a guest, by one command."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from analysis.audit.audit import audited
from analysis.compare.comparison import compare
from analysis.load.records import load
from provisioning.images.pack import filesystem
from provisioning.isa import CPUINFO, reports_hypervisor
from provisioning.lab.tap import join, tap
from provisioning.layers.vm import VmLayer
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import QEMU
from provisioning.nodes import local_node, write_file
from provisioning.volumes import MOUNT, Volume
from suite.interfaces import Node
from suite.job.envelope import GIB, Envelope
from suite.targets import TARGETS
from tests.integration.bench import RUNC, SMALL, added_since, bench, inside, measured, ours, records, refusal
from tests.integration.booted_image import THERE, equip
from tests.integration.machine import ENVELOPE, require, require_image, require_root
from tests.integration.ssh_machines import Fleet, fleet, listed
from tests.scenarios.pictures import folder

pytestmark = [pytest.mark.integration, pytest.mark.thorough, pytest.mark.timeout(1800)]

FILES = f"{MOUNT}/files"
VIRTUAL = reports_hypervisor(CPUINFO.read_text())


class Machines(NamedTuple):
    fleet: Fleet
    guest: Node

    def inventory(self, first: str, second: str) -> Path:
        """Return an inventory with these lines at the namespace and at the guest."""
        path = self.fleet.place / "hosts.toml"
        path.write_text(listed("n1", first) + listed("n2", f'directory = "{THERE}"\ndata = "{FILES}"', second))
        return path


REAL = 'targets = ["bare-metal", "container"]' + ("\nvirtual = true" if VIRTUAL else "")
VMS = 'targets = ["vm", "container-vm"]'
SWAPPED = f"{'n2 is listed for bare-metal, container' if VIRTUAL else 'n1 is listed for vm, container-vm'}, and its CPU"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    require_root()
    require("target", "vm")
    image, envelope = require_image(), Envelope(cpus=ENVELOPE.cpus, memory_bytes=2 * GIB, threads=1)
    accelerator, _ = QEMU.choose_accelerator("auto")
    with ExitStack() as stack:
        there = tmp_path_factory.mktemp("machines")
        found = stack.enter_context(fleet(there, 2))
        place = found.lab.nodes[1]
        node = stack.enter_context(local_node(envelope.cpus, str(image.tree)))
        plugged = stack.enter_context(tap(place, node))
        volume = Volume(there / "content", there / "disk.img", writable=True)
        volume.directory.mkdir()
        filesystem(node, volume.directory, there / "disk.img", mib=1024, journal=True)
        layer = VmLayer(QEMU, GuestSpec(image, accelerator, envelope, volume=volume)).plugged(plugged)
        guest = stack.enter_context(layer.opened(place.node(node)))
        join(guest, plugged)
        _as_machine(guest, found, place.address, image.digest)
        yield Machines(found, guest)


def _as_machine(guest: Node, found: Fleet, address: str, digest: str) -> None:
    keys = "/run/virtbench/ssh"
    write_file(guest, f"{keys}/authorized_keys.more", (found.place / "authorized_keys").read_bytes())
    guest.run(["sh", "-c", f"cat {keys}/authorized_keys.more >>{keys}/authorized_keys"])
    host_key = guest.run(["ssh-keygen", "-y", "-f", f"{keys}/host_key"]).stdout
    known = found.place / "known_hosts"
    known.write_text(
        "".join(line for line in known.read_text().splitlines(keepends=True) if not line.startswith(address))
        + f"{address} {host_key}"
    )
    equip(guest, digest)


@pytest.mark.parametrize(
    "scenario",
    [("command", "--command", "true", "--profile", "smoke"), ("synthetic", *SMALL)],
    ids=["command", "synthetic"],
)
def test_all_targets_run_on_the_machines_that_are_listed_for_them(
    machines: Machines, tmp_path: Path, scenario: tuple[str, ...]
) -> None:
    image, before = require_image(), ours()
    words = ("--inventory", str(machines.inventory(REAL, VMS)), "--target", "all", *RUNC, "--memory", "1G")
    ended = bench("run", "--scenario", *scenario, *words, "--out", str(tmp_path / "run"), timeout_s=1200)
    assert "the machines differ: memory" in ended.stderr
    assert "sending the image" not in ended.stderr, "each holds the image already"
    found = records(tmp_path / "run")
    assert set(found) == set(TARGETS)
    own = machines.guest.run(["uname", "-r"]).stdout.strip()
    for target, record in found.items():
        assert record.outcome.status == "ok", record.outcome
        seen = inside(record)
        virtual = target in ("vm", "container-vm")
        assert (seen.machine, seen.kernel == own) == (("n2", True) if virtual else ("n1", False))
        assert (seen.accelerator, bool(seen.hypervisor)) == ((None, True) if virtual else ("none", VIRTUAL))
        assert (seen.userland_sha256, seen.userland_differences) == (image.digest, [])
        assert seen.machine_disk
        assert bool(seen.container_engine) == (target in ("container", "container-vm"))
        # A session of this guest has lower limits, which a command names.
        named = [name for name in record.substitutes if not name.startswith(("open-files:", "processes:"))]
        assert named == (["machine:virtual"] if VIRTUAL and not virtual else [])
        assert (record.conditions, record.job.layers.accelerator) == (None, None)
        assert {machine.name: machine.targets for machine in record.job.machines}["n2"] == ("vm", "container-vm")
    (group,) = compare(audited(load([tmp_path / "run"]))).groups
    marks = {summary.target: " ".join(summary.marks) for summary in group.targets}
    assert all(("machine" in marks[target]) == (target in ("vm", "container-vm")) for target in marks if marks), marks
    assert added_since(before) == {}


def test_machines_that_are_not_what_they_are_listed_as_are_refused(machines: Machines) -> None:
    inventory = machines.inventory(VMS, 'targets = ["bare-metal", "container"]')
    refused = refusal("run", *RUNC, "--inventory", str(inventory), "--target", "all", *SMALL)
    assert SWAPPED in refused
    assert "what to do" in refused


@pytest.mark.parametrize(
    "words",
    [
        ("real", "--model", "alexnet", "--batch", "2", "--image-px", "64", *SMALL, "--data", "imagefolder:{}"),
        ("command", "--command", "find . -type f", "--command-files", "{}", "--profile", "smoke"),
        ("probe", "--probe", "disk", "--probe", "syscall", "--profile", "smoke"),
    ],
    ids=["real", "command", "probe"],
)
def test_every_scenario_with_one_instance_runs_there(
    machines: Machines, tmp_path: Path, words: tuple[str, ...]
) -> None:
    files = folder(tmp_path / "files", 12)
    for path in files.rglob("*"):
        if path.is_file():
            write_file(machines.guest, f"{FILES}/{path.relative_to(files)}", path.read_bytes())
    asked = [word.format(files) for word in words]
    targets = ("--target", "bare-metal", "--target", "vm", "--memory", "1G")
    inventory = str(machines.inventory(REAL, VMS))
    found = measured(tmp_path / "run", "--scenario", *asked, *targets, "--inventory", inventory)
    assert {(record.target, inside(record).machine) for record in found} == {("bare-metal", "n1"), ("vm", "n2")}
    assert machines.guest.run(["find", f"{THERE}/scratch", "-mindepth", "1"], check=False).stdout == ""
