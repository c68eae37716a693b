"""``bench results pack`` and ``verify``: a pack holds all that its numbers need, and nothing that it must not hold."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from commands.paths import unpacked
from suite.results.anonymous import Anonymiser
from suite.results.archive import LIST, write_pack
from suite.results.store import ListedFile, Run
from tests.analysis.conftest import edited
from tests.commands.conftest import Bench
from tests.hostile.conftest import RUNS
from tests.test_rooms import REPOSITORY

USER, HOST = "alice", "cellar7"


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """A run with a manifest, of a host and a user whose names stand in its records."""
    run = Path(shutil.copytree(RUNS / "command", tmp_path / "results/night"))
    for path in (run / "trials").iterdir():
        edited(path, _named)
    Run(run).seal()
    return run


def _named(record: dict[str, object]) -> None:
    text = json.dumps(record["environment"]).replace('"hostname": "vm"', f'"hostname": "{HOST}"')
    record["environment"] = json.loads(text)
    record["details"] = {
        "working_directory": {"directory": "/home/alice/data"},
        "note": f"on {HOST}.example.org by {USER}",
        "notes": [f'File "/srv/data of {USER}/x.py" at 81.2.69.142'],
    }


def ended(bench: Bench, *words: str) -> None:
    done = bench(*words)
    assert done.exit_code == 0, done.output


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def repacked(path: Path, changes: Mapping[str, bytes]) -> Path:
    """Write the pack again with other contents, listed as they are now, as its author could."""
    target = path.with_name("repacked.tar.gz")
    with unpacked(path) as (directory, listed):
        for name, content in changes.items():
            (directory / name).write_bytes(content)
        contents = {name: directory / name for name in listed.files}
        described = {name: ListedFile.of(file) for name, file in contents.items()}
        write_pack(target, contents, listed.model_copy(update={"files": described}))
    return target


def test_a_pack_holds_what_a_reader_needs_and_is_verified_bit_for_bit(bench: Bench, night: Path) -> None:
    ended(bench, "results", "pack", str(night), "--out", "night.tar.gz")
    packed = members(Path("night.tar.gz"))
    assert {"CITATION.cff", "image/requirements.txt", "environment.json", "report.html", "audit.json"} < packed.keys()
    assert {f"runs/night/{name}" for name in ("plan.json", "manifest.json")} < packed.keys()
    assert "virtbench-pack-" not in packed["comparison.json"].decode() + packed["report.html"].decode()
    listed = json.loads(packed[LIST])
    assert re.fullmatch(r"0\.1\.0\+[0-9a-f]{12}", listed["suite_version"])
    done = bench("results", "verify", "night.tar.gz", "--json")
    verified = json.loads(done.stdout)
    assert (done.exit_code, verified["differing"], verified["refused"]) == (0, [], 0)
    assert verified["numbers"] > 100
    assert verified["records"] == len(list((night / "trials").iterdir()))


def test_the_page_and_the_advice_of_another_version_of_the_suite_may_be_other_words(
    bench: Bench, night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(bench, "results", "pack", str(night), "--out", "night.tar.gz")
    comparison = json.loads(members(Path("night.tar.gz"))["comparison.json"])
    comparison["warnings"][0]["advice"] = "in other words"
    changed = {"report.html": b"<html></html>", "comparison.json": json.dumps(comparison).encode()}
    other = repacked(Path("night.tar.gz"), changed)
    same_version = bench("results", "verify", str(other))
    assert (same_version.exit_code, "report.html has other bytes" in same_version.output) == (1, True)
    assert "warnings.0.advice" in same_version.output
    monkeypatch.setattr("commands.results.pack.suite_version", lambda: "0.2.0+0123456789ab")
    done = bench("results", "verify", str(other))
    assert done.exit_code == 0
    assert "bit for bit; the page and advice are written in another way by 0.2.0" in done.output
    verified = json.loads(bench("results", "verify", str(other), "--json").stdout)
    assert verified["reworded"] == verified["differing"]
    record = next(name for name in members(other) if "/trials/" in name)
    edited_text = members(other)[record].replace(b'"elapsed_s": ', b'"elapsed_s": 1')
    assert bench("results", "verify", str(repacked(other, {record: edited_text}))).exit_code == 1


@pytest.mark.parametrize(("share", "code"), [(1e-15, 0), (1e-9, 1)])
def test_the_last_digits_of_another_processor_are_named_and_are_no_other_number(
    bench: Bench, night: Path, share: float, code: int
) -> None:
    ended(bench, "results", "pack", str(night), "--out", "night.tar.gz")
    comparison = json.loads(members(Path("night.tar.gz"))["comparison.json"])
    row = next(row for row in comparison["rows"] if row["ratio"] not in (None, 1.0))
    row["ratio"] *= 1 + share
    other = repacked(Path("night.tar.gz"), {"comparison.json": json.dumps(comparison).encode()})
    done = bench("results", "verify", str(other))
    assert done.exit_code == code
    assert ("rounds otherwise" in done.output) == (code == 0)
    assert ".ratio: " in done.output


def test_equal_runs_give_equal_packs(bench: Bench, night: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        ended(bench, "results", "pack", str(night), "--out", name, "--anonymous")
    assert Path("a.tar.gz").read_bytes() == Path("b.tar.gz").read_bytes()


def test_a_pack_is_compared_as_its_runs_are(bench: Bench, night: Path) -> None:
    bench("results", "pack", str(night), "--out", "night.tar.gz")
    rows = [json.loads(bench("compare", place, "--json").stdout)["rows"] for place in (str(night), "night.tar.gz")]
    assert rows[0] == rows[1]
    ended(bench, "audit", "night.tar.gz")
    refused = bench("report", "night.tar.gz")
    assert (refused.exit_code, "--html" in refused.output) == (2, True)


def test_an_edited_record_changes_numbers_that_verify_names(bench: Bench, night: Path) -> None:
    bench("results", "pack", str(night), "--out", "night.tar.gz")
    packed = members(Path("night.tar.gz"))
    name = next(name for name in packed if "/trials/" in name and "container" in name)
    record = json.loads(packed[name])
    record["timeline"]["teardown_s"] += 0.5
    record["elapsed_s"] += 0.5
    forged = repacked(Path("night.tar.gz"), {name: json.dumps(record).encode()})
    done = bench("results", "verify", str(forged))
    assert done.exit_code == 1
    assert "comparison.json: rows." in done.output
    assert "1 refused by the audit" in done.output, "its digest is not that of the manifest"


def test_an_anonymous_pack_has_no_host_user_or_path_and_consistent_names(bench: Bench, night: Path) -> None:
    ended(bench, "results", "pack", str(night), "--out", "night.tar.gz", "--anonymous")
    packed = members(Path("night.tar.gz"))
    text = b"".join(content for name, content in packed.items() if not name.startswith("image/")).decode()
    for secret in (HOST, USER, "example.org", "81.2.69.142", "/home", "/srv", "night", str(night.parent)):
        assert secret not in text, secret
    assert "runs/run-1/plan.json" in packed
    records = [json.loads(content) for name, content in packed.items() if "/trials/" in name]
    assert {record["environment"]["host"]["hostname"] for record in records} == {"host-1"}
    assert {record["details"]["working_directory"]["directory"] for record in records} == {"/path-2"}
    ended(bench, "results", "verify", "night.tar.gz")


def test_a_host_named_as_a_target_is_renamed_and_the_target_is_not(bench: Bench, night: Path) -> None:
    for path in (night / "trials").iterdir():
        path.write_text(path.read_text().replace(HOST, "vm"))
    (night / "manifest.json").unlink()
    ended(bench, "results", "pack", str(night), "--out", "night.tar.gz", "--anonymous")
    packed = members(Path("night.tar.gz"))
    records = [json.loads(content) for name, content in packed.items() if "/trials/" in name]
    assert {record["environment"]["host"]["hostname"] for record in records} == {"host-1"}
    assert {record["target"] for record in records} >= {"bare-metal", "container"}


def test_an_edit_before_packing_is_found_in_an_anonymous_pack_too(bench: Bench, night: Path) -> None:
    record = min((night / "trials").iterdir())
    edited(record, lambda one: one["details"].update(note="edited"))
    bench("results", "pack", str(night), "--out", "night.tar.gz", "--anonymous")
    done = bench("results", "verify", "night.tar.gz")
    assert (done.exit_code, "1 refused by the audit" in done.output) == (1, True)


def test_a_pack_that_would_still_hold_a_name_is_not_written(
    bench: Bench, night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Anonymiser, "replaced", lambda _, value: value)
    done = bench("results", "pack", str(night), "--out", "night.tar.gz", "--anonymous")
    assert (done.exit_code, Path("night.tar.gz").exists()) == (2, False)
    assert f"would still hold '{HOST}'" in done.output


def test_a_file_is_no_run_to_pack(bench: Bench, night: Path) -> None:
    bench("results", "pack", str(night), "--out", "night.tar.gz")
    for place in ("night.tar.gz", str(night / "plan.json")):
        done = bench("results", "pack", place, "--out", "again.tar.gz")
        assert (done.exit_code, f"{Path(place).name} is no run and no sweep" in done.output) == (2, True)


def test_a_sweep_is_packed_with_its_cells(bench: Bench, tmp_path: Path) -> None:
    sweep = Path(shutil.copytree(RUNS / "sweep", tmp_path / "results/sweep"))
    ended(bench, "results", "pack", str(sweep), "--out", "sweep.tar.gz", "--anonymous")
    ended(bench, "results", "verify", "sweep.tar.gz")
    assert "runs/run-1/sweep.json" in members(Path("sweep.tar.gz"))


def test_neither_a_sweep_nor_its_cells_have_names_in_an_anonymous_pack(bench: Bench, tmp_path: Path) -> None:
    """That of a cell is made from its settings: from the directory of its data set, too."""
    sweep = Path(shutil.copytree(RUNS / "sweep", tmp_path / "results/sweep"))
    (cell, *_) = (plan.parent for plan in sorted(sweep.glob("*/plan.json")))
    named = "real-gan-home-alice-secret-0a1b2c3d"
    cell.rename(sweep / named)
    value = json.loads((sweep / "sweep.json").read_text().replace(cell.name, named))
    value["sweep"]["name"] = "secret-sweep"
    value["cells"][named]["data"] = "mnist:/home/alice/secret"
    (sweep / "sweep.json").write_text(json.dumps(value))
    ended(bench, "results", "pack", str(sweep), "--out", "sweep.tar.gz", "--anonymous")
    packed = members(Path("sweep.tar.gz"))
    for name, content in packed.items():
        assert "secret" not in name
        assert b"secret" not in content, name
    cells = {name.split("/")[2] for name in packed if name.startswith("runs/run-1/cell-")}
    assert cells == {*json.loads(packed["runs/run-1/sweep.json"])["cells"]}
    ended(bench, "results", "verify", "sweep.tar.gz")


def test_nothing_is_left_of_an_unpacked_pack(
    bench: Bench, night: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    bench("results", "pack", str(night), "--out", "night.tar.gz")
    for words in (("compare", "--json"), ("results", "verify"), ("audit",)):
        bench(*words, "night.tar.gz")
    assert list(temporary.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from commands.paths import unpacked
with unpacked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_what_was_unpacked_to_clean(
    bench: Bench, night: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    pack = tmp_path / "night.tar.gz"
    ended(bench, "results", "pack", str(night), "--out", str(pack))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(place)}
    argv = [sys.executable, "-c", KILLED, str(pack)]
    done = subprocess.run(argv, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    assert list(left.rglob("plan.json"))
    ended(bench, "clean")
    assert list(place.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("VIRTBENCH_HOME", "/proc/1/none")
    ended(bench, "compare", str(pack))
    assert list(place.iterdir()) == [], "who reads a pack needs no home"
