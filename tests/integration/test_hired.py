"""A machine that a real Ironic deploys over Redfish virtual media, hired, measured on, and given back.

The machine is a domain of libvirt behind sushy-tools' emulator of a management controller; it boots the image's kernel.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from commands.hire import HiredOutput
from provisioning.clouds.hire import PARTS
from provisioning.images.image import Image
from provisioning.images.pack import filesystem
from provisioning.machines.libvirt import virsh
from provisioning.nodes import local_node
from provisioning.remote.machine import machine
from suite.inventory import read_inventory
from suite.job.envelope import GIB
from suite.records.record import TrialRecord
from tests.integration.bench import RUNC, SMALL, bench, by_arm, inside, measured
from tests.integration.booted_image import ARGUMENTS, THERE, boot_files, client, equip
from tests.integration.machine import require_image
from tests.integration.test_ironic import Ironic, ironic, require_binding
from tests.integration.test_libvirt import Daemon, daemon  # noqa: F401 (a fixture)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,  # a node boots twice; measuring over SSH and the answers of clouds have quick tests
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

NODE, SYSTEM, TAP, MAC = "metal", "11111111-2222-3333-4444-555555555555", "vbironic0", "52:54:00:aa:bb:01"
HERE, ADDRESS = "198.18.77.1/24", "198.18.77.10"
"""Addresses that are reserved for benchmarks (RFC 2544)."""
DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='b'>{memory}</memory>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='cdrom'/><boot dev='hd'/></os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum' check='none' migratable='off'/>
  <on_reboot>restart</on_reboot>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{image}'/><target dev='vda' bus='virtio'/><readonly/>
    </disk>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{data}'/><target dev='vdb' bus='virtio'/>
    </disk>
    <interface type='ethernet'>
      <mac address='{mac}'/><target dev='{tap}' managed='no'/><model type='virtio'/>
    </interface>
    <serial type='file'><source path='{place}/console' append='on'/><target port='0'/></serial>
    <controller type='usb' model='none'/>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
    <video><model type='vga'/></video>
  </devices>
</domain>
"""
POOL = "<pool type='dir'><name>default</name><target><path>{place}/pool</path></target></pool>"


def measure_on(hosts: Path, image: Image, line: str, *words: str) -> dict[str, TrialRecord]:
    """Measure on the only machine of an inventory, which gets ``line``; return the records by target."""
    hosts.write_text(f'{hosts.read_text()}directory = "{THERE}"\n{line}\n')
    (listed,) = read_inventory(hosts).nodes
    with machine(listed) as node:
        equip(node, image.digest)
    asked = (*words, *RUNC, "--inventory", str(hosts), "--memory", "1G")
    found = by_arm(measured(hosts.parent / "run", *asked, timeout_s=900))
    assert {*found} == {target for before, target in pairwise(words) if before == "--target"}
    for record in found.values():
        assert record.outcome.status == "ok", record.outcome
        seen = inside(record)
        assert (seen.machine, seen.userland_sha256) == (listed.name, image.digest)
    return found


@dataclass
class Site:
    ironic: Ironic
    image: Image

    def bench(self, *words: str, timeout_s: float = 240) -> str:
        ended = bench(*words, code=None, timeout_s=timeout_s)
        place = self.ironic.directory
        tails = [(place / name).read_text(errors="replace")[-3000:] for name in ("log", "console")]
        assert ended.returncode == 0, "\n---\n".join((ended.stdout, ended.stderr, *tails))
        return ended.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Iterator[Site]:  # noqa: F811
    image = require_image()
    require_binding()
    place = tmp_path_factory.mktemp("metal")
    (place / "pool").mkdir()
    (place / "console").touch()
    with ExitStack() as stack:
        service = stack.enter_context(ironic(place, {"LIBVIRT_URI": daemon.uri, "STORAGE_POOL": "default"}))
        _add_machine(stack, place, image)
        boot_files(place, image, ADDRESS, data="vdb")
        service.enrol_redfish(NODE, SYSTEM, f"file://{place}/kernel", f"file://{place}/ramdisk")
        stack.enter_context(client(place))
        yield Site(service, image)


def _add_machine(stack: ExitStack, place: Path, image: Image) -> None:
    """Add a machine that is off: its disks, its network to this host, and where its media are kept."""
    with local_node((), None) as node:
        (place / "content").mkdir()
        filesystem(node, place / "content", place / "data.img", mib=1024, journal=True)
    for words in (f"tuntap add dev {TAP} mode tap", f"address add {HERE} dev {TAP}", f"link set dev {TAP} up"):
        subprocess.run(["ip", *words.split()], check=True)
        if words.startswith("tuntap"):
            stack.callback(subprocess.run, ["ip", "link", "delete", "dev", TAP], check=True)
    files = {"image": image.file("disk.img"), "data": place / "data.img", "place": place, "memory": 3 * GIB}
    (place / "domain.xml").write_text(DOMAIN.format(name=NODE, uuid=SYSTEM, mac=MAC, tap=TAP, **files))
    (place / "pool.xml").write_text(POOL.format(place=place))
    for words in (f"pool-define {place}/pool.xml", "pool-start default", f"define {place}/domain.xml"):
        subprocess.run([*virsh(), *words.split()], check=True, capture_output=True)
    stack.callback(subprocess.run, [*virsh(), "undefine", NODE], check=True, capture_output=True)
    stack.callback(subprocess.run, [*virsh(), "destroy", NODE], check=False, capture_output=True)


def test_a_machine_that_ironic_deploys_is_hired_measured_on_and_given_back(site: Site, tmp_path: Path) -> None:
    place, hosts = site.ironic.directory, tmp_path / "machines/hosts.toml"
    cloud = ("--from", "ironic", "--cloud", "lab", "--resource-class", NODE, "--address", ADDRESS)
    ramdisk = ("--kernel", f"file://{place}/kernel", "--ramdisk", f"file://{place}/ramdisk")
    keys = ("--kernel-arguments", ARGUMENTS, "--host-key", str(place / "host_key.pub"))
    site.bench("machines", "up", *cloud, *ramdisk, *keys, "--out", str(hosts.parent), "--within", "4m")
    (made,) = json.loads((hosts.parent / "ready.json").read_text())["machines"]
    print(made)
    assert (made["address"], set(made["ready_s"])) == (ADDRESS, set(PARTS))
    (listed,) = HiredOutput.model_validate_json(site.bench("machines", "list", "--json"), strict=True).machines
    assert (listed.name, listed.state) == (made["name"], f"node {NODE} is active")

    targets = ("--target", "bare-metal", "--target", "container")
    measured = ("--scenario", "synthetic", "--model", "alexnet", *SMALL, *targets)
    for record in measure_on(hosts, site.image, "virtual = true", *measured).values():
        # A session of this machine has lower limits, which a command names.
        named = [name for name in record.substitutes if not name.startswith(("open-files:", "processes:"))]
        assert named == ["machine:virtual"]

    assert f"removed: {made['name']}" in site.bench("machines", "down", "--all")
    assert site.bench("machines", "list") == ""
    assert site.ironic.remaining() == {NODE: "available", "allocations": []}
    state = subprocess.run([*virsh(), "domstate", NODE], check=True, capture_output=True, text=True).stdout
    assert state.strip() == "shut off"
