"""Guests: under libvirt, on machines of an inventory, and what is said of one that failed."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from provisioning import ledger
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.machines import qemu_command as qemu
from provisioning.machines import qmp
from provisioning.machines.accelerator import PROGRAM, choose_common
from provisioning.machines.libvirt import LIBVIRT, URI_VARIABLE, uri, virsh
from provisioning.machines.qemu import QEMU, GuestConsole, _explained, emulated_capability
from provisioning.nodes import LocalNode
from provisioning.remote.machine import Machine
from provisioning.remote.network import DEVICE, routed
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.training import Synthetic
from suite.errors import CommandError, MeasurementError, RequestError
from suite.interfaces import Completed, Instance
from suite.job.ablations import properties_of
from tests.provisioning.conftest import MakeImage, fake_node

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
    to_guests = {"ip_route_add_10.245.2.0/24": Completed(2, "", "Error: Nexthop has invalid gateway.")}
    found = machines(2, **to_guests)
    with (
        pytest.raises(MeasurementError, match=r"n1 cannot send to guests by way of 10\.0\.0\.2") as caught,
        routed(found),
    ):
        pass
    assert "on one network" in str(caught.value.remedy)


def nodes(*answers: dict[tuple[str, ...], Completed]) -> list[Machine]:
    own = {("uname", "-m"): Completed(0, PROGRAM.removeprefix("qemu-system-"), "")}
    return [cast("Machine", fake_node({**own, **each}, name=f"n{n}")) for n, each in enumerate(answers, start=1)]


NO_KVM: dict[tuple[str, ...], Completed] = {("test", "-r", "/dev/kvm"): Completed(1, "", "")}


def test_one_machine_without_kvm_means_emulation_on_all(make_image: MakeImage) -> None:
    image, said = make_image(files={"boot/vmlinuz": "kernel"}), list[str]()
    found = nodes({}, NO_KVM)
    assert choose_common(found, "auto", image, said.append) == "tcg"
    assert "on n2 KVM is not usable" in said[0]
    with pytest.raises(RequestError, match="--accel kvm: on n2 KVM is not usable"):
        choose_common(found, "kvm", image, said.append)
    assert choose_common(nodes({}, {}), "auto", image, said.append) == "kvm"


def test_a_machine_of_another_architecture_is_refused(make_image: MakeImage) -> None:
    found = nodes({("uname", "-m"): Completed(0, "riscv64\n", "")})
    with pytest.raises(RequestError, match="n1 is riscv64"):
        choose_common(found, "tcg", make_image(), print)


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)", "avx2"),
        ("QEMU emulator version 10.0.2", "avx2"),
        ("QEMU emulator version 6.2.0 (Debian 1:6.2+dfsg-2ubuntu6)", "default"),
        ("", "default"),
    ],
)
def test_the_version_of_qemu_tells_what_its_emulation_has(version: str, level: str) -> None:
    assert emulated_capability(version) == level
    (machine,) = nodes({(PROGRAM, "--version"): Completed(0, version, "")})
    assert QEMU.guest_capability(machine, "tcg", "avx512") == level
    assert QEMU.guest_capability(machine, "kvm", "avx512") == "avx512"


def answering(path: Path, *answers: object) -> threading.Thread:
    """What QEMU says on its socket: a greeting, and to every command the next of the answers."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        there, _ = listener.accept()
        with listener, there, there.makefile("rw") as client:
            client.write(json.dumps({"QMP": {}}) + "\n")
            for answer in answers:
                client.flush()
                client.readline()
                client.write(json.dumps({"event": "RESUME"}) + "\n" + json.dumps(answer) + "\n")

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_the_threads_of_virtual_cpus_are_asked_of_qemu_in_their_order(node: LocalNode, tmp_path: Path) -> None:
    cpus = [{"cpu-index": 1, "thread-id": 11}, {"cpu-index": 0, "thread-id": 10}]
    thread = answering(tmp_path / "qmp", {"return": {}}, {"return": cpus})
    assert qemu.vcpu_threads(qemu.execute(node, str(tmp_path / "qmp"), "query-cpus-fast")) == [10, 11]
    thread.join(10)


def test_a_qemu_that_refuses_or_is_gone_says_so(node: LocalNode, tmp_path: Path) -> None:
    thread = answering(tmp_path / "qmp", {"return": {}}, {"error": {"desc": "no such command"}})
    words = [sys.executable, "-I", qmp.__file__, str(tmp_path / "qmp"), "quit"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    thread.join(10)
    assert (ended.returncode, ended.stderr.strip()) == (1, "quit: no such command")
    with pytest.raises(CommandError):
        qemu.execute(node, str(tmp_path / "qmp"), "quit")


NAME = "virtbench-vm-0123456789ab"


@pytest.mark.parametrize(
    "given", ["qemu:///session", "qemu+ssh://other/system", "test:///default", "qemu:///system?x=1"]
)
def test_a_connection_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(URI_VARIABLE, given)
    with pytest.raises(RequestError, match="is no connection to the system daemon of this machine"):
        uri()


@pytest.mark.parametrize("given", ["qemu:///system", "qemu+unix:///system?socket=/var/tmp/vb-1/libvirt-sock"])
def test_a_connection_to_a_daemon_of_this_machine_is_taken(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(URI_VARIABLE, given)
    assert virsh()[-1] == given


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
    heard = GuestConsole(process)
    heard.close()
    error = _explained(MeasurementError("ssh outlived its time limit", kind="command"), process, heard)
    assert error.kind == "guest-locked-up"
    assert error.message == "the guest's kernel locked up: ssh outlived its time limit"
    assert "--out" in str(error.remedy)
