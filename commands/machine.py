"""``bench doctor`` and ``bench clean``: what this machine can carry, and what crashed runs left on it."""

import json

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from provisioning import ledger
from provisioning.doctor import examine


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Show what this machine can carry: every target, engine, accelerator and tool, with reasons and remedies.

    \b
    Examples:
      bench doctor
      bench doctor --json
    """
    checks = examine()
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "checks": [check.model_dump() for check in checks]}, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "evidence, or reason and remedy"):
        table.add_column(title, overflow="fold")
    for check in checks:
        mark = Text("yes", "green") if check.usable else Text("no", "red")
        said = check.evidence if check.usable else f"{check.reason}; {check.remedy}"
        table.add_row(mark, f"{check.kind} {check.name}", Text(said))
    Console().print(table)


@click.command()
def clean() -> None:
    """Remove what crashed runs left: processes, containers, control groups, directories. Only that.

    What a running bench uses is left alone, and so are images and results.

    \b
    Examples:
      bench clean
    """
    removed = ledger.clean()
    for line in removed:
        click.echo(f"removed: {line}")
    busy = ledger.living()
    if busy:
        click.echo(f"{len(busy)} things are in use by a running bench and were left alone", err=True)
    if not removed:
        click.echo("nothing was left behind")
