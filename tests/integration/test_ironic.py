"""A real Ironic in one process, without keystone: fake hardware of its own, and a node behind a Redfish emulator."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openstack
import pytest

import cli
from provisioning.machines.ssh import free_port
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
SYSTEM = "11111111-2222-3333-4444-555555555555"
ABSENT = ("bios", "firmware", "inspect", "raid", "vendor", "console", "rescue")
SSH = '#!/bin/sh\n[ ! -e silent ] || { echo "Connection refused" >&2; exit 255; }\n'


@dataclass
class Site:
    """The directory of the test, with its clouds.yaml and an ssh that reaches everything unless ``silent`` is there."""

    directory: Path
    metal: Any
    redfish: int

    def start(self, *words: str) -> "subprocess.Popen[str]":
        environment = {"PATH": f"{self.directory}/bin:{os.environ['PATH']}", "VIRTBENCH_HOME": f"{self.directory}/home"}
        return subprocess.Popen(
            [sys.executable, str(Path(cli.__file__)), *words],
            env={**os.environ, **environment},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def bench(self, *words: str) -> tuple[int, str]:
        with self.start(*words) as process:
            output = process.communicate()[0]
        return process.returncode, output

    def up(self, node: str, *words: str) -> tuple[str, ...]:
        return (
            "machines",
            "up",
            "--from",
            "ironic",
            "--cloud",
            "lab",
            "--address",
            "192.0.2.1",
            "--resource-class",
            node,
            *words,
        )

    def enrol(self, name: str, **options: object) -> None:
        """Add a node whose resource class is its name."""
        node = self.metal.create_node(name=name, resource_class=name, **options)
        for verb in ("manage", "provide"):
            self.metal.set_node_provision_state(node, verb, wait=True, timeout=60)
        # A node whose power state is unknown is not allocated.
        self.metal.set_node_power_state(node, "power off", wait=True, timeout=60)

    def remaining(self) -> dict[str, object]:
        """Return the states of the nodes, and the allocations."""
        states = {node.name: node.provision_state for node in self.metal.nodes(details=True)}
        return {**states, "allocations": [allocation.name for allocation in self.metal.allocations()]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place, port, redfish = tmp_path_factory.mktemp("ironic"), free_port(), free_port()
    if not (VENV / "bin/ironic").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(VENV / "bin/pip"), "install", "--quiet", *PACKAGES], check=True)
    url = f"http://127.0.0.1:{port}"
    (place / "ironic.conf").write_text(configuration(place, port))
    systems = [{"uuid": SYSTEM, "name": "node", "power_state": "Off", "nics": [{"mac": "52:54:00:aa:bb:01", "ip": ""}]}]
    emulator = {"LISTEN_IP": "127.0.0.1", "LISTEN_PORT": redfish, "FAKE_DRIVER": True, "FAKE_SYSTEMS": systems}
    (place / "sushy.conf").write_text("".join(f"SUSHY_EMULATOR_{key} = {value!r}\n" for key, value in emulator.items()))
    cloud = {"auth_type": "none", "baremetal_endpoint_override": url}
    (place / "clouds.yaml").write_text(json.dumps({"clouds": {"lab": cloud}}))
    (place / "id.pub").write_text("ssh-ed25519 AAAAKey me\n")
    (place / "kernel").touch()
    (place / "bin").mkdir()
    (place / "bin/ssh").write_text(SSH)
    (place / "bin/ssh").chmod(0o755)
    subprocess.run(
        [str(VENV / "bin/ironic-dbsync"), "--config-file", "ironic.conf", "create_schema"], cwd=place, check=True
    )
    with ExitStack() as stack:
        log = stack.enter_context((place / "log").open("w"))
        for words in (
            ["ironic", "--config-file", "ironic.conf"],
            ["sushy-emulator", "--config", str(place / "sushy.conf")],
        ):
            argv = [str(VENV / "bin" / words[0]), *words[1:]]
            process = subprocess.Popen(argv, cwd=place, stdout=log, stderr=log, start_new_session=True)
            stack.callback(process.wait)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        for listener in (port, redfish):
            await_listener(listener)
        metal = openstack.connection.Connection(auth_type="none", baremetal_endpoint_override=url).baremetal
        made = Site(place, metal, redfish)
        made.enrol("fake", driver="fake-hardware", deploy_interface="fake", boot_interface="fake")
        yield made


def configuration(place: Path, port: int) -> str:
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


DISK = ("--image", "http://192.0.2.2/disk.img", "--checksum", "0" * 64, "--public-key", "id.pub")
FREE = {"fake": "available", "allocations": []}


def test_a_node_is_allocated_deployed_listed_and_released(site: Site) -> None:
    code, output = site.bench(*site.up("fake", *DISK))
    assert code == 0, output
    assert "node fake is active" in site.bench("machines", "list")[1]
    code, output = site.bench(*site.up("fake", *DISK, "--out", "second"))
    assert (code, "no available nodes match the resource class fake" in output) == (1, True), output
    code, output = site.bench("machines", "down", "--all")
    assert (code, site.remaining()) == (0, FREE), output


def test_a_node_that_a_killed_up_has_deployed_is_released_by_clean(site: Site) -> None:
    (site.directory / "silent").touch()
    with site.start(*site.up("fake", *DISK)) as process:
        deadline = time.monotonic() + 60
        while site.remaining()["fake"] != "active":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.kill()
    (site.directory / "silent").unlink()
    code, output = site.bench("clean")
    assert (code, site.remaining()) == (0, FREE), output
    assert "removed: hired-machine" in output


def test_a_deployment_over_redfish_that_fails_is_told_with_its_reason_and_the_node_released(site: Site) -> None:
    address = {
        "redfish_address": f"http://127.0.0.1:{site.redfish}",
        "redfish_system_id": f"/redfish/v1/Systems/{SYSTEM}",
    }
    files = dict.fromkeys(("deploy_kernel", "deploy_ramdisk"), f"file://{site.directory}/kernel")
    site.enrol("redfish", driver="redfish", deploy_interface="ramdisk", driver_info={**address, **files})
    ramdisk = ("--kernel", f"file://{site.directory}/none", "--ramdisk", f"file://{site.directory}/kernel")
    code, output = site.bench(*site.up("redfish", *ramdisk, "--host-key", "id.pub"))
    assert (code, site.remaining()) == (1, {**FREE, "redfish": "available"}), output
    assert "node redfish is deploy failed: Deploy step deploy.deploy failed: Validation of image href" in output
