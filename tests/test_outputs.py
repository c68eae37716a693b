"""Every ``--json`` has a version and a schema, which ``bench schema`` prints."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import cli
from commands.output import OUTPUTS, model_of

RUNS = Path(__file__).parent / "samples" / "runs"
NAMES = sorted(path.parent.name for path in RUNS.glob("*/plan.json"))


def printing(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the commands that have ``--json``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from printing(command, (*words, name))
        elif any("--json" in option.opts for option in command.params):
            yield " ".join((*words, name))


def test_every_command_that_prints_json_is_in_the_list() -> None:
    listed = {name.partition(" --")[0].partition(" RUN")[0] for name in OUTPUTS}
    assert {*printing(cli.main)} == listed - {"error"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_every_output_has_a_version_and_a_schema(name: str) -> None:
    done = CliRunner().invoke(cli.main, ["schema", name])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert "schema_version" in told["properties"]
    assert told["additionalProperties"] is False
    assert model_of(name).__doc__


def test_without_a_name_the_outputs_are_listed() -> None:
    assert CliRunner().invoke(cli.main, ["schema"]).stdout.splitlines() == [*OUTPUTS]


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
    name: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RUNS)
    monkeypatch.setattr(cli, "_end_in_order_on_signals", lambda: None)
    done = CliRunner().invoke(cli.main, [*words, "--json"], prog_name="bench")
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
    words: tuple[str, ...], kind: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_end_in_order_on_signals", lambda: None)
    done = CliRunner().invoke(cli.main, [*words, "--json"], prog_name="bench")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["exit_code"], error["kind"]) == (2, 2, kind)
    assert message in error["message"]
    assert message in done.stderr, "people read it where they always do"
    plain = CliRunner().invoke(cli.main, [*words], prog_name="bench")
    assert (plain.exit_code, plain.stdout, plain.stderr) == (2, "", done.stderr)


def test_json_for_another_program_is_not_for_bench() -> None:
    done = CliRunner().invoke(cli.main, ["no-such-command", "--", "--json"], prog_name="bench")
    assert (done.exit_code, done.stdout) == (2, "")
