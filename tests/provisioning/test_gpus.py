import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.gpus import NO_EDITS, DeviceNode, Edits, cdi_edits, edits_for, passthrough
from suite.errors import RequestError
from suite.interfaces import Completed
from tests.provisioning.conftest import FakeNode

CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "A=b=c"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [{"hostPath": "/usr/lib/libcuda.so", "containerPath": "/usr/lib/libcuda.so", "options": ["ro"]}],
    },
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
        {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidiactl"}]}},
    ],
}
NUMBERS = {"/dev/nvidiactl": (195, 255), "/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1)}
LIBRARY = ("/usr/lib/libcuda.so", "/usr/lib/libcuda.so")


def test_a_gpu_needs_what_all_need_and_its_own() -> None:
    assert cdi_edits(CDI, ("0",), NUMBERS.__getitem__) == Edits(
        devices=(DeviceNode("/dev/nvidiactl", 195, 255), DeviceNode("/dev/nvidia0", 195, 0)),
        mounts=(LIBRARY,),
        env={"NVIDIA_VISIBLE_DEVICES": "void", "A": "b=c"},
    )


def test_what_two_gpus_need_is_given_once() -> None:
    edits = cdi_edits(CDI, ("0", "1"), NUMBERS.__getitem__)
    assert [device.path for device in edits.devices] == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]
    assert edits.mounts == (LIBRARY,)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RequestError, match="no GPU 7, 8") as caught:
        cdi_edits(CDI, ("0", "7", "8"), NUMBERS.__getitem__)
    assert caught.value.remedy == "this host has: 0, 1"
    with pytest.raises(RequestError) as caught:
        cdi_edits({}, ("0",), NUMBERS.__getitem__)
    assert caught.value.remedy == "this host has: none"


def test_nothing_is_asked_where_no_gpu_is_wanted(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node()
    assert edits_for(node, ()) == NO_EDITS
    assert node.ran == []


def test_the_nodes_own_tool_describes_its_gpus(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node({("nvidia-ctk",): Completed(0, json.dumps(CDI), ""), ("stat",): Completed(0, "c3 ff\n", "")})
    assert edits_for(node, ("0",)).devices[0] == DeviceNode("/dev/nvidiactl", 195, 255)


def test_without_the_tool_gpus_are_refused_with_what_to_install(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node({("nvidia-ctk",): Completed(127, "", "not found")})
    with pytest.raises(RequestError, match="nvidia-ctk cannot describe them") as caught:
        edits_for(node, ("0",))
    assert "toolkit" in str(caught.value.remedy)


# ---- passthrough, on a made-up /sys

CARD = "0000:01:00.0"


def device(
    sys: Path, address: str, *, kind: str = "0x030000", driver: str = "vfio-pci", group: str | None = "7"
) -> Path:
    made = sys / "devices" / address
    made.mkdir(parents=True)
    (made / "class").write_text(f"{kind}\n")
    (sys / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    if driver != "none":
        (made / "driver").symlink_to(sys / "drivers" / driver)
    if group is not None:
        members = sys / "iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(made)
        (made / "iommu_group").symlink_to(members.parent)
    return made


def test_a_card_alone_in_its_group_under_vfio_can_be_passed_through(tmp_path: Path) -> None:
    found = passthrough(device(tmp_path, CARD))
    assert found == (f"passthrough {CARD}", f"driver vfio-pci, IOMMU group 7: {CARD}", None, None)


def test_the_functions_of_a_card_go_with_it_and_bridges_stay(tmp_path: Path) -> None:
    card = device(tmp_path, CARD)
    device(tmp_path, "0000:01:00.1", kind="0x040300")
    device(tmp_path, "0000:00:01.0", kind="0x060400")
    assert passthrough(card)[2] is None


def test_without_an_iommu_group_the_remedy_is_the_firmware(tmp_path: Path) -> None:
    _, evidence, reason, remedy = passthrough(device(tmp_path, CARD, group=None, driver="nvidia"))
    assert (evidence, reason) == ("driver nvidia", "it is in no IOMMU group")
    assert "intel_iommu=on" in str(remedy)


def test_strangers_in_the_group_are_named(tmp_path: Path) -> None:
    card = device(tmp_path, CARD)
    device(tmp_path, "0000:02:00.0", kind="0x010802")
    _, _, reason, remedy = passthrough(card)
    assert reason == "shares its IOMMU group with 0000:02:00.0"
    assert remedy == "use another slot"


@pytest.mark.parametrize("driver", ["nvidia", "none"])
def test_another_driver_is_named_with_the_command_that_changes_it(tmp_path: Path, driver: str) -> None:
    _, evidence, reason, remedy = passthrough(device(tmp_path, CARD, driver=driver))
    assert reason == f"its driver is {driver}"
    assert evidence.startswith(f"driver {driver}, ")
    assert remedy == f"bind it: driverctl set-override {CARD} vfio-pci"
