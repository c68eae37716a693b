"""The suite's folders: where they are, and what is removed with them."""

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from provisioning import uninstall
from provisioning.images.image import Image
from provisioning.images.tree import BUILDERS
from provisioning.paths import home, runtime, state
from suite.errors import RequestError
from suite.interfaces import Completed
from tests.provisioning.conftest import FakeNode, make

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


def test_the_home_is_where_the_user_says_or_the_usual_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    for given in (str(place.parent / "there"), "there"):
        monkeypatch.setenv("VIRTBENCH_HOME", given)
        assert home() == place.parent / "there"
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


PODMAN = BUILDERS[0]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a cache, an image on another disk, and a file of somebody else's; no engine works."""
    monkeypatch.setattr(uninstall, "BUILDERS", ())
    monkeypatch.setattr(uninstall, "runtime", lambda: home().parent / "runtime")
    for name in ("runtime/node-of-another-home", "elsewhere"):
        (home().parent / name).mkdir(parents=True)
    make(home(), {"cache/base.tar": "x", "notes.txt": "mine"})
    (home() / "images").symlink_to(home().parent / "elsewhere")
    return home()


def test_everything_that_the_suite_keeps_is_removed_and_nothing_else(kept: Path) -> None:
    ended = CliRunner().invoke(main, ["clean", "--all"])
    assert ended.exit_code == 0, ended.output
    assert f"removed: {kept / 'cache'}\n" in ended.output
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]
    assert not (kept.parent / "elsewhere").exists()
    assert (kept.parent / "runtime/node-of-another-home").exists()


def test_results_are_never_removed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uninstall, "find_runs", lambda _: [kept / "data/night"])
    ended = CliRunner().invoke(main, ["clean", "--all"])
    assert ended.exit_code == 2
    assert "holds results" in ended.output
    assert (kept / "cache/base.tar").exists()


def test_of_an_engine_the_suites_images_are_removed_by_name_and_label() -> None:
    listing = (PODMAN.program, "images", "--no-trunc", "--format")
    named = "b1 localhost/virtbench-base\nc2 virtbench\nd3 localhost/mine\ne4 <none>\nf5 virtbenches/x\ng6 <none>\n"
    answers = {
        (*listing, "{{.ID}} {{.Repository}}"): named,
        (*listing, "{{.ID}} {{.Repository}}", "--filter"): "e4 <none>\n",
        (*listing, "{{.ID}} {{.History}}"): "g6 localhost/virtbench-build:cpu\nh7 localhost/mine:virtbench\n",
    }
    node = FakeNode({argv: Completed(0, text, "") for argv, text in answers.items()})
    removed = uninstall._remove_images(node, PODMAN)  # type: ignore[arg-type]
    names = ("localhost/virtbench-base", "virtbench", "localhost/virtbench-build:cpu", "<none>")
    assert removed == [f"image of podman: {name}" for name in names]
    assert node.ran[-1] == ["podman", "rmi", "--force", "b1", "c2", "g6", "e4"]
