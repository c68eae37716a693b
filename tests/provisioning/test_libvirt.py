"""The domain that libvirt is given, and what is refused before it is asked."""

from dataclasses import replace
from typing import cast
from xml.etree import ElementTree

import pytest

from provisioning import ledger
from provisioning.hindrances import refuse_ablation
from provisioning.images.image import Image
from provisioning.lab.tap import Tap
from provisioning.machines.libvirt import LIBVIRT, URI_VARIABLE, domain_xml, uri, virsh
from provisioning.machines.qemu_command import Disk, kernel_words
from provisioning.processes import TOKEN
from provisioning.sites.here import Here
from provisioning.targets import Choices
from scenarios.synthetic import Synthetic
from suite.errors import RequestError
from suite.job.ablations import properties_of
from tests.provisioning.test_arguments import VM

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
NAME = "virtbench-vm-0123456789ab"


def domain(**changes: object) -> ElementTree.Element:
    xml = domain_xml(replace(VM, **changes), NAME, "f" * 32)  # type: ignore[arg-type]
    return ElementTree.fromstring(xml)  # noqa: S314 (it was just made)


def attributes(element: ElementTree.Element, path: str) -> dict[str, str]:
    (found,) = element.findall(path)
    return found.attrib


def test_a_domain_has_what_qemus_own_command_has() -> None:
    made = domain(cpus=(2, 5), memory_bytes=3 << 30)
    texts = {path: made.findtext(path) for path in ("name", "memory", "vcpu", "os/kernel", "os/initrd", "os/cmdline")}
    assert texts == {
        "name": NAME,
        "memory": "3072",
        "vcpu": "2",
        "os/kernel": VM.kernel,
        "os/initrd": VM.initrd,
        "os/cmdline": kernel_words(replace(VM, cpus=(2, 5))),
    }
    assert [pin.attrib for pin in made.iter("vcpupin")] == [
        {"vcpu": "0", "cpuset": "2"},
        {"vcpu": "1", "cpuset": "5"},
    ]
    assert attributes(made, "cputune/emulatorpin") == {"cpuset": "2,5"}
    assert attributes(made, "cputune/iothreadpin") == {"iothread": "1", "cpuset": "2,5"}
    assert attributes(made, "devices/memballoon") == {"model": "none"}
    assert attributes(made, f"{QEMU}commandline/{QEMU}env") == {"name": TOKEN, "value": "f" * 32}
    assert made.find("memoryBacking") is None


@pytest.mark.parametrize(
    ("accelerator", "kind", "mode"), [("tcg", "qemu", "maximum"), ("kvm", "kvm", "host-passthrough")]
)
def test_the_accelerator_decides_the_kind_of_domain_and_the_cpu(accelerator: str, kind: str, mode: str) -> None:
    made = domain(accelerator=accelerator, pinned=False)
    assert (made.get("type"), attributes(made, "cpu")["mode"]) == (kind, mode)
    assert made.find("cputune") is None


def test_each_disk_is_as_the_suite_wants_it() -> None:
    disks = (Disk("/a,b&c"), Disk("/dev/sdb", readonly=False), Disk("/s", False, True, True))
    first, second, third = domain(disks=disks).iter("disk")
    assert attributes(first, "source") == {"file": "/a,b&c"}
    assert attributes(first, "driver") == {
        "name": "qemu",
        "type": "raw",
        "cache": "none",
        "io": "native",
        "iothread": "1",
    }
    assert first.find("readonly") is not None
    assert (second.get("type"), attributes(second, "source")) == ("block", {"dev": "/dev/sdb"})
    assert second.find("readonly") is None
    assert attributes(third, "driver")["cache"] == "writeback"
    assert third.find("transient") is not None
    assert [attributes(disk, "target")["dev"] for disk in (first, second, third)] == ["vda", "vdb", "vdc"]


def test_a_shared_directory_and_a_tap_are_devices_of_the_domain() -> None:
    made = domain(data_socket="/d/s", tap=Tap("vbtap0", "06:00:00:00:00:01", "10.0.0.1", "10.0.0.1/24"))
    assert attributes(made, "memoryBacking/access") == {"mode": "shared"}
    assert attributes(made, "devices/filesystem/source") == {"socket": "/d/s"}
    assert attributes(made, "devices/interface/target") == {"dev": "vbtap0", "managed": "no"}


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
    [
        "libvirt:other@qemu:///system",
        f"libvirt:{NAME}@qemu+ssh://other/system",
        f"libvirt:{NAME}@qemu:///system --all",
    ],
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
