"""A virtual machine of a real Nova is hired, measured on as ``vm`` and ``container-vm``, and given back."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from provisioning.clouds.hire import PARTS
from provisioning.images.image import Image
from provisioning.machines.libvirt import URI_VARIABLE, virsh
from provisioning.remote.machine import machine
from provisioning.volumes import MOUNT
from suite.inventory import read_inventory
from tests.integration.bench import SMALL, bench, ours
from tests.integration.booted_image import boot_files, client
from tests.integration.machine import require_image, require_root
from tests.integration.test_hired import measure_on
from tests.integration.test_libvirt import Daemon
from tests.openstack.services import ADDRESS, cloud, isolate

VARIABLE = "VIRTBENCH_OPENSTACK"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.thorough,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]


class Site(NamedTuple):
    place: Path
    sdk: Any
    image: Image


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if not os.environ.get(VARIABLE):
        pytest.skip("it takes packages and namespaces of its own: make test-openstack")
    require_root()
    image = require_image()
    place = Path(tempfile.mkdtemp(prefix="vb-nova-", dir="/var/tmp"))
    (place / "libvirt").mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        isolate()
        daemon = Daemon(place / "libvirt")
        daemon.start()
        stack.callback(daemon.end)
        monkeypatch.setenv(URI_VARIABLE, daemon.uri)
        boot_files(place, image, ADDRESS)
        sdk = stack.enter_context(cloud(place, daemon.uri, image))
        stack.enter_context(client(place))
        yield Site(place, sdk, image)


def succeeded(*words: str) -> str:
    ended = bench(*words)
    print(ended.stdout, ended.stderr)
    return ended.stdout


def test_a_virtual_machine_of_nova_is_hired_measured_on_and_given_back(site: Site, tmp_path: Path) -> None:
    before, hosts, script = ours(), tmp_path / "machines/hosts.toml", tmp_path / "script"
    script.write_text("#!/bin/sh\ntrue\n")
    words = ("--image", "disk", "--flavor", "small", "--network", "lab", "--key", "me", "--user-data", str(script))
    out = ("--host-key", str(site.place / "host_key.pub"), "--out", str(hosts.parent), "--within", "10m")
    succeeded("machines", "up", "--from", "nova", "--cloud", "lab", *words, *out)
    ready = json.loads((hosts.parent / "ready.json").read_text())
    (made,) = ready["machines"]
    print(ready)
    assert (made["address"], set(made["ready_s"])) == (ADDRESS, set(PARTS))
    assert [line for line in ready["unfair"] if "hw:cpu_policy is shared" in line]
    assert f"{made['name']}: nova, cloud lab: ACTIVE" in succeeded("machines", "list")
    (server,) = site.sdk.compute.servers()
    assert (server.name, server.metadata) == (made["name"], {"virtbench": made["name"]})

    with machine(read_inventory(hosts).nodes[0]) as node:
        node.run(["mount", "-t", "tmpfs", "tmpfs", MOUNT])
        node.run(["modprobe", "-a", "ata_piix", "sr_mod", "isofs"])
        node.run(["sh", "-c", "until [ -b /dev/sr0 ]; do sleep 0.2; done"])
        node.run(["mkdir", "/run/drive"])
        node.run(["mount", "-o", "ro", "/dev/sr0", "/run/drive"])
        assert node.run(["cat", "/run/drive/openstack/latest/user_data"]).stdout == script.read_text()
    targets = ("--target", "vm", "--target", "container-vm")
    measured = ("--scenario", "synthetic", "--model", "alexnet", *SMALL, *targets)
    for record in measure_on(hosts, site.image, "", *measured).values():
        assert record.substitutes == []

    assert f"removed: {made['name']}" in succeeded("machines", "down", "--all")
    assert succeeded("machines", "list") == ""
    ports = [port for port in site.sdk.network.ports() if port.device_id]
    assert ([*site.sdk.compute.servers(all_projects=True)], ports) == ([], [])
    listed = subprocess.run([*virsh(), "list", "--all", "--name"], check=True, capture_output=True, text=True)
    assert listed.stdout.split() == []
    assert ours() == before
