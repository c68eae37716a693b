"""``bench results merge|prune``: bringing runs together, and removing old ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from suite.errors import RequestError
from suite.results.store import RESULTS

if TYPE_CHECKING:
    from suite.results.pruning import Entry


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FROM...")
@click.option(
    "--into", required=True, type=click.Path(path_type=Path), help="The run or sweep that they become part of."
)
@click.option("--force", is_flag=True, help="Pool records of hosts that are not equal; bench compare then warns.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def merge(sources: tuple[Path, ...], into: Path, force: bool, as_json: bool) -> None:
    """Make one run of runs of one plan from several hosts, or one sweep of sweeps. The sources are only read.

    A merge can be repeated, and gone on with after an interruption. A record that is ok takes the place of a failed
    one; two that are ok and differ are refused by name, before anything is written.

    \b
    Examples:
      bench results merge from-a/night from-b/night --into results/night
      bench results merge from-a/sweep from-b/sweep --into results/sweep --json
    """
    from suite.results.merging import merge as merged

    done = merged(sources, into, force=force)
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "into": str(into), **asdict(done)}, indent=1))
        return
    click.echo(f"{into}: {len(done.added)} records added, {len(done.replaced)} replaced, {done.kept} there already")
    for path in done.left_out:
        click.echo(f"warning: {path} is left out: it is no record of this suite", err=True)
    for difference in done.host_differences:
        click.echo(f"warning: the hosts differ in {difference}", err=True)


@click.command()
@click.argument("directory", default=RESULTS, type=click.Path(path_type=Path))
@click.option("--keep-last", type=int, help="The newest N runs stay.")
@click.option("--keep-days", type=float, help="Runs whose last trial is younger stay.")
@click.option(
    "--keep", "kept", multiple=True, type=click.Path(path_type=Path), help="This run stays: a baseline. Repeatable."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only list.")
@click.option("--json", "as_json", is_flag=True, help="For machines; removes only with --yes.")
def prune(
    directory: Path,
    keep_last: int | None,
    keep_days: float | None,
    kept: tuple[Path, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove old runs and sweeps from results/, or another directory, by a rule; what goes is listed and asked about.

    With both rules a run stays if either keeps it. What is in use stays, and so does what is not a run of the suite.

    \b
    Examples:
      bench results prune --keep-last 10
      bench results prune --keep-days 30 --keep results/baseline --yes
      bench results prune nightly --keep-last 14 --dry-run
    """
    import datetime

    from suite.results.pruning import Rule, entries, remove

    found = entries(directory, Rule(keep_last, keep_days, kept), datetime.datetime.now(datetime.UTC))
    going = [entry for entry in found if not entry.kept]
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "entries": list(map(_row, found))}, indent=1))
    else:
        for entry in found:
            click.echo(f"stay:   {entry.directory} ({entry.kept})" if entry.kept else f"remove: {_described(entry)}")
    if dry_run or not going or (as_json and not yes):
        return
    if not yes and not click.confirm(f"remove these {len(going)}?", err=True):
        raise RequestError("nothing was removed")
    for entry in going:
        remove(entry)
        click.echo(f"removed: {entry.directory}", err=True)


def _described(entry: "Entry") -> str:
    return f"{entry.directory} ({entry.size_bytes / (1 << 20):.1f} MiB, last trial {entry.last_at:%Y-%m-%d %H:%M} UTC)"


def _row(entry: "Entry") -> dict[str, object]:
    return {**asdict(entry), "directory": str(entry.directory), "last_at": entry.last_at.isoformat()}
