"""``bench doctor`` and ``bench clean``: what this machine can carry, and what crashed runs left on it."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from commands.output import Output
from commands.results.removal import name_foreign, remove_kept
from provisioning import ledger
from provisioning.doctor import Check, Diagnosis, diagnose, examine_as_far_as_possible
from provisioning.foreign import ForeignThing, foreign_things
from provisioning.paths import MARK, home
from provisioning.removal.uninstall import remove_everything
from scenarios.datasets.generated import generated_sets
from suite.errors import RequestError
from suite.measurable import is_measured
from suite.results.contents import is_known_run
from suite.results.layout import KEPT, results_directory
from suite.results.runs import find_runs
from suite.units import count
from suite.untrusted.console import PlainConsole

NOTHING_LEFT = "nothing was left behind"


class DoctorOutput(Output):
    """The answer of the doctor, and every check."""

    answer: Diagnosis
    checks: list[Check]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """List what this machine can measure, and the next step.

    Every check has its evidence, or a reason and a remedy.

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
        if check.usable:
            mark = Text("yes", "green")
        else:
            mark = Text("no", "red")
        text = texts[check]
        if check.usable and check.substitute:
            text = f"{text}, with {check.substitute}"
            if not is_measured([check.substitute]):
                mark = Text("path", "yellow")
                text = f"{text}: not a measurement"
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
    """Remove the leftovers of crashed runs.

    These are processes, containers, control groups and directories; nothing else goes. Those of benches with
    another VIRTBENCH_HOME, or of other users, are named and left alone. Objects of running benches, images and
    results are kept; with --all only results.

    \b
    Examples:
      bench clean
      bench clean --dry-run
      bench clean --all
    """
    if dry_run and everything:
        raise RequestError("--dry-run prints no list of --all", remedy="leave one of them out")
    foreign = foreign_things()  # before --all removes the ledger that tells them apart
    if dry_run:
        lines = [f"would be removed: {entry.kind} {entry.what}" for entry in ledger.left()]
    else:
        lines = [f"removed: {line}" for line in _cleaned(everything=everything)]
    for line in lines:
        click.echo(line)
    _tell_foreign(foreign)
    if not foreign and not lines:
        click.echo(NOTHING_LEFT)


def _cleaned(*, everything: bool) -> list[str]:
    """Remove what was left, and with ``everything`` all but results; return what was removed, and tell what stays."""
    removed = ledger.clean(partial(click.echo, err=True), kept=everything)
    busy, kept = ([], {}) if everything else (ledger.living(), ledger.kept())
    if everything:
        if ledger.living():
            raise RequestError("a bench is running", remedy="wait until it has ended")
        removed += _remove_kept()
        sets = {stored.directory: stored.files() for stored in generated_sets(home())}
        removed += remove_everything(sets, name_foreign, _name_unmarked)
    if busy:
        click.echo(f"{len(busy)} things are in use by a running bench and were left alone", err=True)
    if kept:
        click.echo(f"{count(len(kept), 'hired machine')} stay: see bench machines list", err=True)
    return removed


def _name_unmarked(directory: Path) -> None:
    """Print that a directory stays because nothing shows who has made it, and what to do about it."""
    click.echo(
        f"stays, as no {MARK} in it shows that the suite has made it: {directory}; "
        "look at what is in it, and remove it yourself if all of it is the suite's",
        err=True,
    )


def _tell_foreign(things: Sequence[ForeignThing]) -> None:
    """Name what bears the suite's mark and is not this home's, and what to do about it."""
    for thing in things:
        click.echo(f"left alone, since the ledger of {home()} does not list it: {thing}", err=True)
    if things:
        click.echo(
            "to remove these: bench clean as their user with their VIRTBENCH_HOME; by hand if that home is gone",
            err=True,
        )


def _remove_kept() -> Iterator[str]:
    """Remove the kept output of comparisons from the runs and cells in results/; yield the directories."""
    results = results_directory()
    runs = find_runs([results]) if results.is_dir() else []
    for run in filter(is_known_run, runs):
        if remove_kept(run):
            yield str(run / KEPT)
