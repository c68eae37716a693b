"""``bench machines`` with a real Ironic: fake hardware of its own, and a node behind a Redfish emulator.

``test_hired.py`` hires a machine that really boots.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cli
from tests.integration.ironic import Ironic, ironic
from tests.integration.machine import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.beside,
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

SYSTEM = "11111111-2222-3333-4444-555555555555"
SSH = '#!/bin/sh\n[ ! -e silent ] || { echo "Connection refused" >&2; exit 255; }\n'


@dataclass
class Site:
    """The directory of the services, with an ssh that reaches everything unless ``silent`` is there."""

    ironic: Ironic

    @property
    def directory(self) -> Path:
        return self.ironic.directory

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
    code, output = site.bench(*site.up("fake", *DISK))
    assert code == 0, output
    assert "node fake is active" in site.bench("machines", "list")[1]
    code, output = site.bench(*site.up("fake", *DISK, "--out", "second"))
    assert (code, "no available nodes match the resource class fake" in output) == (1, True), output
    code, output = site.bench("machines", "down", "--all")
    assert (code, site.ironic.remaining()) == (0, FREE), output


def test_a_node_that_a_killed_up_has_deployed_is_released_by_clean(site: Site) -> None:
    (site.directory / "silent").touch()
    with site.start(*site.up("fake", *DISK)) as process:
        wait_for("its deployment", lambda: site.ironic.remaining()["fake"] == "active", site.ironic.remaining, 60)
        process.kill()
    (site.directory / "silent").unlink()
    code, output = site.bench("clean")
    assert (code, site.ironic.remaining()) == (0, FREE), output
    assert "removed: hired-machine" in output


def test_a_deployment_over_redfish_that_fails_is_told_with_its_reason_and_the_node_released(site: Site) -> None:
    site.ironic.enrol_redfish("redfish", SYSTEM, *[f"file://{site.directory}/kernel"] * 2)
    ramdisk = ("--kernel", f"file://{site.directory}/none", "--ramdisk", f"file://{site.directory}/kernel")
    code, output = site.bench(*site.up("redfish", *ramdisk, "--host-key", "id.pub"))
    assert (code, site.ironic.remaining()) == (1, {**FREE, "redfish": "available"}), output
    assert "node redfish is deploy failed: Deploy step deploy.deploy failed: Validation of image href" in output
