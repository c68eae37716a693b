"""``bench data``, as a user calls it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cli

Data = Callable[..., Result]
SMALL = ("--images", "6", "--size", "small", "--workers", "1")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setenv("VIRTBENCH_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(cli.main, ["data", *words], prog_name="bench")


def test_made_in_the_suites_folder_it_is_listed_and_verified(data: Data, tmp_path: Path) -> None:
    assert (data("list").stdout, json.loads(data("list", "--json").stdout)["sets"]) == ("", [])
    place = tmp_path / "home" / "data" / "small-6"
    made = data("make", *SMALL)
    assert (made.exit_code, made.stdout) == (0, f"{place}\n")
    assert "drawing: 6 of 6" in made.stderr
    assert "--data generated\n" in made.stderr
    assert str(place) in data("list").stdout
    assert data("verify").stdout == f"{place} is whole\n"
    (place / "class-0002" / "00000002.jpg").write_bytes(b"cut")
    told = data("verify", str(place), "--workers", "1")
    assert (told.exit_code, told.stdout) == (1, "class-0002/00000002.jpg: other content\n")
    assert "1 differences" in told.stderr
    assert [data(*words).exit_code for words in (("make", *SMALL), ("verify", "--workers", "1"))] == [0, 0]


def test_machines_are_told_the_same(data: Data, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = json.loads(data("make", *SMALL, "--out", str(out), "--json").stdout)
    assert (made["directory"], made["images"], made["seed"]) == (str(out), 6, 0)
    assert "files" not in made
    verified = json.loads(data("verify", str(out), "--json").stdout)
    assert verified == {"schema_version": 1, "directory": str(out), "differences": []}
    data("make", *SMALL)
    (listed,) = json.loads(data("list", "--json").stdout)["sets"]
    assert (listed["finished"], listed["sha256"]) == (True, made["sha256"])


def test_a_set_that_is_not_finished_is_listed_as_that(data: Data, tmp_path: Path) -> None:
    data("make", *SMALL)
    (tmp_path / "home" / "data" / "small-6" / "manifest.json").unlink()
    assert "not finished" in data("list").stdout
    (listed,) = json.loads(data("list", "--json").stdout)["sets"]
    assert listed["finished"] is False
    assert data("verify").exit_code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("make", "--images", "0"), "--images 0"),
        (("make", "--images", "many"), "many"),
        (("make", "--size", "smal"), "did you mean small?"),
        (("make", "--images", "2", "--out", "/dev/null"), "cannot make /dev/null"),
        (("verify",), "bench data make"),
        (("verify", "/nowhere"), "/nowhere holds no manifest.json"),
    ],
)
def test_a_wrong_request_is_told_with_exit_code_2(data: Data, words: tuple[str, ...], told: str) -> None:
    result = data(*words)
    assert result.exit_code == 2
    assert told in result.stderr
