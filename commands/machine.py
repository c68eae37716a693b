"""``bench doctor`` and ``bench clean``: what this machine can carry, and what crashed runs left on it."""

import shutil
import sys
from collections.abc import Iterator
from functools import partial

import click
from rich.table import Column, Table
from rich.text import Text

from commands.output import Output
from provisioning import ledger
from provisioning.doctor import Check, Diagnosis, diagnose, examine_as_far_as_possible
from provisioning.uninstall import remove_everything
from suite.errors import RequestError
from suite.measurable import is_measured
from suite.results.layout import KEPT, RESULTS
from suite.units import count
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
    diagnosis = diagnose(checks)
    if as_json:
        DoctorOutput(answer=diagnosis, checks=checks).tell()
    else:
        _show(diagnosis, checks)
    if not diagnosis.works:
        sys.exit(1)


def _show(diagnosis: Diagnosis, checks: list[Check]) -> None:
    """Print the answer, the targets and then every check, those whose evidence takes several lines last."""
    console = PlainConsole()
    for line in diagnosis.lines:
        console.print(Text(line, "bold"))
    console.print(Text(f"Next: {diagnosis.next_step}\n"))
    columns = (Column(title, overflow="fold") for title in ("", "what", "evidence, or reason and remedy"))
    table = Table(*columns, box=None, pad_edge=False)
    texts = {check: check.evidence if check.usable else f"{check.reason}; {check.remedy}" for check in checks}
    marks = 6  # columns, with the space between the columns
    room = console.width - max(len(f"{check.kind} {check.name}") for check in checks) - marks
    for check in sorted(checks, key=lambda check: (check.kind != "target", max(len(texts[check]) - room, 0))):
        mark, text = Text("yes", "green") if check.usable else Text("no", "red"), texts[check]
        if check.usable and check.substitute:
            text = f"{text}, with {check.substitute}"
            if not is_measured([check.substitute]):
                mark, text = Text("path", "yellow"), f"{text}: not a measurement"
        table.add_row(mark, f"{check.kind} {check.name}", Text(text))
    console.print(table)


@click.command()
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove hired machines, images (also in podman and docker), caches, kept output and generated data.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, without --all; remove nothing.")
def clean(everything: bool, dry_run: bool) -> None:
    """Remove leftovers of crashed runs: processes, containers, control groups, directories. Nothing else.

    Objects of running benches, images and results are kept; with --all only results.

    \b
    Examples:
      bench clean
      bench clean --dry-run
      bench clean --all
    """
    if dry_run and everything:
        raise RequestError("--dry-run prints no list of --all", remedy="leave one of them out")
    if dry_run:
        lines = [f"would be removed: {entry.kind} {entry.what}" for entry in ledger.left()]
        click.echo("\n".join(lines) or "nothing was left behind")
        return
    removed = ledger.clean(partial(click.echo, err=True), kept=everything)
    busy, kept = ([], {}) if everything else (ledger.living(), ledger.kept())
    if everything:
        removed += [*remove_everything(), *_remove_kept()]
    for line in removed:
        click.echo(f"removed: {line}")
    if busy:
        click.echo(f"{len(busy)} things are in use by a running bench and were left alone", err=True)
    if kept:
        click.echo(f"{count(len(kept), 'hired machine')} stay: see bench machines list", err=True)
    if not removed:
        click.echo("nothing was left behind")


def _remove_kept() -> Iterator[str]:
    """Remove the kept output of comparisons from the runs and cells in results/; yield the directories."""
    for kept in (*RESULTS.glob(f"*/{KEPT}"), *RESULTS.glob(f"*/*/{KEPT}")):
        shutil.rmtree(kept)
        yield str(kept)
