"""This machine's own tree as an image: trials on bare metal and runc, and what a killed bench leaves of its mounts."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.images.image import Image
from tests.integration.machine import require, require_root
from tests.integration.test_run import SMALL, records

pytestmark = pytest.mark.integration
CLI = str(Path(__file__).parents[2] / "cli.py")
KILLED = """
import os, sys
from pathlib import Path
from provisioning.images.image import find, mounted
image = find(sys.argv[1])
with mounted(image, image.tree):
    print((image.tree / "usr/bin/env").exists(), flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.timeout(900)
def test_the_machines_own_tree_serves_bare_metal_and_runc_and_nothing_of_it_stays_mounted(tmp_path: Path) -> None:
    require_root()
    require("engine", "runc")
    environment = {**os.environ, "VIRTBENCH_HOME": str(tmp_path / "home")}

    def run(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, *argv], check=False, capture_output=True, text=True, env=environment)

    adopted = run(CLI, "image", "adopt", "--python", sys.executable, "--site", sysconfig.get_path("purelib"))
    assert adopted.returncode == 0, adopted.stderr
    digest = adopted.stdout.strip()
    image = Image.model_validate_json((tmp_path / f"home/images/{digest[:12]}/image.json").read_bytes())
    tree = tmp_path / f"home/images/{digest[:12]}/tree"

    words = ("--target", "bare-metal", "--target", "container", "--engine", "runc", "--model", "gan", *SMALL, "--wait")
    ended = run(CLI, "run", "--scenario", "synthetic", *words, "--image", digest, "--out", str(tmp_path / "run"))
    assert ended.returncode == 0, ended.stderr
    assert "All targets computed the same weights, bit for bit." in ended.stdout
    found = records(tmp_path / "run")
    assert set(found) == {"bare-metal", "container"}
    for record in found.values():
        assert record.environment.target
        assert record.environment.target.userland_sha256 == digest
        assert record.environment.target.userland_differences == []
    assert not ledger.is_mounted(tree)
    assert run(CLI, "image", "verify", digest).stdout == f"{digest} is whole\n"

    refused = run(CLI, "run", "--target", "vm", *SMALL, "--image", digest)
    assert refused.returncode == 2
    assert "an adopted image has no disk for virtual machines" in refused.stderr

    assert run("-c", KILLED, digest).stdout == "True\n"
    assert ledger.is_mounted(tree), "the kill came while it was mounted"
    refused = run(CLI, "image", "remove", digest)
    assert refused.returncode == 2
    assert "is mounted" in refused.stderr
    assert f"mount {tree}" in run(CLI, "clean").stdout
    assert not ledger.is_mounted(tree)
    assert json.loads(run(CLI, "image", "list", "--json").stdout)["images"][0]["mounts"] == [
        mount.model_dump(mode="json") for mount in image.mounts
    ]
    assert run(CLI, "image", "remove", digest).returncode == 0
