import os
import stat
from pathlib import Path

import pytest

from provisioning.images.image import Image
from provisioning.paths import home, runtime, state
from suite.errors import RequestError

SOMEBODY = 4242


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user who is not root keeps sockets, before it is made; the tests may run as root."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    return tmp_path / f"virtbench-{os.geteuid()}"


def made(place: Path, permissions: int) -> None:
    """Make it as its user would have."""
    place.mkdir()
    place.chmod(permissions)
    if os.getuid() == 0:
        os.chown(place, os.geteuid(), -1)


def test_the_home_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "there"))
    assert home() == tmp_path / "there"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTBENCH_HOME", "relative")
    assert home() == tmp_path / "relative"


def test_the_home_of_root_and_of_others_is_the_usual_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTBENCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(place.parent / "data"))
    assert home() == place.parent / "data/virtbench"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(place.parent))
    assert home() == place.parent / ".local/share/virtbench"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert home() == Path("/var/lib/virtbench")


def test_a_folder_of_the_state_is_made_for_this_user_alone(home: Path) -> None:
    made_now = state("cache", "deep")
    assert made_now == home / "cache/deep"
    assert mode(made_now) == 0o700
    assert state("cache", "deep") == made_now


def test_the_tree_of_an_image_is_named_without_a_link_to_the_folder_of_images(home: Path, tmp_path: Path) -> None:
    (tmp_path / "disk/images").mkdir(parents=True)
    home.mkdir()
    (home / "images").symlink_to(tmp_path / "disk/images")
    image = Image(digest="a" * 64, variant="cpu", recipe_sha256="b" * 64, created_at="2026", base="debian", files={})
    assert image.tree == tmp_path / "disk/images" / ("a" * 12) / "tree"


@pytest.mark.parametrize("permissions", [0o700, 0o777])
def test_the_runtime_folder_is_private_or_is_made_so(place: Path, permissions: int) -> None:
    made(place, permissions)
    assert runtime() == place
    assert mode(place) == 0o700


def test_nothing_goes_into_a_runtime_folder_of_somebody_else(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(place, 0o700)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    foreign = place.with_name(f"virtbench-{mine + 1}")
    place.rename(foreign)
    with pytest.raises(RequestError, match=f"{foreign} belongs to somebody else") as caught:
        runtime()
    assert "XDG_RUNTIME_DIR" in str(caught.value.remedy)
    assert list(foreign.iterdir()) == []


def test_a_link_of_somebody_else_is_not_followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = place.with_name("mine")
    made(mine, 0o755)
    place.symlink_to(mine)
    if os.getuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        place.rename(place.with_name(f"virtbench-{os.getuid() + 1}"))
    with pytest.raises(RequestError, match="belongs to somebody else"):
        runtime()
    assert mode(mine) == 0o755
