"""A kind of contrast that another package adds: one file, one line."""

import csv
import io
import json

import pytest

from tests.extensions.conftest import REPOSITORY, Package
from tests.extensions.test_worker import example

RUN = REPOSITORY / "tests/samples/runs/synthetic-podman"


def test_a_kind_of_contrast_is_shown_in_the_table_the_json_and_the_csv(package: Package) -> None:
    package.add("virtbench.contrasts", "over-container", example("A kind of contrast"), "OVER_CONTAINER")
    package.add("virtbench.contrasts", "torn", "raise RuntimeError('torn')")
    texts = {}
    for form in ("--verbose", "--json", "--csv"):
        done = package.bench("compare", str(RUN), form, *(["--plots", "plots"] if form == "--verbose" else []))
        assert done.returncode == 0, done.stderr
        texts[form] = done.stdout
    rows = {(row["kind"], row["target"], row["metric"]): row for row in json.loads(texts["--json"])["rows"]}
    own, over_base = rows["over-container", "bare-metal", "throughput"], rows["target", "container", "throughput"]
    assert own["ratio"] * over_base["ratio"] == pytest.approx(1)
    assert own["withheld"] == over_base["withheld"], "it is withheld as all others are"
    columns = [row["kind"] for row in csv.DictReader(io.StringIO(texts["--csv"]))]
    assert columns.count("over-container") == len([key for key in rows if key[0] == "over-container"]) > 0
    shown = " ".join(texts["--verbose"].split())
    assert "over-container in the same blocks, over container" in shown
    assert f"{own['ratio']:.3f}x" in shown
