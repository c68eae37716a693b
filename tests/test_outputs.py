"""Every ``--json`` has a version and a schema, which ``bench schema`` prints."""

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import cli
from commands.output import OUTPUTS, model_of


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
    assert {*printing(cli.main)} == listed


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
