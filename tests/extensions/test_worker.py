"""Each registry gets a member from one file outside the tree, by an entry point; it is used from the command line."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
EXTENDING = (REPOSITORY / "docs" / "extending.md").read_text()
Bench = Callable[..., str]
Extended = Callable[[str, str], Bench]


def example(heading: str) -> str:
    """Return the module of a section of the documentation."""
    section = EXTENDING.partition(f"## {heading}\n")[2]
    return section.partition("```python\n")[2].partition("```")[0]


@pytest.fixture
def extended(tmp_path: Path) -> Extended:
    """``extended(group, source)`` gives a ``bench(words...)`` for which a package has added TOY to a registry."""

    def extend(group: str, source: str) -> Bench:
        (tmp_path / "their_toy.py").write_text(source)
        package = tmp_path / "their_toy-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-toy\nVersion: 1.0\n")
        (package / "entry_points.txt").write_text(f"[{group}]\ntoy = their_toy:TOY\n")

        def bench(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "tests.extended_machine", *words],
                env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "VIRTBENCH_HOME": str(tmp_path / "home")},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        return bench

    return extend


def run(bench: Bench, tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """Run one block on two targets; returns the records."""
    out = tmp_path / "out"
    bench("run", *words, "--target", "bare-metal", "--target", "container", "--profile", "smoke", "--out", str(out))
    return [json.loads(path.read_text()) for path in sorted((out / "trials").iterdir())]


def rows(bench: Bench, tmp_path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of a comparison by target and metric."""
    compared = json.loads(bench("compare", str(tmp_path / "out"), "--json"))
    return {(row["target"], row["metric"]): row for row in compared["rows"]}


def test_a_workload_with_a_metric_of_its_own(extended: Extended, tmp_path: Path) -> None:
    source = example("A workload")
    bench = extended("virtbench.workloads", source)
    records = run(bench, tmp_path, "--model", "toy")
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert [record["job"]["workload_sha256"] for record in records] == [digest] * 2
    assert [len(record["metrics"]["loss"]["samples"]) for record in records] == [2] * 2
    found = rows(bench, tmp_path)
    assert {metric for _, metric in found} == {"throughput", "elapsed", "opening", "loss", "slowest-step"}
    assert found["container", "slowest-step"]["unit"] == "ms"
    assert found["container", "slowest-step"]["ratio"] > 0
    assert found["container", "slowest-step"]["trials"] == 1


def test_a_probe(extended: Extended, tmp_path: Path) -> None:
    source = example("A probe")
    bench = extended("virtbench.probes", source)
    records = run(bench, tmp_path, "--scenario", "probe", "--probe", "toy")
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert [record["job"]["workload_sha256"] for record in records] == [digest] * 2
    assert [record["details"] for record in records] == [{"size": "smoke"}] * 2
    found = rows(bench, tmp_path)
    assert {metric for _, metric in found} == {"sum"}
    assert found["container", "sum"]["ratio"] > 0


def test_an_aggressor(extended: Extended, tmp_path: Path) -> None:
    source = example("An aggressor")
    bench = extended("virtbench.aggressors", source)
    words = ("--scenario", "shared", "--model", "alexnet", "--aggressor", "toy", "--bare-metal-cpus", "unrestricted")
    records = run(bench, tmp_path, *words)
    beside = [record for record in records if record["aggressor"] == "toy"]
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert [record["details"]["aggressor_sha256"] for record in beside] == [digest] * 2
    assert {record["aggressors"][0]["aggression"]["unit"] for record in beside} == {"sums"}
