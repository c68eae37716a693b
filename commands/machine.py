"""``bench doctor`` and ``bench clean``: what this machine can carry, and what crashed runs left on it."""

import sys

import click
from rich.table import Table
from rich.text import Text

from commands.output import Output
from provisioning import ledger
from provisioning.diagnosis import Diagnosis, diagnose
from provisioning.doctor import Check, examine_as_far_as_possible
from suite.untrusted.console import PlainConsole


class DoctorOutput(Output):
    """The answer of the doctor, and every check."""

    answer: Diagnosis
    checks: list[Check]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """List the targets that this machine can measure, the next step, and every check with reason and remedy.

    Exit codes: 0 a target works; 1 none does.

    \b
    Examples:
      bench doctor
      bench doctor --json
    """
    checks = examine_as_far_as_possible()
    found = diagnose(checks)
    if as_json:
        DoctorOutput(answer=found, checks=checks).tell()
    else:
        _show(found, checks)
    if not found.works:
        sys.exit(1)


def _show(found: Diagnosis, checks: list[Check]) -> None:
    """Print the answer, the targets and then every check, those whose evidence takes several lines last."""
    console = PlainConsole()
    for line in found.lines:
        console.print(Text(line, "bold"))
    console.print(Text(f"Next: {found.next_step}\n"))
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "evidence, or reason and remedy"):
        table.add_column(title, overflow="fold")
    said = {check: check.evidence if check.usable else f"{check.reason}; {check.remedy}" for check in checks}
    room = console.width - max(len(f"{check.kind} {check.name}") for check in checks) - _MARK_WIDTH
    for check in sorted(checks, key=lambda check: (check.kind != "target", max(len(said[check]) - room, 0))):
        mark = Text("yes", "green") if check.usable else Text("no", "red")
        if check.usable and check.substitute:
            mark = Text("path", "yellow")
        table.add_row(mark, f"{check.kind} {check.name}", Text(_with_substitute(check, said[check])))
    console.print(table)


def _with_substitute(check: Check, text: str) -> str:
    return f"{text}, with {check.substitute}: it only proves the path" if check.substitute else text


_MARK_WIDTH = 6
"""The columns that the marks take, with the space between the columns."""


@click.command()
def clean() -> None:
    """Remove leftovers of crashed runs: processes, containers, control groups, directories. Nothing else.

    Objects of running benches, images and results are kept.

    \b
    Examples:
      bench clean
    """
    removed = ledger.clean(lambda said: click.echo(said, err=True))
    for line in removed:
        click.echo(f"removed: {line}")
    busy = ledger.living()
    if busy:
        click.echo(f"{len(busy)} things are in use by a running bench and were left alone", err=True)
    if not removed:
        click.echo("nothing was left behind")
