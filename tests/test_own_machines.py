"""The machines of an inventory as a plan sees them: what each gives and is given, and what all of them have."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commands.run.validate import ablations_of
from provisioning.hindrances import hindrances, refuse_ablation
from provisioning.images.image import Image
from provisioning.layers.userland import UserlandLayer
from provisioning.remote.discovery import DiscoveredMachine, Discovery, attest, needed
from provisioning.sites.base import Site
from provisioning.sites.cards import GUESTS_WITHOUT_GPUS
from provisioning.sites.machines import Machines, discovered_choices, on_machine
from scenarios.distributed import Distributed
from suite.differ import Host
from suite.errors import RequestError
from suite.interfaces import Completed, Instance
from suite.inventory import Inventory, InventoryNode
from suite.job.ablations import properties_of
from suite.job.envelope import GIB, Envelope
from suite.job.job import CpuCapability
from suite.records.course import envelope_differences
from suite.records.environment import Environment
from suite.registries import SCENARIOS
from suite.request.request import RunRequest
from suite.targets import TARGETS, VMS, OwnMachine
from tests.jobs import plan_of
from tests.sites import IMAGE, cluster, here, inputs_of, machines

HERE, GUESTS = ("bare-metal", "container"), ("vm", "container-vm")
ENVELOPE = Envelope(cpus=(0, 1), memory_bytes=GIB, threads=2)
MACHINES = (OwnMachine(name="m1", targets=HERE, cpus=(0, 1)), OwnMachine(name="m2", targets=GUESTS, cpus=(4, 5)))
METAL, GUEST = "flags\t\t: fpu avx2 fma\n", "flags\t\t: fpu avx2 fma hypervisor\n"


def listed(*names: str) -> Inventory:
    """Return an inventory of these machines, of which m2 is listed for virtual machines."""
    own = {"m2": {"targets": GUESTS}}
    return Inventory.model_validate({"node": [{"name": name, "host": name, **own.get(name, {})} for name in names]})


def site() -> Machines:
    return machines(listed("m1", "m2"), targets=TARGETS)


def reached(planned: InventoryNode, cpuinfo: str, boot: str) -> Any:
    """A machine that answers what it is asked for."""
    answers = {"cpuinfo": cpuinfo, "boot_id": boot, "findmnt": "ext4   /dev/vda\n", "lsblk": "\n"}

    def run(argv: list[str], **_: object) -> Completed:
        return Completed(0, next(text for word, text in answers.items() if word in " ".join(argv)), "")

    agent: Any = SimpleNamespace(clock_offset_s=lambda: 0.5)
    return SimpleNamespace(
        name=planned.name, planned=planned, run=run, facts={"accelerator": "none"}, substitutes=(), agent=agent
    )


def test_room_to_write_is_made_on_the_machine_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_: object) -> Completed:
        asked.append(argv)
        return Completed(0, "Avail\n99999999999\n", "")

    def open_stack(node: Any, layers: list[Any]) -> Any:
        assert layers[0].writable
        return nullcontext(node)

    instance = Instance(cast("Any", SimpleNamespace(name="m1", run=run, local=False, data=None)))
    monkeypatch.setattr("provisioning.sites.machines.on_machine", lambda *_: nullcontext(instance))
    monkeypatch.setattr("provisioning.sites.machines.open_stack", open_stack)
    (trial,) = plan_of(envelope=ENVELOPE, machines=MACHINES, scratch_bytes={"resnet50": 1000}).trials()
    with site().opened(trial) as (opened,):
        assert str(opened.node.data).startswith("/var/lib/virtbench/scratch/")
        assert asked[0] == ["mkdir", "-p", "--", opened.node.data]
    assert asked[-1] == ["rm", "-r", "-f", "--", opened.node.data]


@pytest.mark.parametrize(
    ("given", "plan", "events"),
    [
        (site(), {"targets": ("bare-metal", *GUESTS)}, ["sync_image m1", "sync_image m2", "docker loads on m2"]),
        (
            cluster(HERE, machines(listed("m1"), targets=HERE), node="n1"),
            {"targets": HERE, "ablations": ("runc", "seccomp")},
            ["sync_image m1", "runc loads on m1"],
        ),
    ],
)
def test_every_machine_is_sent_and_loads_what_its_own_targets_need(
    given: Site, plan: dict[str, Any], events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No disk of a guest that nobody boots, and no engine where none is used, as that of pods."""
    done: list[str] = []

    def engine(name: str) -> Any:
        store = SimpleNamespace(make=pytest.fail)
        return SimpleNamespace(
            name=name, site=None, guest_store=store, load=lambda node, *_: done.append(f"{name} loads on {node.name}")
        )

    def machine(planned: Any) -> Any:
        return nullcontext(SimpleNamespace(name=planned.name, planned=planned))

    monkeypatch.setattr("provisioning.sites.machines.machine", machine)
    monkeypatch.setattr("provisioning.sites.here.get_engine", engine)
    for name in ("sync_image", "sync_file"):
        fake = lambda node, *_, name=name: done.append(f"{name} {node.name}")  # noqa: E731
        monkeypatch.setattr(f"provisioning.sites.machines.{name}", fake)
    monkeypatch.setitem(given.choices.__dict__, "container_engine", engine("docker"))
    monkeypatch.setattr(Image, "file", lambda _, name: Path(name))
    given.prepare(plan_of(**plan, envelope=ENVELOPE), lambda _: None)
    assert done == events


def test_two_nodes_that_are_one_machine_are_refused() -> None:
    boots: dict[str, str] = {}
    first, second = listed("m1", "m2").nodes
    attest(reached(first, METAL, "1"), boots)
    with pytest.raises(RequestError, match="m1 and m2 have the same boot ID"):
        attest(reached(second, GUEST, "1"), boots)
    attest(reached(second, GUEST, "2"), boots)


@pytest.mark.parametrize(
    ("node", "cpuinfo", "accelerator", "substitutes"),
    [
        ({}, METAL, "none", ()),
        ({"virtual": True}, METAL, "none", ()),
        ({"virtual": True}, GUEST, "none", ("machine:virtual",)),
        ({"targets": GUESTS, "virtual": True}, GUEST, None, ()),
    ],
)
def test_bare_metal_that_is_virtual_is_a_substitute_at_every_number(
    node: dict[str, Any],
    cpuinfo: str,
    accelerator: str | None,
    substitutes: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = InventoryNode.model_validate({"name": "m1", "host": "m1", **node})
    monkeypatch.setattr("provisioning.sites.machines.machine", lambda *_: nullcontext(reached(planned, cpuinfo, "1")))
    with on_machine(planned, (2, 3), IMAGE, None) as instance:
        facts = dict(instance.node.facts)
        assert instance.node.substitutes == substitutes
    assert facts == {"accelerator": accelerator, "host_cpus": [2, 3], "machine_disk": "ext4 on /dev/vda"}


def test_the_machines_are_discovered_compared_and_given_equal_shares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def one(name: str, cpus: tuple[int, ...], kernel: str) -> DiscoveredMachine:
        host = Host(hostname=name, kernel=kernel)
        return DiscoveredMachine(cpus, 8 * GIB, name, capability="avx2", clock_offset_s=0.0, host=host)

    asked: list[Any] = []

    def discover(*given: Any) -> Discovery:
        asked.extend(given)
        return Discovery((one("m1", (0, 1, 2), "6.1"), one("m2", (4, 5), "6.12")), "runc")

    monkeypatch.setattr("provisioning.sites.machines.discover", discover)
    (tmp_path / "hosts.toml").write_text(
        '[[node]]\nname = "m0"\nhost = "m0"\ntargets = ["container"]\n'
        '[[node]]\nname = "m1"\nhost = "m1"\ntargets = ["bare-metal"]\n'
        '[[node]]\nname = "m2"\nhost = "m2"\ntargets = ["vm"]\n'
    )
    words = {"target": ("bare-metal", "vm"), "memory": "1G", "inventory": tmp_path / "hosts.toml", "ablate": ("isa",)}
    notes = list[str]()
    inputs = inputs_of(RunRequest.of(words), notes.append)
    part = Machines.resolve(inputs).part(inputs)
    assert [node.name for node in asked[0].nodes] == ["m1", "m2"], "nobody reaches a machine without a target"
    assert asked[2:4] == [("bare-metal", "bare-metal"), None]
    assert notes == ["the machines differ: kernel: m1 6.1, m2 6.12"]
    assert {machine.name: machine.cpus for machine in part["machines"]} == {"m1": (0, 1), "m2": (4, 5)}
    assert (part["cpu_capability"], part["layers"].accelerator) == ("avx2", None)


def test_a_job_over_several_instances_refuses_a_list_of_targets(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text("".join(f'[[node]]\nname = "m{n}"\nhost = "m{n}"\ntargets = ["vm"]\n' for n in range(3)))
    with pytest.raises(RequestError, match="lists targets at m0, and every target of distributed is on all machines"):
        Machines.resolve(inputs_of(RunRequest.of({"scenario": "distributed", "inventory": str(path)})))


@pytest.mark.parametrize(
    ("ablation", "said"),
    [
        ("microvm", "the suite boots no virtual machine"),
        ("virtiofs", "the suite boots no virtual machine"),
        ("disk-cache", "the suite boots no virtual machine"),
        ("data-layer", "data is laid into layers on this machine only"),
    ],
)
def test_ablations_that_would_switch_nothing_there_are_refused(ablation: str, said: str) -> None:
    assert said in list(hindrances(properties_of(ablation), site(), "reference"))


@pytest.mark.parametrize(
    ("target", "hypervisor", "said"),
    [
        ("bare-metal", None, []),
        ("bare-metal", "KVM", ["m1 is listed for bare-metal, container, and its CPU reports a hypervisor"]),
        ("vm", "KVM", []),
        ("container-vm", None, ["m2 is listed for vm, container-vm, and its CPU reports no hypervisor"]),
    ],
)
def test_every_trial_attests_its_machine_again(target: str, hypervisor: str | None, said: list[str]) -> None:
    (trial,) = plan_of(targets=(target,), envelope=ENVELOPE, machines=MACHINES).trials()
    cpus = trial.envelope.cpus
    inside = Environment(cpus=[0, 1], host_cpus=list(cpus), memory_bytes=GIB, threads=2, hypervisor=hypervisor)
    assert cpus == ((4, 5) if target in VMS else (0, 1))
    assert envelope_differences(trial, trial.envelope, inside) == said


@pytest.mark.parametrize("target", ["bare-metal", "vm"])
def test_a_gpu_vm_of_the_user_is_a_machine_whose_gpus_the_target_gets(target: str) -> None:
    request = RunRequest.of({"target": TARGETS, "device": "cuda", "gpus": "1", "inventory": Path("/hosts.toml")})
    image = IMAGE.model_copy(update={"cuda": "13.0"})
    inputs = replace(inputs_of(request), image=image)
    choices = discovered_choices(inputs, Discovery((), "runc", ()))
    gpu_vms = replace(site(), choices=choices)
    (trial,) = plan_of(targets=(target,), envelope=ENVELOPE, machines=MACHINES).trials()
    (layer,) = gpu_vms.layers(trial, ENVELOPE)
    assert isinstance(layer, UserlandLayer)
    assert layer.gpus == ("1",)


@pytest.mark.parametrize("target", sorted(VMS))
def test_guests_of_a_joined_job_with_gpus_are_refused_before_a_machine_is_reached(target: str) -> None:
    """As on this machine: whatever else an IOMMU group holds, no device is given to a guest that the suite boots."""
    wanted = request(target=(target,), device="cuda", inventory=Path("/hosts.toml"))
    with pytest.raises(RequestError, match=GUESTS_WITHOUT_GPUS) as refused:
        Machines.resolve(inputs_of(wanted))
    assert refused.value.remedy == "leave vm and container-vm out"


LATE = ("gvisor", "charliecloud", "apptainer")
"""Engines whose containers can join no network that is made after their start."""


def request(**options: Any) -> RunRequest:
    return RunRequest.of({"scenario": "distributed", "memory": "2G", "profile": "smoke", **options})


def discovered(number: int, cpus: tuple[int, ...], capability: CpuCapability = "avx2") -> DiscoveredMachine:
    return DiscoveredMachine(cpus, 8 * GIB, f"n{number}", capability=capability, clock_offset_s=0.0)


def made(*found: DiscoveredMachine) -> Machines:
    """Return the site of a joined job on these machines."""
    return machines(listed(*(each.name for each in found)), *found, joined=True)


def test_the_machines_of_a_plan_have_equal_shares_by_rank_or_are_refused_by_name() -> None:
    site = made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5)), discovered(3, (0, 1, 2)))
    envelopes = site.envelopes(inputs_of(request()))
    assert [each.cpus for each in envelopes] == [(0, 1), (4, 5), (0, 1)]
    assert {(each.memory_bytes, each.threads) for each in envelopes} == {(2 * GIB, 2)}
    with pytest.raises(RequestError, match=r"on n2: --cpus 3: this host allows CPUs 4-5"):
        made(discovered(1, (0, 1, 2, 3)), discovered(2, (4, 5))).envelopes(inputs_of(request(cpus="3")))
    isolated = replace(discovered(2, (4, 5)), isolated=(5,))
    with pytest.raises(RequestError, match="on n2: --cpus 4-5: CPUs 5 are isolated"):
        made(discovered(1, (0, 1)), isolated).envelopes(inputs_of(request()))
    with pytest.raises(RequestError, match=r"on n1: 16\.0 GiB of memory asked for"):
        made(discovered(1, (0,))).envelopes(inputs_of(request(memory="16G")))
    found = made(discovered(1, (0, 1)), discovered(2, (0, 1)), discovered(3, (2, 3)))
    distributed = found.part(inputs_of(request(workers=2, ps=1)))["distributed"]
    given = [(each.name, each.address, each.cpus) for each in distributed.machines]
    assert given == [("n1", "10.0.0.1", (0, 1)), ("n2", "10.0.0.2", (0, 1)), ("n3", "10.0.0.3", (2, 3))]
    assert (distributed.lab, distributed.comm_timeout_s) == (None, 60)


def test_machines_need_what_packs_a_data_set_for_their_guests_alone() -> None:
    assert "mke2fs" in needed(("vm",), "qemu", with_data=True)
    assert "mke2fs" not in needed(("vm",), "qemu", with_data=False)
    assert "mke2fs" not in needed(("container",), "qemu", with_data=True)


def test_a_switch_of_the_network_is_refused_where_the_network_is_an_option() -> None:
    with pytest.raises(RequestError, match="--network says how"):
        refuse_ablation("network", here("podman"), "reference", Distributed())
    refuse_ablation("network", cluster(), "reference", Distributed())


@pytest.mark.parametrize(
    ("network", "other", "said"),
    [
        ("host", "docker", "docker cannot start"),
        *((network, name, f"--network {network}: {name}") for network in ("host", "overlay") for name in LATE),
    ],
)
def test_another_engine_must_join_the_network_of_the_lab_too(
    monkeypatch: pytest.MonkeyPatch, network: str, other: str, said: str
) -> None:
    monkeypatch.setattr("commands.run.validate.refuse_ablation", lambda *_: None)
    with pytest.raises(RequestError, match=said):
        ablations_of(inputs_of(request(network=network, ablate=(other,))), here("podman"), None)


@pytest.mark.parametrize(("site", "scenario"), [(here("podman"), "serve"), (cluster(), "distributed")])
@pytest.mark.parametrize("way", ["cluster-ip", "node-port"])
def test_a_way_through_a_service_is_refused_where_no_service_is(site: Site, scenario: str, way: str) -> None:
    with pytest.raises(RequestError, match=f"--ablate {way} is about a service of a cluster"):
        refuse_ablation(way, site, "reference", SCENARIOS.get(scenario))


def test_machines_of_different_make_are_capped_to_what_all_have() -> None:
    notes: list[str] = []
    envelope = Envelope(cpus=(0,), memory_bytes=GIB, threads=1)
    site = made(discovered(1, (0,), "avx512"), discovered(2, (0,), "avx2"))
    assert site.capability(envelope, notes.append, always=False) == "avx2"
    assert "avx2" in notes[0]
    assert made(discovered(1, (0,)), discovered(2, (0,))).capability(envelope, notes.append, always=False) is None
