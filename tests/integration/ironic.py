"""A real Ironic in one process, without keystone, beside a Redfish emulator; both are installed once and kept."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openstack
import pytest

from provisioning.machines.ssh import free_port
from tests.kubernetes_cluster.layout import CACHE

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
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, port
            time.sleep(0.2)
        else:
            return
