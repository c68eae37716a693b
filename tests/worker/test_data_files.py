"""Files of a data set: one listing wherever they are mounted, and the page cache as the worker arranges it."""

import errno
import hashlib
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.test_worker_program import REPOSITORY, worker
from worker.data import page_cache
from worker.data.listing import Listing, files, listing


def fill(root: Path, *names: str, content: bytes = b"xy") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def paths(root: Path) -> list[str]:
    return [os.fsdecode(path) for path, _ in files(root)]


def test_the_hash_is_over_a_line_of_size_and_path_for_every_file(tmp_path: Path) -> None:
    fill(tmp_path, "b/2.jpg", "a/1.jpg")
    lines = b"2 a/1.jpg\n2 b/2.jpg\n"
    assert listing(tmp_path) == Listing(hashlib.sha256(lines).hexdigest(), 2, 4)


@given(
    names=st.sets(
        st.lists(
            st.text("ab.-0\u00e9", min_size=1, max_size=4).filter(lambda n: n[0] != "."), min_size=1, max_size=3
        ).map("/".join),
        max_size=12,
    )
)
def test_files_come_in_the_order_of_the_bytes_of_their_paths(
    tmp_path_factory: pytest.TempPathFactory, names: set[str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    wanted = {name for name in names if not any(other.startswith(f"{name}/") for other in names)}
    fill(root, *wanted)
    assert paths(root) == sorted(wanted, key=os.fsencode)


def test_names_that_are_no_text_are_listed(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"1")
    assert list(files(tmp_path)) == [(b"\xff.jpg", 1)]


def test_hidden_files_the_manifest_and_the_file_systems_own_are_no_data(tmp_path: Path) -> None:
    fill(tmp_path, "manifest.json", "lost+found/#1", ".hidden", "a/.tmp", ".git/x", "a/manifest.json", "plan.json")
    assert paths(tmp_path) == ["a/manifest.json", "plan.json"]


def test_links_to_files_and_directories_are_followed(tmp_path: Path) -> None:
    fill(tmp_path / "elsewhere", "1.jpg", "c/2.jpg")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "one.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    assert list(files(root)) == [(b"linked/1.jpg", 2), (b"linked/c/2.jpg", 2), (b"one.jpg", 2)]


def test_one_directory_under_two_names_is_no_circle(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg")
    (tmp_path / "b").symlink_to("a")
    assert paths(tmp_path) == ["a/1.jpg", "b/1.jpg"]


@pytest.mark.parametrize("to", [".", "..", "../..", "again"])
def test_links_in_a_circle_are_an_error_and_not_for_ever(tmp_path: Path, to: str) -> None:
    fill(tmp_path, "root/a/1.jpg")
    (tmp_path / "root" / "a" / "again").symlink_to(to)
    with pytest.raises(OSError, match="again") as raised:
        listing(tmp_path / "root")
    assert raised.value.errno == errno.ELOOP


def test_a_link_to_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        listing(tmp_path)


def test_what_is_no_file_is_no_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert listing(tmp_path).files == 0


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_what_is_no_directory_is_an_error(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "file")
    with pytest.raises(OSError, match=name):
        listing(tmp_path / name)


def test_an_empty_directory_has_a_listing_of_nothing(tmp_path: Path) -> None:
    assert listing(tmp_path) == Listing(hashlib.sha256(b"").hexdigest(), 0, 0)


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Some pages, a page and a byte, and nothing at all; skips where the files are memory and nothing else."""
    device = tmp_path.stat().st_dev
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if f" {os.major(device)}:{os.minor(device)} " in line and " - tmpfs " in line:
            pytest.skip("a file system in memory has no page cache to empty")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "large").write_bytes(os.urandom(40 * mmap.PAGESIZE))
    (tmp_path / "a" / "small").write_bytes(os.urandom(mmap.PAGESIZE + 1))
    (tmp_path / "empty").touch()
    return tmp_path


def test_cold_and_warm_are_seen_by_the_kernel(pages: Path) -> None:
    assert page_cache.arrange("warm", str(pages))["page_cache_share"] == 1.0
    assert page_cache.arrange("cold", str(pages))["page_cache_share"] == 0.0
    assert page_cache.arrange("warm", str(pages))["page_cache_share"] == 1.0


def test_the_share_is_one_of_pages(pages: Path) -> None:
    page_cache.arrange("cold", str(pages))
    (pages / "a" / "small").read_bytes()
    paths = [os.fsencode(pages / "a" / name) for name in ("large", "small")]
    assert page_cache.share(paths) == 2 / 42


def test_nothing_has_no_share(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.arrange("cold", str(tmp_path))["page_cache_share"] is None


@pytest.mark.parametrize(
    ("status", "told"), [("CapEff:\t0000000000000008", True), ("CapEff:\t0000000000000000", False), ("", False)]
)
def test_a_share_that_the_kernel_hides_is_absent(
    status: str, told: bool, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(page_cache, "read", lambda _: status)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert (page_cache.share([os.fsencode(pages / "a" / "small")]) is not None) is told


def test_the_worker_prints_one_object_and_imports_no_torch(pages: Path) -> None:
    status, told, _ = worker("", "--page-cache", "cold", str(pages))
    assert (status, told) == (0, [{**page_cache.arrange("cold", str(pages)), "page_cache_share": 0.0}])
    program = "import sys; import worker.data.page_cache; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    status, told, errors = worker("", "--page-cache", "warm", str(tmp_path / "nowhere"))
    assert (status, told) == (1, [])
    assert "nowhere" in errors.splitlines()[-1]
