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
    named = ("b1 localhost/virtbench-base", "c2 virtbench", "d3 localhost/mine", "e4 <none>", "f5 virtbenches/x")
    listed = (PODMAN.program, "images", "--no-trunc", "--format", "{{.ID}} {{.Repository}}")
    marked = (*listed, "--filter", "label=virtbench")
    node = FakeNode({listed: Completed(0, "\n".join(named), ""), marked: Completed(0, "e4 <none>\n", "")})
    removed = uninstall._remove_images(node, PODMAN)  # type: ignore[arg-type]
    assert removed == [f"image of podman: {name}" for name in ("localhost/virtbench-base", "virtbench", "<none>")]
    assert node.ran[-1] == ["podman", "rmi", "--force", "b1", "c2", "e4"]
