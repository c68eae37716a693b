"""``bench clean --all``: what is removed, and what never is."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from provisioning import uninstall
from provisioning.images.tree import BUILDERS
from provisioning.paths import home
from suite.interfaces import Completed
from tests.provisioning.conftest import FakeNode

PODMAN = BUILDERS[0]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a cache, an image on another disk, and a file of somebody else's; no engine works."""
    monkeypatch.setattr(uninstall, "BUILDERS", ())
    monkeypatch.setattr(uninstall, "runtime", lambda: home().parent / "runtime")
    (home().parent / "runtime/node-of-another-home").mkdir(parents=True)
    (home() / "cache").mkdir(parents=True)
    (home() / "cache/base.tar").write_text("x")
    (home().parent / "elsewhere").mkdir()
    (home() / "images").symlink_to(home().parent / "elsewhere")
    (home() / "notes.txt").write_text("mine")
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
