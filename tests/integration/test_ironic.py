"""``bench machines`` with a real Ironic, which is installed once and kept: it runs in one process, without keystone.

Here with fake hardware of its own, and a node behind a Redfish emulator; ``test_hired.py`` hires a machine that boots.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openstack
import pytest

from provisioning.machines.ssh import free_port
from tests.integration.bench import BENCH, bench
from tests.integration.machine import wait_for
from tests.kubernetes_cluster.layout import CACHE

pytestmark = [
    pytest.mark.integration,
    pytest.mark.beside,
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

PACKAGES = ("ironic==39.0.0", "sushy-tools==2.2.0")
VENV = CACHE.parent / "-".join(PACKAGES)
"""Kept: to install it takes 40 s."""
DEBIAN = Path("/usr/lib/python3/dist-packages")
ABSENT = ("bios", "firmware", "inspect", "raid", "vendor", "console", "rescue")


@dataclass
class Ironic:
    """``directory`` is the services' own and holds a clouds.yaml, which calls this cloud ``lab``."""

    directory: Path
    metal: Any
    redfish: str

    def enrol(self, name: str, **options: object) -> None:
        """Add a node whose resource class is its name."""
        node = self.metal.create_node(name=name, resource_class=name, **options)
        for verb in ("manage", "provide"):
            self.metal.set_node_provision_state(node, verb, wait=True, timeout=60)
        # A node whose power state is unknown is not allocated.
        self.metal.set_node_power_state(node, "power off", wait=True, timeout=60)

    def enrol_redfish(self, name: str, system: str, kernel: str, ramdisk: str) -> None:
        """Add a node behind the emulator, for ramdisks; its own deployment would start with these files."""
        address = {"redfish_address": self.redfish, "redfish_system_id": f"/redfish/v1/Systems/{system}"}
        files = {"deploy_kernel": kernel, "deploy_ramdisk": ramdisk}
        self.enrol(name, driver="redfish", deploy_interface="ramdisk", driver_info={**address, **files})

    def remaining(self) -> dict[str, object]:
        states = {node.name: node.provision_state for node in self.metal.nodes(details=True)}
        return {**states, "allocations": [allocation.name for allocation in self.metal.allocations()]}


def install() -> None:
    if not (VENV / "bin/ironic").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(VENV / "bin/pip"), "install", "--quiet", *PACKAGES], check=True)
        (packages,) = VENV.glob("lib/python3*/site-packages")
        # The emulator's way to libvirt, which is a package of Debian's and of nobody else.
        for path in DEBIAN.glob("libvirt*"):
            (packages / path.name).symlink_to(path)


def require_binding() -> None:
    """Skip where Python has no libvirt: its package is for Debian's own version of Python."""
    module = DEBIAN / f"libvirtmod{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists():
        pytest.skip(f"there is no {module} (make setup-test)")


@contextmanager
def ironic(place: Path, emulator: Mapping[str, object]) -> Iterator[Ironic]:
    """Start both in ``place``, with these settings of the emulator."""
    port, redfish, files = (free_port() for _ in range(3))
    install()
    url = f"http://127.0.0.1:{port}"
    (place / "ironic.conf").write_text(configuration(place, port, files))
    settings = {"LISTEN_IP": "127.0.0.1", "LISTEN_PORT": redfish, "STATE_DIR": str(place), **emulator}
    (place / "sushy.conf").write_text("".join(f"SUSHY_EMULATOR_{key} = {value!r}\n" for key, value in settings.items()))
    cloud = {"auth_type": "none", "baremetal_endpoint_override": url}
    (place / "clouds.yaml").write_text(json.dumps({"clouds": {"lab": cloud}}))
    (place / "httpboot").mkdir()
    programs = VENV / "bin"
    configured = ["--config-file", "ironic.conf"]
    subprocess.run([str(programs / "ironic-dbsync"), *configured, "create_schema"], cwd=place, check=True)
    with ExitStack() as stack:
        log = stack.enter_context((place / "log").open("w"))
        for argv in (
            [str(programs / "ironic"), *configured],
            [str(programs / "sushy-emulator"), "--config", str(place / "sushy.conf")],
            # The image that a node boots is fetched by its management controller.
            [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", "httpboot", str(files)],
        ):
            process = subprocess.Popen(argv, cwd=place, stdout=log, stderr=log, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        for listener in (port, redfish, files):
            await_listener(listener)
        metal = openstack.connection.Connection(auth_type="none", baremetal_endpoint_override=url).baremetal
        yield Ironic(place, metal, f"http://127.0.0.1:{redfish}")


def configuration(place: Path, port: int, files: int) -> str:
    enabled = {"boot": "redfish-virtual-media,fake", "deploy": "ramdisk,fake", "management": "redfish,fake"}
    enabled |= {"power": "redfish,fake", "network": "noop", "storage": "noop"} | {name: f"no-{name}" for name in ABSENT}
    interfaces = "".join(f"enabled_{name}_interfaces = {value}\n" for name, value in enabled.items())
    return f"""[DEFAULT]
auth_strategy = noauth
host = localhost
my_ip = 127.0.0.1
state_path = {place}
rpc_transport = none
enabled_hardware_types = redfish,fake-hardware
default_network_interface = noop
isolinux_bin = /usr/lib/ISOLINUX/isolinux.bin
ldlinux_c32 = /usr/lib/syslinux/modules/bios/ldlinux.c32
{interfaces}[api]
host_ip = 127.0.0.1
port = {port}
[database]
connection = sqlite:///{place}/ironic.db
[conductor]
automated_clean = false
file_url_allowed_paths = {place}
[service_catalog]
auth_type = none
endpoint_override = http://127.0.0.1:{port}
[dhcp]
dhcp_provider = none
[deploy]
http_root = {place}/httpboot
http_url = http://127.0.0.1:{files}
default_boot_mode = bios
[redfish]
use_swift = false
[pxe]
images_path = {place}/images
instance_master_path = {place}/images/master
[oslo_concurrency]
lock_path = {place}/locks
"""


def await_listener(port: int) -> None:
    def listens() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    wait_for("a listener", listens, lambda: port, 60)


SYSTEM = "11111111-2222-3333-4444-555555555555"
SSH = '#!/bin/sh\n[ ! -e silent ] || { echo "Connection refused" >&2; exit 255; }\n'


@dataclass
class Site:
    """The directory of the services, with an ssh that reaches everything unless ``silent`` is there."""

    ironic: Ironic

    @property
    def directory(self) -> Path:
        return self.ironic.directory

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.directory}/bin:{os.environ['PATH']}", "VIRTBENCH_HOME": f"{self.directory}/home"}

    def bench(self, *words: str, code: int = 0) -> str:
        ended = bench(*words, code=code, env=self.env, cwd=self.directory)
        return ended.stdout + ended.stderr

    def up(self, node: str, *words: str) -> tuple[str, ...]:
        cloud = ("--from", "ironic", "--cloud", "lab", "--address", "192.0.2.1")
        return ("machines", "up", *cloud, "--resource-class", node, *words)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("ironic")
    (place / "id.pub").write_text("ssh-ed25519 AAAAKey me\n")
    (place / "kernel").touch()
    (place / "bin").mkdir()
    (place / "bin/ssh").write_text(SSH)
    (place / "bin/ssh").chmod(0o755)
    systems = [{"uuid": SYSTEM, "name": "node", "power_state": "Off", "nics": [{"mac": "52:54:00:aa:bb:01", "ip": ""}]}]
    with ironic(place, {"FAKE_DRIVER": True, "FAKE_SYSTEMS": systems}) as service:
        service.enrol("fake", driver="fake-hardware", deploy_interface="fake", boot_interface="fake")
        yield Site(service)


DISK = ("--image", "http://192.0.2.2/disk.img", "--checksum", "0" * 64, "--public-key", "id.pub")
FREE = {"fake": "available", "allocations": []}


def test_a_node_is_allocated_deployed_listed_and_released(site: Site) -> None:
    site.bench(*site.up("fake", *DISK))
    assert "node fake is active" in site.bench("machines", "list")
    second = site.bench(*site.up("fake", *DISK, "--out", "second"), code=1)
    assert "no available nodes match the resource class fake" in second
    site.bench("machines", "down", "--all")
    assert site.ironic.remaining() == FREE


def test_a_node_that_a_killed_up_has_deployed_is_released_by_clean(site: Site) -> None:
    (site.directory / "silent").touch()
    environment = {**os.environ, **site.env}
    with subprocess.Popen([BENCH, *site.up("fake", *DISK)], env=environment, cwd=site.directory) as process:
        wait_for("its deployment", lambda: site.ironic.remaining()["fake"] == "active", site.ironic.remaining, 60)
        process.kill()
    (site.directory / "silent").unlink()
    assert "removed: hired-machine" in site.bench("clean")
    assert site.ironic.remaining() == FREE


def test_a_deployment_over_redfish_that_fails_is_told_with_its_reason_and_the_node_released(site: Site) -> None:
    site.ironic.enrol_redfish("redfish", SYSTEM, *[f"file://{site.directory}/kernel"] * 2)
    ramdisk = ("--kernel", f"file://{site.directory}/none", "--ramdisk", f"file://{site.directory}/kernel")
    said = site.bench(*site.up("redfish", *ramdisk, "--host-key", "id.pub"), code=1)
    assert site.ironic.remaining() == {**FREE, "redfish": "available"}
    assert "node redfish is deploy failed: Deploy step deploy.deploy failed: Validation of image href" in said
