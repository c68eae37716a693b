"""The records behind a part of docs/evidence: a pack that anyone can verify, and the numbers of the page made from it.

After a change that computes or names a number otherwise, look at what differs, and write the pack anew from itself:
``bench results pack`` of the directories below ``runs/`` of the unpacked one, with ``--anonymous``.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.paths import unpacked
from commands.results.pack import VerifiedPack
from tests.analysis.conftest import bench

DOCS = Path(__file__).parents[1] / "docs/evidence"
PACK = DOCS / "papers.tar.gz"
MOST_BYTES = 2_000_000
SECTION = "## Papers, measured again"
RATIO = re.compile("(?<![\\d.])(\\d+\\.\\d+) \\((\\d+\\.\\d+)\N{EN DASH}(\\d+\\.\\d+)\\)")
PRIVATE = re.compile(r"(?<![\d.])(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d+){2,3}(?![\d.])")
HOMES = re.compile(r"/(?:home|root|work|tmp|mnt|srv)/")


def section() -> str:
    text = (DOCS / "README.md").read_text().partition(SECTION)[2]
    return text.partition("\n## ")[0]


@pytest.fixture(scope="module")
def verified() -> Any:
    return json.loads(bench("results", "verify", PACK, "--json").stdout)


def test_the_pack_is_small_and_anonymous() -> None:
    assert PACK.stat().st_size <= MOST_BYTES
    with unpacked(PACK) as (directory, listed):
        assert listed.anonymous
        texts = {path: path.read_text() for path in directory.rglob("*") if path.is_file()}
    for path, text in texts.items():
        if "/image/" not in str(path):
            assert not HOMES.search(text), path
            assert not PRIVATE.search(text), path


def test_every_number_of_the_pack_is_computed_again_and_equal(verified: dict[str, Any]) -> None:
    """The page and words of advice alone may differ: another version of the suite writes them, or with other fonts."""
    assert verified["refused"] == 0
    assert verified["records"] > 40
    assert verified["numbers"] > 1000
    assert VerifiedPack.model_validate(verified).decisive == (), "write the pack anew, see above"


def test_its_manifests_list_every_record(verified: dict[str, Any]) -> None:
    with tarfile.open(PACK) as archive:
        names = archive.getnames()
    trials = [name for name in names if "/trials/" in name]
    assert len(trials) == verified["records"]
    assert {name.split("/")[1] for name in trials} == {run.split("/")[1] for run in verified["runs"]}


def _ratios() -> Iterator[tuple[str, str, str]]:
    rows = json.loads(bench("compare", PACK, "--json").stdout)["rows"]
    for row in rows:
        if row["ratio"] and row["low"] is not None:
            yield tuple(f"{row[name]:.3f}" for name in ("ratio", "low", "high"))  # type: ignore[misc]


def test_every_ratio_of_the_page_is_one_of_the_pack() -> None:
    printed = RATIO.findall(section())
    assert len(printed) >= 3
    assert {*printed} <= {*_ratios()}


def test_the_page_names_the_command_that_verifies_it() -> None:
    assert "bench results verify docs/evidence/papers.tar.gz" in section()
