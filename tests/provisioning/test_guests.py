"""Guests: KVM, vector instructions, libvirt, machines of an inventory, and what is said of one that failed."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from provisioning import ledger
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.lab import tap
from provisioning.machines import accelerator, qemu_command, qmp
from provisioning.machines import qemu as qemu_machine
from provisioning.machines.accelerator import PROGRAM, KvmProbe, choose, choose_common, probe_kvm
from provisioning.machines.libvirt import LIBVIRT
from provisioning.machines.qemu import _guest, _kernel_settings
from provisioning.machines.qemu_command import Topology, topology_of
from provisioning.machines.running import explained
from provisioning.nodes import LocalNode
from provisioning.remote.machine import Machine
from provisioning.remote.network import DEVICE, routed
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.training import Synthetic
from suite.errors import BenchError, CommandError, MeasurementError, RequestError
from suite.interfaces import Completed, Instance
from suite.job.ablations import properties_of
from suite.job.properties import AS_IT_IS
from suite.process_identity import boot_id
from suite.results.store import StoreError
from tests.own_directories import held_in
from tests.provisioning.conftest import MakeImage, Program, fake_node, raises, running_qemu
from tests.rendered import TAP, VM

MTU = Completed(0, json.dumps([{"mtu": 1450}]), "")


def machines(count: int, **answers: Completed) -> list[Instance]:
    said = {
        ("ip", "-json", "link", "show"): MTU,
        ("sysctl", "-n"): Completed(0, "1\n", ""),
        **{tuple(words.split("_")): answer for words, answer in answers.items()},
    }
    return [Instance(fake_node(said, name=f"n{n}"), f"10.0.0.{n}", "eth0") for n in range(1, count + 1)]


def test_every_machine_knows_the_way_to_the_guests_of_all_others() -> None:
    found = machines(3)
    with routed(found) as taps:
        assert [tap.cidr for tap in taps] == ["10.245.1.2/24", "10.245.2.2/24", "10.245.3.2/24"]
        assert len({tap.mac for tap in taps}) == 3
        ran = [" ".join(argv) for argv in cast("Any", found[1].node).ran]
        assert f"ip link set dev {DEVICE} mtu 1450 up" in ran
        ways = [line for line in ran if line.startswith(("ip route", "ip rule"))]
        assert len(ways) == 6
        assert ways[4:] == [f"ip route add 10.245.{n}.0/24 via 10.0.0.{n} dev eth0" for n in (1, 3)]
    *undone, device, last = [" ".join(argv) for argv in cast("Any", found[1].node).ran][len(ran) :]
    assert undone == [line.replace(" add ", " delete ") for line in reversed(ways)]
    assert (device, last.startswith("python3 -I -c")) == (f"ip link delete dev {DEVICE}", True), "forwarding ends last"


def test_machines_with_a_router_between_them_are_refused_by_name() -> None:
    found = machines(2, **{"ip_route_add_10.245.2.0/24": Completed(2, "", "Error: Nexthop has invalid gateway.")})
    with (
        raises(MeasurementError, r"n1 cannot send to guests by way of 10\.0\.0\.2", "on one network"),
        routed(found),
    ):
        pass


def nodes(*answers: dict[tuple[str, ...], Completed]) -> list[Machine]:
    own = {("uname", "-m"): Completed(0, PROGRAM.removeprefix("qemu-system-"), "")}
    return [cast("Machine", fake_node({**own, **each}, name=f"n{n}")) for n, each in enumerate(answers, start=1)]


def test_one_machine_without_kvm_means_emulation_on_all_and_one_of_another_architecture_is_refused(
    make_image: MakeImage,
) -> None:
    image, said = make_image(files={"boot/vmlinuz": "kernel"}), list[str]()
    found = nodes({}, {("test", "-r", "/dev/kvm"): Completed(1, "", "")})
    assert choose_common(found, "auto", image, said.append) == "tcg"
    assert "on n2 KVM is not usable" in said[0]
    with pytest.raises(RequestError, match="--accel kvm: on n2 KVM is not usable"):
        choose_common(found, "kvm", image, said.append)
    assert choose_common(nodes({}, {}), "auto", image, said.append) == "kvm"
    with pytest.raises(RequestError, match="n1 is riscv64"):
        choose_common(nodes({("uname", "-m"): Completed(0, "riscv64\n", "")}), "tcg", image, print)


class Socket(list[str]):
    """A QEMU that says these lines, whatever it is told."""

    def write(self, words: str) -> int:
        return len(words)

    def flush(self) -> None: ...


def test_the_answer_of_qemu_is_found_behind_events_and_one_that_refuses_or_is_gone_says_so(node: LocalNode) -> None:
    def told(*answers: dict[str, object]) -> Any:
        lines = [json.dumps(answer) for answer in ({"event": "RESUME"}, *answers)]
        return qmp.ask(cast("Any", Socket(lines)), "query-cpus-fast")

    cpus = [{"cpu-index": 1, "thread-id": 11}, {"cpu-index": 0, "thread-id": 10}]
    assert qemu_command.vcpu_threads(told({"return": cpus})) == [10, 11]
    with pytest.raises(qmp.RefusedError, match="query-cpus-fast: no such command"):
        told({"error": {"desc": "no such command"}})
    with pytest.raises(qmp.RefusedError, match="query-cpus-fast: QEMU has ended"):
        told()
    with pytest.raises(CommandError):
        qemu_command.execute(node, "/no/such/socket", "quit")


NAME = "virtbench-vm-0123456789ab"


@pytest.mark.parametrize(
    "what",
    ["libvirt:other@qemu:///system", f"libvirt:{NAME}@qemu+ssh://other/system", f"libvirt:{NAME}@qemu:///system --all"],
)
def test_an_entry_of_the_ledger_that_names_anything_else_is_left_alone(what: str) -> None:
    with pytest.raises((ledger.LedgerError, RequestError)), ledger.holding("machine", what):
        pass


def test_what_libvirt_cannot_do_is_refused_with_the_reason() -> None:
    image = cast("Image", None)
    assert "no machine type microvm" in str(LIBVIRT.hindrance(properties_of("microvm"), image))
    with pytest.raises(RequestError, match="network namespace"):
        LIBVIRT.check_lab()
    with pytest.raises(RequestError, match="--ablate libvirt: it is the machine provider of the run already"):
        refuse_ablation("libvirt", Here(Choices(image, "runc", "tcg", provider="libvirt")), "reference", Synthetic())


def test_a_kernel_that_locked_up_is_the_reason_and_says_what_to_do(node: LocalNode) -> None:
    hung = "[   32.4] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [runc:145]\n"
    process = node.start(["sh", "-c", 'printf %s "$1"', "sh", hung + "and more\n" * 1000])
    machine = running_qemu(process)
    machine.console.close()
    error = explained(MeasurementError("ssh outlived its time limit", kind="command"), machine)
    said = "the guest's kernel locked up: ssh outlived its time limit"
    assert (error.kind, error.message) == ("guest-locked-up", said)
    assert "--out" in str(error.remedy)


Qemu = Callable[[str], Path]


@pytest.fixture
def qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program) -> Qemu:
    """``qemu(script)``: what the test's QEMU does, which counts its starts; a /dev/kvm opens."""
    (tmp_path / "kvm").touch()
    monkeypatch.setattr(accelerator, "KVM", tmp_path / "kvm")
    monkeypatch.setattr(accelerator, "PROGRAM", "qemu-of-the-test")
    monkeypatch.setattr(accelerator, "PROBE_WITHIN_S", 60.0)  # a script answers at once, but on a busy machine
    return lambda script: program(accelerator.PROGRAM, f'echo >> "$0.starts"\n{script}')


def starts(qemu: Path) -> int:
    counted = qemu.with_name(f"{qemu.name}.starts")
    return len(counted.read_text()) if counted.exists() else 0


def test_where_no_guest_boots_auto_falls_to_tcg_and_kvm_is_refused_with_the_reason(qemu: Qemu) -> None:
    program = qemu("echo first >&2; echo 'Could not access KVM' >&2; exit 1")
    reason = "/dev/kvm opens, but QEMU ended with status 1: Could not access KVM"
    assert choose("tcg") == ("tcg", "asked for")
    assert starts(program) == 0, "nothing was tried"
    assert choose("auto") == ("tcg", f"KVM is not usable: {reason}")
    with raises(RequestError, f"KVM is not usable: {reason}", "--accel tcg"):
        choose("kvm")


def reboot(kept: Path, _: MakeImage) -> None:
    kept.write_text(kept.read_text().replace(boot_id(), "another"))


@pytest.mark.parametrize(
    ("status", "change", "tried"),
    [
        pytest.param(33, None, 1, id="a sector that runs"),
        pytest.param(1, None, 1, id="a sector that hangs"),
        pytest.param(33, reboot, 2, id="another boot"),
        pytest.param(1, reboot, 2, id="another boot of one where it hangs"),
        pytest.param(33, lambda _, make_image: make_image(), 2, id="an image has a kernel, which may hang"),
        pytest.param(1, lambda _, make_image: make_image(), 1, id="no kernel runs where a sector hangs"),
        *(
            pytest.param(33, lambda kept, _, text=text: kept.write_text(text), 2, id=text)
            for text in ("nothing", "{}", "[]", '{"usable": true}')
        ),
    ],
)
def test_the_answer_is_kept_for_as_long_as_it_holds(
    qemu: Qemu, make_image: MakeImage, home: Path, status: int, change: Callable[..., object] | None, tried: int
) -> None:
    program, kept = qemu(f"exit {status}"), home / "cache/kvm.json"
    first = probe_kvm()
    assert (first.usable, first.evidence) == (status == 33, "a boot sector")
    if change:
        change(kept, make_image)
    second = probe_kvm()
    assert starts(program) == tried
    assert second == first or tried == 2
    assert second.boot_id == boot_id()
    assert probe_kvm() == second
    assert KvmProbe.model_validate_json(kept.read_bytes()) == second


def test_a_guest_that_runs_the_boot_sector_proves_kvm(qemu: Qemu, home: Path) -> None:
    program = qemu('for word in "$@"; do echo "$word"; done > "$(dirname "$0")/said"; exit 33')
    assert choose("auto") == choose("kvm") == ("kvm", "a guest (a boot sector) boots under it")
    words = (program.parent / "said").read_text().splitlines()
    assert words[:2] == ["-accel", "kvm"]
    sector = (home / "cache/boot-sector.img").read_bytes()
    assert (len(sector), sector[510:]) == (512, b"\x55\xaa")
    assert any(str(home / "cache/boot-sector.img") in word for word in words)


def test_a_guest_that_hangs_is_given_up_in_time_and_nothing_of_it_is_left(
    qemu: Qemu, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "PROBE_WITHIN_S", 0.3)
    qemu("exec sleep 600")
    probe = probe_kvm()
    assert not probe.usable
    assert probe.reason.startswith("/dev/kvm opens, but a guest did not boot under it within")
    assert probe.took_s < 60
    assert held_in(home / "ledger") == []


def test_a_guest_that_was_too_slow_is_tried_again_after_minutes(qemu: Qemu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "PROBE_WITHIN_S", 0.3)
    program = qemu("exec sleep 600")
    assert choose("auto")[0] == "tcg"
    assert (choose("auto")[0], starts(program)) == ("tcg", 1), "not every command waits for it"
    program = qemu("exit 33")
    assert choose("auto")[0] == "tcg"
    monkeypatch.setattr(accelerator, "TIME_OUT_KEPT_S", 0)
    assert choose("auto")[0] == "kvm", "the host was busy for a while"


@pytest.mark.parametrize("asking", [lambda: choose("kvm")[0] == "kvm", lambda: probe_kvm(anew=True).usable])
def test_who_demands_kvm_asks_anew(qemu: Qemu, asking: Callable[[], bool]) -> None:
    qemu("exit 1")
    assert not probe_kvm().usable
    qemu("exit 33")
    assert not probe_kvm().usable
    assert asking()
    assert probe_kvm().usable, "that it booted is kept"


def test_the_kernel_of_the_image_ends_in_order_where_the_sector_has_a_status_of_its_own(
    qemu: Qemu, home: Path, make_image: MakeImage
) -> None:
    make_image()
    qemu("exit 33")
    assert not probe_kvm().usable, "33 is the sector's, not the kernel's"
    qemu("exit 0")
    (home / "cache/kvm.json").unlink()
    assert probe_kvm().reason == "a guest (the image's kernel) boots under it"


def test_an_accident_of_the_probe_is_not_kept(qemu: Qemu, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qemu("exit 33")
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "boot", Mock(side_effect=BenchError("cannot start it: Too many open files")))
        assert "Too many open files" in probe_kvm().reason
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "write_atomic", Mock(side_effect=StoreError("No space left on device")))
        assert probe_kvm().usable
    assert not (home / "cache/kvm.json").exists()
    assert probe_kvm().usable


def test_what_a_host_lacks_is_told_and_asked_again(qemu: Qemu, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert "group kvm" in probe_kvm().reason
    assert probe_kvm().reason == "qemu-of-the-test is not installed"
    accelerator.KVM.unlink()
    assert "there is no " in probe_kvm().reason
    assert not (home / "cache/kvm.json").exists()
    accelerator.KVM.touch()
    qemu("exit 33")
    assert probe_kvm().usable


def lines_of_sys(places: dict[int, tuple[int, int]], nodes: dict[int, str]) -> list[str]:
    """Return what grep prints of /sys for CPUs with their socket and core, and for NUMA nodes."""
    cpus = "/sys/devices/system/cpu"
    of_cpus = [
        f"{cpus}/cpu{cpu}/topology/{name}:{number}"
        for cpu, place in places.items()
        for name, number in zip(("physical_package_id", "core_id"), place, strict=True)
    ]
    return [*of_cpus, *(f"/sys/devices/system/node/node{node}/cpulist:{text}" for node, text in nodes.items())]


SIBLINGS = {0: (0, 0), 1: (0, 1), 8: (0, 0), 9: (0, 1)}
TWO = {0: (0, 0), 1: (0, 1), 4: (1, 0), 5: (1, 1)}


@pytest.mark.parametrize(
    ("cpus", "places", "nodes", "expected"),
    [
        ((0, 1, 8, 9), SIBLINGS, {0: "0-15"}, Topology((0, 8, 1, 9), 1, 2)),
        ((0, 1), SIBLINGS, {0: "0-15"}, Topology((0, 1))),
        ((0, 1, 8), SIBLINGS, {0: "0-15"}, Topology((0, 1, 8))),
        ((0, 1, 4, 5), TWO, {0: "0-3", 1: "4-7"}, Topology((0, 1, 4, 5), 2, 1, ((0, (0, 1)), (1, (2, 3))))),
        ((4, 5), TWO, {0: "0-3", 1: "4-7"}, Topology((4, 5), 1, 1, ((1, (0, 1)),))),
        ((0, 1, 4), TWO, {0: "0-3", 1: "4-7"}, Topology((0, 1, 4))),
        ((0, 1), {}, {}, Topology((0, 1))),
    ],
    ids=["siblings", "whole cores", "half a core", "sockets", "the second socket", "unlike sockets", "hidden"],
)
def test_a_guest_has_the_sockets_cores_and_nodes_of_its_cpus(
    cpus: tuple[int, ...], places: dict[int, tuple[int, int]], nodes: dict[int, str], expected: Topology
) -> None:
    assert topology_of(lines_of_sys(places, nodes), cpus) == expected


@pytest.mark.parametrize(("sockets", "cores", "last"), [(2, 96, 223), (4, 60, 251), (3, 65, None)])
def test_a_topology_whose_apic_ids_have_over_8_bits_is_one_socket(sockets: int, cores: int, last: int | None) -> None:
    places = {socket * cores + core: (socket, core) for socket in range(sockets) for core in range(cores)}
    given = topology_of(lines_of_sys(places, {}), tuple(places))
    if last is None:
        assert (given.sockets, given.cores) == (1, sockets * cores)
    else:
        assert (given.sockets, given.cores, given.last_apic_id) == (sockets, cores, last)


def test_a_guest_has_the_huge_pages_and_the_numa_balancing_of_its_node() -> None:
    answers = {
        ("cat", qemu_machine.HUGE_PAGES): Completed(0, "always [madvise] never\n", ""),
        ("cat", qemu_machine.NUMA_BALANCING): Completed(0, "0\n", ""),
    }
    given = [*_kernel_settings(fake_node(answers), AS_IT_IS)]
    assert given == ["transparent_hugepage=madvise", "numa_balancing=disable"]
    switched = properties_of("guest-huge-pages")
    assert next(_kernel_settings(fake_node(answers), switched)) == "transparent_hugepage=always"
    assert [*_kernel_settings(fake_node(), AS_IT_IS)] == [], "a kernel that has neither"


@pytest.mark.parametrize(("accelerated", "opens"), [("kvm", True), ("kvm", False), ("tcg", False)])
def test_packets_of_a_guest_are_moved_by_the_kernel_where_vhost_opens_and_else_the_number_is_marked(
    accelerated: accelerator.Accelerator, opens: bool, node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "vhost-net"
    if opens:
        device.touch()
    monkeypatch.setattr(tap, "VHOST", str(device))
    assert tap._has_vhost(node) is opens is device.exists(), "looking makes no file"
    plugged = replace(TAP, vhost=tap._has_vhost(node))
    assert ("vhost=on" in " ".join(tap.qemu_words(plugged))) is opens
    spec: Any = SimpleNamespace(accelerator=accelerated, properties=AS_IT_IS)
    guest = _guest(spec, replace(VM, tap=plugged, accelerator=accelerated), Mock(), {})
    assert ("network:user-space" in guest.substitutes) is (accelerated == "kvm" and not opens)
