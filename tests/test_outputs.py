"""Every ``--json`` has a version and a schema, which ``bench schema`` prints."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.output import OUTPUTS, model_of
from tests.commands.conftest import Bench, bench, commands, ended_well

__all__ = ["bench"]
RUNS = Path(__file__).parent / "samples" / "runs"
NAMES = sorted(path.parent.name for path in RUNS.glob("*/plan.json"))


def test_every_command_that_prints_json_is_in_the_list(bench: Bench) -> None:
    listed = {name.partition(" --")[0].partition(" RUN")[0] for name in OUTPUTS}
    printing = {words for words, command in commands() if any("--json" in option.opts for option in command.params)}
    assert {" ".join(words) for words in printing} == listed - {"error"}
    assert bench("schema").stdout.splitlines() == [*OUTPUTS]


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_has_a_version_and_a_schema(bench: Bench, name: str) -> None:
    told = json.loads(ended_well(bench("schema", name)).stdout)
    assert "schema_version" in told["properties"]
    assert told["additionalProperties"] is False
    assert model_of(name).__doc__


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what needs no target; ``tests/analysis/test_stored_runs.py`` does the same for ``bench compare``."""
    for name in NAMES:
        yield "audit", ("audit", name)
        yield "results show RUN", ("results", "show", name)
        trial = min((RUNS / name / "trials").iterdir()).stem
        yield "results show RUN/TRIAL", ("results", "show", f"{name}/{trial}")
    yield "results list", ("results", "list", ".")
    yield "history", ("history", "sweep")
    yield "sweep status", ("sweep", "status", "sweep")
    yield from ((name, tuple(name.split())) for name in ("data list", "doctor", "image list"))


@pytest.mark.parametrize(("name", "words"), [*cases()])
def test_what_is_printed_is_what_the_schema_says_and_nothing_more(
    bench: Bench, name: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RUNS)
    done = bench(*words, "--json")
    assert done.exit_code in (0, 1), done.output
    # Keys that the schema lacks are refused at the top, and lost below.
    held = model_of(name).model_validate_json(done.stdout, strict=True).model_dump(mode="json")
    assert held == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("results", "show", "no-such-run"), "request", "there is no run no-such-run"),
        (("results", "shwo"), "usage", "there is no command 'shwo': did you mean show? choose among"),
        (("results", "list", "--no-such-option"), "usage", "No such option '--no-such-option'."),
        (("compare", "no-such-place"), "request", "no-such-place"),
    ],
)
def test_with_json_an_error_is_json_too(
    bench: Bench, words: tuple[str, ...], kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = bench(*words, "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["exit_code"], error["kind"]) == (2, 2, kind)
    assert message in error["message"]
    assert message in done.stderr, "people read it where they always do"
    plain = bench(*words)
    assert (plain.exit_code, plain.stdout, plain.stderr) == (2, "", done.stderr)


def test_json_for_another_program_is_not_for_bench(bench: Bench) -> None:
    done = bench("no-such-command", "--", "--json")
    assert (done.exit_code, done.stdout) == (2, "")
