"""The page cache as the worker arranges and measures it, on this machine's own files."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.data import page_cache
from worker.data.listing import listing

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def files(tmp_path: Path) -> Path:
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


def test_cold_and_warm_are_seen_by_the_kernel(files: Path) -> None:
    assert page_cache.arrange("warm", str(files))["page_cache_share"] == 1.0
    assert page_cache.arrange("cold", str(files))["page_cache_share"] == 0.0
    assert page_cache.arrange("warm", str(files))["page_cache_share"] == 1.0


def test_the_share_is_one_of_pages(files: Path) -> None:
    page_cache.arrange("cold", str(files))
    (files / "a" / "small").read_bytes()
    paths = [os.fsencode(files / "a" / name) for name in ("large", "small")]
    assert page_cache.share(paths) == 2 / 42


def test_nothing_has_no_share(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.arrange("cold", str(tmp_path))["page_cache_share"] is None


def test_the_set_is_told_as_the_host_lists_it(files: Path) -> None:
    seen, told = listing(files), page_cache.arrange("warm", str(files))
    assert (told["sha256"], told["files"], told["size_bytes"]) == (seen.sha256, seen.files, seen.size_bytes)


def test_a_share_that_the_kernel_hides_is_absent(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(page_cache, "read", lambda _: "CapEff:\t0000000000000000")
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert page_cache.arrange("warm", str(files))["page_cache_share"] is None


@pytest.mark.parametrize(("status", "told"), [("CapEff:\t0000000000000008", True), ("", False)])
def test_who_owns_all_files_is_told(status: str, told: bool, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(page_cache, "read", lambda _: status)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert (page_cache.share([os.fsencode(files / "a" / "small")]) is not None) is told


def worker(*arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "worker", "--page-cache", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, check=False)


def test_the_worker_prints_one_object_and_imports_no_torch(files: Path) -> None:
    done = worker("cold", str(files))
    assert done.returncode == 0
    assert json.loads(done.stdout) == {**page_cache.arrange("cold", str(files)), "page_cache_share": 0.0}
    program = "import sys; import worker.data.page_cache; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True)


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = worker("warm", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "nowhere" in done.stderr.splitlines()[-1]


def test_an_unknown_state_is_a_wrong_request(tmp_path: Path) -> None:
    assert worker("hot", str(tmp_path)).returncode == 2
