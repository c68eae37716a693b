"""Members that run in targets: the examples of the documentation, used from the command line."""

import hashlib
import json
from typing import Any

import numpy as np

from tests.extensions.conftest import REPOSITORY, Package

EXTENDING = (REPOSITORY / "docs" / "guide" / "extending.md").read_text()

HERE = ("bare-metal",)
"""Every target of these tests is this machine: two of them where they are compared."""
OWN_TRAINING = (REPOSITORY / "docs" / "guide" / "own-training.md").read_text()


def example(heading: str, document: str = EXTENDING) -> str:
    """Return the module of a section of the documentation."""
    section = document.partition(f"## {heading}\n")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def bench(package: Package, *words: str) -> str:
    """Return what ``bench`` prints on targets that are all this machine."""
    done = package.bench(*words, program="tests.extended_machine")
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(package: Package, *words: str, targets: tuple[str, ...] = ("bare-metal", "container")) -> list[dict[str, Any]]:
    """Run one block; returns the records."""
    out, places = package.place / "out", [word for target in targets for word in ("--target", target)]
    bench(package, "run", *words, *places, "--profile", "smoke", "--out", str(out))
    return [json.loads(path.read_text()) for path in sorted((out / "trials").iterdir())]


def rows(package: Package) -> dict[tuple[str, str], dict[str, Any]]:
    compared = json.loads(bench(package, "compare", str(package.place / "out"), "--json"))
    assert [warning["message"] for warning in compared["warnings"] if warning["kind"] == "incomparable"] == []
    return {(row["target"], row["metric"]): row for row in compared["rows"]}


def test_a_workload_with_a_metric_of_its_own(package: Package) -> None:
    digest = package.add("virtbench.workloads", "toy", example("A workload"), "TOY")
    records = run(package, "--model", "toy")
    assert [record["job"]["workload_sha256"] for record in records] == [digest] * 2
    assert [len(record["metrics"]["loss"]["samples"]) for record in records] == [2] * 2
    found = rows(package)
    assert {metric for _, metric in found} == {"throughput", "elapsed", "opening", "step-tail", "loss", "slowest-step"}
    slowest = found["container", "slowest-step"]
    assert (slowest["unit"], slowest["trials"], slowest["ratio"] > 0) == ("ms", 1, True)


def test_a_kind_of_data_set(package: Package) -> None:
    digest = package.add("virtbench.data-kinds", "toy", example("A kind of data set"), "TOY")
    place = package.place / "set"
    place.mkdir()
    np.save(place / "pixels.npy", np.zeros((6, 70, 70, 3), np.uint8))
    records = run(package, "--scenario", "real", "--data", f"toy:{place}", "--model", "dcgan", targets=HERE)
    assert [record["job"]["dataset"]["kind_sha256"] for record in records] == [digest]
    assert [(record["data_use"]["kind"], record["data_use"]["images"]) for record in records] == [("toy", 6)]


def test_a_workload_in_a_file(package: Package) -> None:
    source = example("A workload in a file", OWN_TRAINING)
    (package.place / "my_model.py").write_text(source)
    (record,) = run(package, "--model", "./my_model.py", targets=HERE)
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert (record["job"]["model"], record["job"]["workload_sha256"]) == ("my_model.py", digest)
    assert record["throughput_per_s"] > 0


def test_a_command(package: Package) -> None:
    (package.place / "mine").mkdir()
    (package.place / "mine/train.py").write_text(example("A command", OWN_TRAINING))
    command = ("--scenario", "command", "--command", "python train.py --epochs 2", "--command-files", "mine")
    (record,) = run(package, *command, "--throughput", "json", "--unit", "rows", targets=HERE)
    assert (record["job"]["model"], record["job"]["unit"], record["details"]["steps"]) == ("train.py", "rows", 40)
    found = {metric for _, metric in rows(package)}
    assert found == {"throughput", "elapsed", "opening", "step-tail", "cpu-time", "peak-memory"}


def test_a_command_without_a_throughput_is_decided_by_its_time(package: Package) -> None:
    run(package, "--scenario", "command", "--command", "sleep 0.3")
    compared = json.loads(bench(package, "compare", str(package.place / "out"), "--json"))
    assert {claim["metric"] for claim in compared["answer"]["claims"]} == {"elapsed"}


def test_a_probe(package: Package) -> None:
    digest = package.add("virtbench.probes", "toy", example("A probe"), "TOY")
    records = run(package, "--scenario", "probe", "--probe", "toy")
    assert [record["job"]["workload_sha256"] for record in records] == [digest] * 2
    assert [record["details"] for record in records] == [{"size": "smoke"}] * 2
    found = rows(package)
    assert ({metric for _, metric in found}, found["container", "sum"]["ratio"] > 0) == ({"sum"}, True)


def test_an_aggressor(package: Package) -> None:
    digest = package.add("virtbench.aggressors", "toy", example("An aggressor"), "TOY")
    words = ("--scenario", "shared", "--model", "gan", "--aggressor", "toy")
    records = run(package, *words, targets=HERE)
    beside = [record for record in records if record["aggressor"] == "toy"]
    assert [record["job"]["sharing"]["sources"] for record in beside] == [{"toy": digest}]
    assert {record["aggressors"][0]["aggression"]["unit"] for record in beside} == {"sums"}
