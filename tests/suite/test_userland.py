import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite import userland
from suite.userland import Entry, differences, manifest_digest, parse_line, walk, write_manifest

FILES = {"bin/tool": b"#!\n", "etc/name with\ttab": b"x", "opt/virtbench/worker.py": b"print()", "usr/share/a": b"aaaa"}


def grow(root: Path, order: list[str] | None = None) -> Path:
    """A small tree: files, an empty directory, a link, in the order given."""
    for name in order or list(FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FILES[name])
        path.chmod(0o755 if name.startswith("bin") else 0o644)
    (root / "usr/empty").mkdir()
    (root / "lib").symlink_to("usr/lib")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with its manifest."""
    root = grow(tmp_path / "tree")
    write_manifest(str(root))
    return root


def test_a_tree_agrees_with_its_own_manifest_whose_digest_is_that_of_the_tree(tree: Path) -> None:
    assert differences(str(tree), everything=True) == differences(str(tree), everything=False) == []
    assert manifest_digest(str(tree)) == write_manifest(str(tree))
    lines = (tree / userland.MANIFEST).read_text().splitlines()
    paths = [parse_line(line).path for line in lines]
    assert paths == sorted(paths)
    assert {"bin/tool", "lib", "usr/empty", "etc/name with\ttab"} < set(paths)
    assert userland.MANIFEST not in paths
    assert manifest_digest(str(tree / "usr")) is None, "a tree without a manifest"


def test_the_digest_depends_neither_on_the_order_of_making_nor_on_times(tmp_path: Path) -> None:
    one, other = grow(tmp_path / "one"), grow(tmp_path / "other", list(reversed(FILES)))
    os.utime(other / "bin/tool", (1, 1))
    os.utime(other / "usr", (2, 2))
    assert write_manifest(str(one)) == write_manifest(str(other))


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tree: (tree / "usr/share/a").write_bytes(b"aaaaa"), "/usr/share/a: 5 bytes instead of 4"),
        (lambda tree: (tree / "bin/tool").chmod(0o700), "/bin/tool: permissions 700 instead of 755"),
        (lambda tree: (tree / "bin/tool").chmod(0o4755), "/bin/tool: permissions 4755 instead of 755"),
        (lambda tree: (tree / "usr/empty").rmdir(), "/usr/empty is missing"),
        (lambda tree: (tree / "usr/more").touch(), "/usr/more is not in the manifest"),
        (lambda tree: (tree / "usr/tmp").mkdir(), "/usr/tmp is not in the manifest"),  # as what is excluded elsewhere
        (lambda tree: (tree / "tmpx").mkdir(), "/tmpx is not in the manifest"),
        (lambda tree: replaced(tree / "lib", partial(os.symlink, "usr/lib64")), "/lib: other target"),
        (lambda tree: replaced(tree / "bin/tool", partial(os.symlink, "b")), "/bin/tool: a link instead of a file"),
        (lambda tree: replaced(tree / "usr/share/a", os.mkfifo), "/usr/share/a: a other instead of a file"),
    ],
)
@pytest.mark.parametrize("everything", [True, False])
def test_each_difference_is_found(tree: Path, change: Callable[[Path], None], found: str, everything: bool) -> None:
    change(tree)
    assert differences(str(tree), everything=everything) == [found]


def test_another_content_of_the_same_size_is_found_when_everything_is_hashed(tree: Path) -> None:
    digest = write_manifest(str(tree))
    (tree / "usr/share/a").write_bytes(b"bbbb")
    assert differences(str(tree), everything=True) == ["/usr/share/a: other content"]
    assert differences(str(tree), everything=False) == []
    assert write_manifest(str(tree)) != digest


def test_the_suites_own_files_are_always_hashed(tree: Path) -> None:
    (tree / "opt/virtbench/worker.py").write_bytes(b"print(")
    assert differences(str(tree), everything=False) == ["/opt/virtbench/worker.py: 6 bytes instead of 7"]
    (tree / "opt/virtbench/worker.py").write_bytes(b"print[]")
    assert differences(str(tree), everything=False) == ["/opt/virtbench/worker.py: other content"]


def test_a_directory_that_is_gone_is_named_with_all_that_was_in_it(tree: Path) -> None:
    (tree / "usr/share/a").unlink()
    (tree / "usr/share").rmdir()
    assert differences(str(tree), everything=True) == ["/usr/share is missing", "/usr/share/a is missing"]


def test_what_a_runtime_mounts_over_a_tree_is_not_seen(tree: Path) -> None:
    digest = manifest_digest(str(tree))
    for place in ("dev", "proc", "sys", "run", "tmp", "var/log"):
        (tree / place).mkdir(parents=True)
        (tree / place / "something").write_text("of the runtime")
    (tree / "etc/hostname").write_text("here")
    (tree / ".dockerenv").touch()
    assert differences(str(tree), everything=True) == ["/var is not in the manifest"], "var itself belongs to the tree"
    (tree / "var/log/something").unlink()
    (tree / "var/log").rmdir()
    (tree / "var").rmdir()
    assert write_manifest(str(tree)) == digest


def test_nothing_is_hashed_where_no_content_is_asked_for(tree: Path) -> None:
    entries = {entry.path: entry for entry in walk(str(tree), None)}
    assert {entry.content for entry in entries.values() if entry.kind == "file"} == {""}
    assert entries["lib"].content == "usr/lib"


names = st.text(st.characters(exclude_characters="\0"), min_size=1)


@given(names, st.sampled_from(["file", "link", "directory", "other"]), st.integers(0, 0o7777), st.integers(0), names)
def test_a_line_of_the_manifest_comes_back(path: str, kind: str, mode: int, size: int, content: str) -> None:
    entry = Entry(path, kind, mode, size, content)
    line = entry.line()
    assert (line.isascii(), line.find("\n")) == (True, len(line) - 1)
    assert parse_line(line) == entry


def test_names_that_are_no_utf_8_are_kept(tmp_path: Path) -> None:
    (tmp_path / "opt/virtbench").mkdir(parents=True)
    with open(os.fsencode(tmp_path) + b"/caf\xe9", "wb") as file:  # noqa: PTH123 (a Path is text)
        file.write(b"x")
    write_manifest(str(tmp_path))
    assert differences(str(tmp_path), everything=True) == []


def test_what_a_user_may_not_see_is_left_out_of_attestations_alone(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def closed(path: str) -> "os._ScandirIterator[str]":
        if path.endswith("usr/share/"):
            raise PermissionError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert differences(str(tree), everything=False) == []
    (tree / "usr/empty").rmdir()
    assert differences(str(tree), everything=False) == ["/usr/empty is missing"]
    with pytest.raises(PermissionError):
        differences(str(tree), everything=True)
