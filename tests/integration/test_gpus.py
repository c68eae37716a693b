"""GPUs in real targets of the real image, with a driver that is played: see ``tests.stand_ins``.

And the rehearsal of the GPU day: its first stage and its check of the truth, in calls that go on where one ended.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from provisioning import ledger
from provisioning.isa import CPUINFO, reports_hypervisor
from provisioning.layers.vm import VmLayer
from provisioning.machines.accelerator import choose
from provisioning.machines.base import GuestSpec
from provisioning.machines.qemu import Qemu
from provisioning.machines.qemu_command import QemuSpec
from provisioning.nodes import local_node
from suite import userland
from tests.integration.bench import REPOSITORY, inside, records_in
from tests.integration.machine import ENVELOPE, require, require_image, require_root, require_root_and_image
from tests.integration.ssh_machines import fleet
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


@pytest.mark.parametrize("target", [*WITH_ALL_DEVICES, "bare-metal", "container:runc", "container:podman"])
def test_a_target_has_the_driver_and_the_gpus_that_were_chosen_and_its_tree_stays(
    libraries: Path, target: str, tmp_path: Path
) -> None:
    if ":" in target:
        require("engine", target.partition(":")[2])
    image = require_image()
    before = sorted(os.listdir(image.tree / "usr/lib/x86_64-linux-gnu"))
    words = (target, str(tmp_path / "caps"), *(word for _, word in (WHOLE, INSTANCE)))
    found = json.loads(with_driver(libraries, "-m", "tests.integration.gpu_target", *words))
    (made,) = (image.directory / "driver").iterdir()
    libraries_inside = str(made) if target == "own-environment" else "/run/nvidia"
    for seen, (devices, word) in zip(found, (WHOLE, INSTANCE), strict=True):
        assert seen["init"] == 5, "libcuda.so.1 is the driver's"
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


INITIALISES = "import ctypes, os; print(ctypes.CDLL('libcuda.so.1').cuInit(7)); print(os.listdir('/dev'))"


@pytest.mark.integration
def test_a_vm_of_an_inventory_is_run_with_the_gpu_of_its_machine_through_the_whole_run(
    libraries: Path, tmp_path: Path
) -> None:
    """The machine is this one behind an sshd: where its CPU reports no hypervisor, it is no machine of ``vm``."""
    if not reports_hypervisor(CPUINFO.read_text()):
        pytest.skip("this machine is not virtual")
    (tmp_path / "machines").mkdir()
    with fleet(tmp_path / "machines", 1, f"LANG=C LD_LIBRARY_PATH={libraries}") as found:
        inventory = str(found.inventory('targets = ["vm"]'))
        where = ("--inventory", inventory, "--target", "vm", "--image", require_image().digest, "--memory", "1G")
        gpu = ("--device", "cuda", "--gpus", "1")
        command = ("--scenario", "command", "--profile", "smoke", "--command", f'python3 -c "{INITIALISES}"')
        argv = [sys.executable, "-m", "tests.integration.gpu_bench", "run", *command, *where, *gpu]
        ended = subprocess.run(
            [*argv, "--out", str(tmp_path / "run")], check=False, capture_output=True, text=True, cwd=REPOSITORY
        )
    assert ended.returncode == 0, ended.stderr
    (record,) = records_in(tmp_path / "run")
    seen = inside(record)
    assert (seen.machine, seen.accelerator, bool(seen.hypervisor)) == ("n1", None, True)
    assert [gpu.uuid[:12] for gpu in seen.gpus or [] if gpu.uuid] == [UUIDS["1"]]
    assert record.job.layers.gpus == "1"
    assert record.resources
    assert (record.resources.serving, record.resources.energy_j) == (None, None), "what its host spends is unknown"
    assert record.conditions is None


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


@pytest.mark.integration
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_day_is_rehearsed_stage_by_stage_and_goes_on_where_a_call_ended(tmp_path: Path) -> None:
    require_root()
    require("engine", "runc")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    state, out = tmp_path / "state", tmp_path / "out"

    def call(minutes: str, stages: str) -> tuple[str, dict[str, dict[str, Any]]]:
        places = ("--state", str(state), "--out", str(out), "--site", sysconfig.get_path("purelib"))
        day = [sys.executable, str(REPOSITORY / "benchmarks/gpu_day.py"), "--rehearse"]
        argv = [*day, *places, "--minutes", minutes, "--stages", stages]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr + (out / "log").read_text()[-3000:]
        return ended.stdout, json.loads((out / "facts.json").read_text())["stages"]

    printed, first = call("4", "AP")
    assert "15 minutes hold A P B D T C E U; left out: R F H V W G" in printed
    assert first["A"]["nvml"]["PowerUsage"] == "100000"
    assert first["A"]["nvml"]["EccMode"] == "error: Not Supported"
    assert first["P"]["libcuda in container: cuInit, uid"] == "[0, 0]"
    result, user = json.loads(first["P"]["libcuda in bare-metal: cuInit, uid"])
    assert result == 0
    assert user >= 0x7000_0000, "the confined user reaches it"

    printed, second = call("0.1", "APTG")
    assert "G is left for the next call" in printed
    assert second == first, "what was done is not done again"

    _, third = call("8", "APTG")
    assert third["A"] == first["A"]
    assert third["T"]["energy counter / integrated power"] == pytest.approx(1, abs=0.2)
    assert third["T"]["strangers"], "the planted process is named"
    assert third["T"]["wrong requests that were accepted"] == 0
    assert "wrong requests that were accepted = 0" in (out / "summary.md").read_text()
    with tarfile.open(out / "records.tar.gz") as archive:
        trials = [name for name in archive.getnames() if "/trials/" in name]
    assert len(trials) == third["G"]["trials beside an intruder"] == 4
    assert third["G"]["trials that do not name an intruder"] == "rehearsed: it takes a GPU"
    assert {len(rates) for rates in third["G"]["rates beside the sampler"].values()} == {1}
    assert not any(ledger.is_mounted(tree) for tree in state.glob("home/images/*/tree"))
