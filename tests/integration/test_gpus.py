"""GPUs in real targets of the real image, with a driver that is played: see ``tests.stand_ins``."""

import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from provisioning.layers.vm import VmLayer
from provisioning.machines.accelerator import choose
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import Qemu
from provisioning.machines.qemu_command import QemuSpec
from provisioning.nodes import local_node
from suite import userland
from tests.integration.machine import ENVELOPE, require, require_image, require_root_and_image
from tests.stand_ins import UUIDS, driver, with_driver

TEST_DEVICE = "0x0005"
"""The number of QEMU's device for tests of PCI, among those of Red Hat."""
ZERO = os.makedev(1, 5)
FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia70", "nvidia71", "nvidia73")
CAPS = ("nvidia-cap11", "nvidia-cap12")
ALWAYS = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
WHOLE = ([*ALWAYS, "/dev/nvidia71"], "1")
WITH_ALL_DEVICES = ("bare-metal+confinement", "own-environment")
"""The ablation of confinement, and bare metal without root: the variables alone choose the GPU."""
INSTANCE = ([*ALWAYS, *(f"/dev/nvidia-caps/{cap}" for cap in CAPS), "/dev/nvidia73"], "3:0")


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Path]:
    """The driver's libraries and its device files, which read as /dev/zero; nothing of them stays."""
    image = require_root_and_image()
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has NVIDIA's own device files")
    folder = Path("/dev/nvidia-caps")
    files = [*(Path("/dev", name) for name in FILES), *(folder / name for name in CAPS)]
    for number, way in zip((11, 12), ("gi7", "gi7/ci0"), strict=True):
        (tmp_path / "caps/gpu73/mig" / way).mkdir(parents=True)
        (tmp_path / "caps/gpu73/mig" / way / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 256\n")
    try:
        folder.mkdir(mode=0o755)
        for file in files:
            os.mknod(file, 0o666 | stat.S_IFCHR, ZERO)
            file.chmod(0o666)
        yield driver(tmp_path / "lib")
    finally:
        for file in files:
            file.unlink(missing_ok=True)
        folder.rmdir()
        shutil.rmtree(image.directory / "driver", ignore_errors=True)


@pytest.mark.parametrize("gpus", [WHOLE, INSTANCE], ids=["whole", "instance"])
@pytest.mark.parametrize("target", [*WITH_ALL_DEVICES, "bare-metal", "container:runc", "container:podman"])
def test_a_target_has_the_driver_and_the_gpus_that_were_chosen_and_its_tree_stays(
    libraries: Path, target: str, gpus: tuple[list[str], str], tmp_path: Path
) -> None:
    if ":" in target:
        require("engine", target.partition(":")[2])
    devices, word = gpus
    image = require_image()
    before = sorted(os.listdir(image.tree / "usr/lib/x86_64-linux-gnu"))
    seen = json.loads(
        with_driver(libraries, "-m", "tests.integration.gpu_target", target, word, str(tmp_path / "caps"))
    )
    assert seen["init"] == 5, "libcuda.so.1 is the driver's"
    (made,) = (image.directory / "driver").iterdir()
    libraries_inside = str(made) if target == "own-environment" else "/run/nvidia"
    assert dict.fromkeys(devices, 1).items() <= seen["devices"].items()
    assert target in WITH_ALL_DEVICES or sorted(seen["devices"]) == sorted(devices), "no device of another GPU"
    uuid = seen["variables"]["CUDA_VISIBLE_DEVICES"]
    assert uuid.startswith(UUIDS[word])
    assert seen["variables"] == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuid,
        "LD_LIBRARY_PATH": libraries_inside,
        "TRITON_LIBCUDA_PATH": libraries_inside,
    }
    assert [gpu["uuid"] for gpu in seen["facts"]] == [uuid]
    assert (seen["user"] > 0) == (target == "bare-metal"), "confined bare metal is no root"
    assert userland.differences(str(image.tree), everything=False) == []
    assert sorted(os.listdir(image.tree / "usr/lib/x86_64-linux-gnu")) == before


class WithLargeDevice(Qemu):
    """QEMU with a device whose memory is as large as a GPU's."""

    def command(self, spec: QemuSpec) -> Sequence[str]:
        return [*super().command(spec), "-device", "pci-testdev,membar=128G"]


def test_a_guest_has_room_for_the_memory_of_a_gpu() -> None:
    """VMs with GPUs are not supported yet; that QEMU's line places a BAR of 128 GiB is what they will need."""
    image = require_root_and_image()
    require("target", "vm")
    layer = VmLayer(WithLargeDevice(), GuestSpec(image, choose("auto")[0], ENVELOPE))
    looking = ["find", "/sys/devices", "-path", "*/pci*/device", "-exec", "grep", "-l", TEST_DEVICE, "{}", "+"]
    with local_node(ENVELOPE.cpus, str(image.tree)) as host, layer.opened(host) as guest:
        folder, _, _ = guest.run(looking, check=False).stdout.strip().rpartition("/")
        lines = guest.run(["cat", f"{folder}/resource"]).stdout.splitlines()
    spans = [(int(begin, 16), int(end, 16)) for begin, end, _ in map(str.split, lines)]
    assert (128 << 30) in [end - begin + 1 for begin, end in spans if begin], "placed, and whole"
