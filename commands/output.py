"""The JSON that commands print with ``--json``: a model with a version for each; ``bench schema`` shows them."""

import json
from pkgutil import resolve_name
from typing import Literal

import click
from pydantic import BaseModel

from suite.part import Part
from suite.untrusted.parse import cleaned

OUTPUTS = {
    "audit": "commands.audit:AuditOutput",
    "compare": "analysis.report.rows:ComparisonOutput",
    "compare --by": "commands.compare.output:ByOutput",
    "compare --job": "commands.compare.output:JobOutput",
    "compare --fail-above": "commands.compare.output:GateOutput",
    "compare --explain": "commands.compare.output:ExplanationOutput",
    "data list": "commands.data:SetsOutput",
    "data make": "commands.data:MadeOutput",
    "data verify": "commands.data:VerifiedOutput",
    "doctor": "commands.machine:DoctorOutput",
    "error": "commands.output:ErrorOutput",
    "history": "commands.history:HistoryOutput",
    "image list": "commands.image:ImagesOutput",
    "kubernetes pipeline status": "commands.kubernetes.command:PipelineOutput",
    "machines list": "commands.hire:HiredOutput",
    "quality": "commands.quality:QualityOutput",
    "results list": "commands.results.command:ListOutput",
    "results show RUN": "commands.results.show:ShownRunOutput",
    "results show RUN/TRIAL": "suite.records.record:TrialRecord",
    "results verify": "commands.results.pack:VerifiedPack",
    "run": "commands.compare.output:RunOutput",
    "run --dry-run": "commands.run.forecast:Forecast",
    "selftest": "suite.selftest.certificate:Certificate",
    "sweep plan": "commands.sweep.plan:PlannedOutput",
    "sweep run": "commands.sweep.command:SweepOutput",
    "sweep schedule --list": "commands.sweep.schedule:SchedulesOutput",
    "sweep status": "commands.sweep.status:StatusOutput",
}
"""The models by what prints them. They are imported when they are asked for."""


def model_of(name: str) -> type[BaseModel]:
    model: type[BaseModel] = resolve_name(OUTPUTS[name])
    return model


class Output(Part):
    """The JSON of a command. ``schema_version`` grows when a key goes or changes its meaning."""

    schema_version: Literal[1] = 1

    def tell(self, indent: int | None = 1) -> None:
        print_json(self, indent)


class ErrorDetails(Part):
    """An error: ``kind`` classifies it, ``remedy`` names the next step, ``exit_code`` is that of the command."""

    kind: str
    message: str
    remedy: str | None = None
    output_tail: str = ""
    """The end of the output of the program that failed."""
    exit_code: int


class ErrorOutput(Output):
    """The error that a command with ``--json`` prints in place of its own output."""

    error: ErrorDetails


def print_json(output: BaseModel, indent: int | None = 1) -> None:
    """Print the JSON of a command; without indent as one line of a stream."""
    try:
        text = output.model_dump_json(indent=indent, by_alias=True)
    except ValueError:  # the name of a file need not be Unicode
        plain = output.model_dump(mode="json", by_alias=True)
        text = json.dumps(cleaned(plain), indent=indent)
    click.echo(text)


@click.command()
@click.argument("name", required=False, type=click.Choice([*OUTPUTS]), metavar="[NAME]")
def schema(name: str | None) -> None:
    """Print the JSON schema of the --json output of a command. Without NAME, list the names.

    \b
    Examples:
      bench schema
      bench schema doctor
      bench schema "compare --explain"
    """
    if name is None:
        click.echo("\n".join(OUTPUTS))
        return
    schema = model_of(name).model_json_schema(mode="serialization")
    click.echo(json.dumps(schema, indent=1))
