"""``bench results merge`` and ``bench results prune``: bring runs together, remove old ones."""

import datetime
from dataclasses import asdict
from pathlib import Path

import click

from commands.output import Output
from suite.errors import RequestError
from suite.results import merging
from suite.results.pruning import PruneCandidate, PruneRule, candidates, remove
from suite.results.store import RESULTS


class MergeOutput(Output):
    """The result of a merge."""

    into: str
    added: list[str]
    replaced: list[str]
    kept: int
    left_out: list[str]
    host_differences: tuple[str, ...]


class PruneOutput(Output):
    """The runs that a rule keeps, with why, and those that it removes."""

    entries: list[PruneCandidate]


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FROM...")
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Run or sweep of which they become part.")
@click.option("--force", is_flag=True, help="Pool records of unequal hosts; bench compare then warns.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def merge(sources: tuple[Path, ...], into: Path, force: bool, as_json: bool) -> None:
    """Merge runs of one plan from several hosts into one run, or sweeps into one sweep. The sources are only read.

    A merge can be repeated, and continues after an interruption. A record that is ok replaces a failed one; two that
    are ok and differ are refused by name, before anything is written.

    \b
    Examples:
      bench results merge from-a/night from-b/night --into results/night
      bench results merge from-a/sweep from-b/sweep --into results/sweep --json
    """
    done = merging.merge(sources, into, force=force)
    if as_json:
        MergeOutput(into=str(into), **asdict(done)).tell()
        return
    click.echo(f"{into}: {len(done.added)} records added, {len(done.replaced)} replaced, {done.kept} there already")
    for path in done.left_out:
        click.echo(f"warning: {path} is left out: it is not a record of this suite", err=True)
    for difference in done.host_differences:
        click.echo(f"warning: the hosts differ in {difference}", err=True)


@click.command()
@click.argument("directory", default=RESULTS, type=click.Path(path_type=Path))
@click.option("--keep-last", type=int, help="Keep the newest N runs.")
@click.option("--keep-days", type=float, help="Keep runs whose last trial is less than D days old.")
@click.option("--keep", "kept", multiple=True, type=click.Path(path_type=Path), help="Keep this run. Repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; removes only with --yes.")
def prune(
    directory: Path,
    keep_last: int | None,
    keep_days: float | None,
    kept: tuple[Path, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove old runs and sweeps from results/, or another directory, by a rule; list them and ask before.

    With both rules a run stays if either keeps it. Runs in use stay, and so does everything that is not a run.

    \b
    Examples:
      bench results prune --keep-last 10
      bench results prune --keep-days 30 --keep results/baseline --yes
      bench results prune nightly --keep-last 14 --dry-run
    """
    found = candidates(directory, PruneRule(keep_last, keep_days, kept), datetime.datetime.now(datetime.UTC))
    going = [entry for entry in found if not entry.kept]
    if as_json:
        PruneOutput(entries=found).tell()
    else:
        for entry in found:
            about = f"{entry.size_bytes / (1 << 20):.1f} MiB, last trial {entry.last_at:%Y-%m-%d %H:%M} UTC"
            verb = "stay:  " if entry.kept else "remove:"
            click.echo(f"{verb} {entry.directory} ({entry.kept or about})")
    if dry_run or not going or (as_json and not yes):
        return
    if not yes and not click.confirm(f"remove these {len(going)}?", err=True):
        raise RequestError("nothing was removed")
    for entry in going:
        remove(entry)
        click.echo(f"removed: {entry.directory}", err=True)
