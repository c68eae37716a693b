"""An image of the user's own, of a Dockerfile or this machine's own tree, up to trials. Needs no network."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning import ledger
from provisioning.engines.base import image_reference
from provisioning.images.build import built
from provisioning.images.image import Image, find
from provisioning.paths import home
from tests.extensions.test_worker import OWN_TRAINING
from tests.integration.bench import BOTH, REPOSITORY, SMALL, bench, inside, measured, on, records, refusal
from tests.integration.machine import require, require_fast_guests, require_root, require_root_and_image, require_space

pytestmark = pytest.mark.integration
LACKING = ("/usr/bin/fio", "/usr/lib/python3*/site-packages/torch", "/usr/local/lib/python3*/dist-packages/torch")


def podman(*words: str, check: bool = True) -> str:
    return subprocess.run(["podman", *words], check=check, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The suite's own image, in podman's store: what the test's Dockerfiles begin with."""
    image = require_root_and_image()
    require("engine", "podman")
    if built("cpu") is None:
        pytest.skip("the image is of another recipe: bench image build")
    reference = f"localhost/{image_reference(image.digest)}"
    held = podman("images", "--quiet", reference)
    podman("load", "--quiet", "--input", str(image.file("oci.tar")))
    yield reference
    podman("rmi", "--force", "localhost/virtbench-build:own", *([] if held else [reference]), check=False)


@pytest.fixture(scope="module")
def own(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a user's Dockerfile, and the image that was built of it."""
    require_space()
    directory = tmp_path_factory.mktemp("recipe") / "own-image-test"
    directory.mkdir()
    (directory / "mine.txt").write_text("mine\n")
    (directory / "Dockerfile").write_text(f"FROM {base}\nCOPY mine.txt /srv/mine.txt\n")
    bench("image", "build", "--from", str(directory))
    yield directory
    shutil.rmtree(find(directory.name).directory)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("targets", [("bare-metal", "container"), ("vm",), ("container-vm",)], ids="+".join)
def test_all_trials_of_a_run_are_of_the_users_own_image(targets: tuple[str, ...], own: Path, tmp_path: Path) -> None:
    if "container" not in targets:
        require_fast_guests()
    image = find(own.name)
    assert (image.tree / "srv/mine.txt").read_text() == "mine\n"
    assert image.verify() == []
    found = measured(tmp_path / "run", "--image", own.name, *on(*targets), *SMALL)
    assert {record.target for record in found} == set(targets)
    for record in found:
        assert (inside(record).userland_sha256, inside(record).userland_differences) == (image.digest, [])


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_model_of_transformers_trains_in_its_image_as_it_is_documented(base: str, tmp_path: Path) -> None:
    require_space()
    section = OWN_TRAINING.partition("## A model of transformers\n")[2].partition("\n## ")[0]
    recipe, script = (
        section.partition(f"```{language}\n")[2].partition("```")[0] for language in ("dockerfile", "python")
    )
    name = "transformers-test"
    for path, text in ((f"{name}/Dockerfile", recipe), ("tune/tune.py", script)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text.replace("localhost/virtbench/base", base))
    built_one = bench("image", "build", "--from", str(tmp_path / name), code=None, timeout_s=1200)
    if "No matching distribution found for transformers" in built_one.stderr:
        pytest.skip("no package index is in reach of an image that is built")
    assert built_one.returncode == 0, built_one.stderr
    try:
        (documented,) = re.findall(r"^    bench run (.* --target all .*)$", section, re.MULTILINE)
        words = documented.replace("--target all", "--target bare-metal --target container --engine runc")
        words = words.replace("--command-files tune", f"--command-files {tmp_path / 'tune'}").replace("mine", name)
        found = measured(tmp_path / "run", *shlex.split(words))
        assert {record.target for record in found} == {"bare-metal", "container"}
        assert {record.details["steps"] for record in found} == {10}
    finally:
        shutil.rmtree(find(name).directory)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_an_image_that_was_built_is_not_built_again_and_is_no_default(own: Path) -> None:
    begun_at = find(own.name).created_at
    assert "is up to date" in bench("image", "build", "--from", str(own / "Dockerfile")).stderr
    assert find(own.name).created_at == begun_at
    assert find(None).variant == "cpu"


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_what_an_image_lacks_is_named_and_nothing_of_it_stays(base: str, tmp_path: Path) -> None:
    require_space()
    removed = " ".join(LACKING)
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN rm -r -f {removed} && mkfifo /srv/pipe\n")
    before = sorted(path.name for path in (home() / "images").iterdir())
    assert "/srv/pipe is a device, a pipe or a socket" in refusal("image", "build", "--from", str(tmp_path))
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN rm -r -f {removed}\n")
    said = refusal("image", "build", "--from", str(tmp_path))
    remedy = "install -y --no-install-recommends fio"
    assert all(words in said for words in ("it lacks: fio", "torch for /usr/bin/python3", remedy, "pip install"))
    assert sorted(path.name for path in (home() / "images").iterdir()) == before


def test_what_is_no_image_or_of_another_architecture_is_refused_in_a_sentence(tmp_path: Path) -> None:
    require_root()
    require("engine", "podman")
    (tmp_path / "cut.tar").write_bytes(os.urandom(512))
    (tmp_path / "file").touch()
    for name, holds in {"other.tar": "../../escaped", "root.tar": "file"}.items():
        with tarfile.open(tmp_path / name, "w") as archive:
            archive.add(tmp_path / "file", holds)
    foreign = "localhost/virtbench-test:foreign"
    try:
        podman("import", "--arch", "arm64", str(tmp_path / "root.tar"), foreign)
        for source, words in {
            str(tmp_path / "cut.tar"): "is no archive of an image",
            str(tmp_path / "other.tar"): "gives no image",
            str(tmp_path / "missing.tar"): "does not exist",
            foreign: "is an image for linux/arm64",
        }.items():
            said = refusal("image", "build", "--from", source)
            assert words in said
            assert "Traceback" not in said
    finally:
        podman("rmi", "--force", foreign, check=False)


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
def test_the_machines_own_tree_serves_bare_metal_and_runc_and_nothing_of_it_stays_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    require("engine", "runc")
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    adopted = bench("image", "adopt", "--python", sys.executable, "--site", sysconfig.get_path("purelib"))
    digest = adopted.stdout.strip()
    image = Image.model_validate_json((tmp_path / f"home/images/{digest[:12]}/image.json").read_bytes())
    tree = tmp_path / f"home/images/{digest[:12]}/tree"

    words = (*BOTH, "--model", "gan", *SMALL, "--wait", "--image", digest, "--out", str(tmp_path / "run"))
    ended = bench("run", "--scenario", "synthetic", *words)
    assert "All targets computed the same weights, bit for bit." in ended.stdout
    found = records(tmp_path / "run")
    assert set(found) == {"bare-metal", "container"}
    for record in found.values():
        assert (inside(record).userland_sha256, inside(record).userland_differences) == (digest, [])
    assert not ledger.is_mounted(tree)
    assert bench("image", "verify", digest).stdout == f"{digest} is whole\n"
    refused = refusal("run", "--target", "vm", *SMALL, "--image", digest)
    assert "an adopted image has no disk for virtual machines" in refused

    killed = [sys.executable, "-c", KILLED, digest]
    assert subprocess.run(killed, check=False, capture_output=True, text=True, cwd=REPOSITORY).stdout == "True\n"
    assert ledger.is_mounted(tree), "the kill came while it was mounted"
    assert "is mounted" in refusal("image", "remove", digest)
    assert f"mount {tree}" in bench("clean").stdout
    assert not ledger.is_mounted(tree)
    mounts = [mount.model_dump(mode="json") for mount in image.mounts]
    assert json.loads(bench("image", "list", "--json").stdout)["images"][0]["mounts"] == mounts
    bench("image", "remove", digest)
