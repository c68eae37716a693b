"""A data set with something writable mounted inside: no target may write there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.engines.base import get_engine
from provisioning.layers.container import ContainerLayer
from provisioning.layers.userland import UserlandLayer
from provisioning.nodes import local_node
from provisioning.volumes import MOUNT, check_one_filesystem
from suite.errors import RequestError
from suite.interfaces import Completed
from suite.job.properties import AS_IT_IS, Properties
from tests.integration.machine import ENVELOPE, require, require_image, require_root


class Mounts:
    """A node that says what is mounted."""

    name = "n1"

    def run(self, argv: list[str]) -> Completed:
        assert argv == ["cat", "/proc/self/mountinfo"]
        return Completed(0, r"36 35 98:0 / /data/my\040set/inner rw - ext4 /dev/sda rw" + "\n", "")


def test_a_mount_inside_of_a_data_set_is_named() -> None:
    with pytest.raises(RequestError, match="/data/my set/inner on n1 is a mount inside of the data set"):
        check_one_filesystem(Mounts(), "/data/my set")  # type: ignore[arg-type]
    check_one_filesystem(Mounts(), "/data/my set/inner")  # type: ignore[arg-type]
    check_one_filesystem(Mounts(), "/data/my")  # type: ignore[arg-type]


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    require_root()
    place = tmp_path / "set"
    (place / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", place / "inner"], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place / "inner"], check=True)


@pytest.mark.integration
@pytest.mark.parametrize("properties", [AS_IT_IS, Properties(confined=False)], ids=["confined", "root"])
def test_bare_metal_sees_it_and_cannot_write_there(volume: Path, properties: Properties) -> None:
    with (
        local_node(ENVELOPE.cpus, str(require_image().tree), str(volume)) as host,
        UserlandLayer(ENVELOPE, properties=properties).opened(host) as inside,
    ):
        for place in (MOUNT, f"{MOUNT}/inner"):
            denied = inside.run(["touch", f"{place}/file"], check=False)
            assert (denied.returncode != 0, "Read-only file system" in denied.stderr) == (True, True)
    assert list((volume / "inner").iterdir()) == []


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["runc", "podman"])
def test_containers_refuse_it_and_are_not_given_what_is_mounted_later(volume: Path, engine: str) -> None:
    require("engine", engine)
    image = require_image()
    layer = ContainerLayer(get_engine(engine), image.digest, ENVELOPE.memory_bytes)
    with (
        local_node(ENVELOPE.cpus, str(image.tree), str(volume)) as host,
        pytest.raises(RequestError, match="is a mount inside of the data set"),
        layer.opened(host),
    ):
        pytest.fail("opened")


@pytest.mark.integration
def test_bare_metal_writes_in_a_volume_that_is_to_be_written(tmp_path: Path) -> None:
    require_root()
    place = tmp_path / "scratch"
    place.mkdir(mode=0o700)
    with (
        local_node(ENVELOPE.cpus, str(require_image().tree), str(place)) as host,
        UserlandLayer(ENVELOPE, writable=True).opened(host) as inside,
    ):
        for directory in (MOUNT, "/tmp", "/dev/shm"):
            inside.run(["touch", f"{directory}/file"])
        first = inside.start(["tail", "--follow", "/etc/os-release"])
        assert next(first.lines(60))
        seen = inside.run(["ps", "-e", "-o", "comm="]).stdout.split()
        assert "tail" in seen, "one command sees another of the same place"
        assert len(seen) < 12, "and nobody else"
        first.kill()
    assert (place / "file").stat().st_uid > 0x7000_0000
