"""``bench sweep schedule``: a sweep at set times, by the timer that the host has."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.run.options import PlanFile
from suite.errors import RequestError

if TYPE_CHECKING:
    from provisioning.timers.base import Job, Timer

KINDS = ("systemd", "cron", "scrontab")


@click.command()
@click.argument("file", required=False, type=PlanFile())
@click.option("--every", help="When, in this host's time: '02:00 daily', '02:00 mon,wed', 'hourly', '30m', '6h'.")
@click.option("--name", help="Of the schedule. Default: that of the file.")
@click.option(
    "--into", type=click.Path(path_type=Path), help="Each firing makes a directory here. Default: results/NAME."
)
@click.option("--baseline", type=click.Path(path_type=Path), help="A run or sweep that every firing is compared with.")
@click.option("--fail-above", help="A firing has regressed when it is slower than the baseline by more: 5%.")
@click.option(
    "--notify", help="Run when a firing fails or regresses: a program with its arguments; no shell. JSON on its input."
)
@click.option(
    "--keep-last", type=int, help="After a firing, only so many directories stay (the baseline too). Default: all."
)
@click.option("--with", "kind", type=click.Choice(KINDS), help="Default: the first that this host has.")
@click.option("--dry-run", is_flag=True, help="Show what would be installed, and do nothing.")
@click.option("--list", "listing", is_flag=True, help="Show what is installed.")
@click.option("--remove", metavar="NAME", help="Remove a schedule.")
@click.option("--json", "as_json", is_flag=True, help="With --list: for machines.")
def schedule(**options: Any) -> None:  # noqa: ANN401 (one per option above)
    """Run a sweep at set times: installs a systemd timer, a crontab entry or a Slurm scrontab entry.

    Again with the same name it takes the place of the older one. Entries of others are never touched.

    \b
    Examples:
      bench sweep schedule nightly --every "02:00 daily"
      bench sweep schedule nightly --every "02:00 mon,wed" --baseline results/good --fail-above 5% \\
          --notify "mail -s regression me@example.org" --keep-last 14
      bench sweep schedule nightly --every 6h --with cron --dry-run
      bench sweep schedule --list
      bench sweep schedule --remove nightly
    """
    if options["listing"]:
        _list(as_json=options["as_json"])
    elif options["remove"]:
        _remove(options["remove"])
    else:
        _install(options)


def _install(options: dict[str, Any]) -> None:
    from commands.schedule.job import job_of
    from provisioning.timers.choose import TIMERS, choose

    job = job_of(options)
    if options["dry_run"] and options["kind"]:
        _show(TIMERS[options["kind"]](), job)
        return
    timer = choose(options["kind"])
    _show(timer, job)
    if options["dry_run"]:
        return
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    changed = timer.install(job)
    click.echo(f"{'installed' if changed else 'there already'}: {job.name} ({timer.kind}, {job.every.text})", err=True)
    if why := timer.asleep():
        click.echo(f"warning: it will not be fired: {why}", err=True)


def _show(timer: "Timer", job: "Job") -> None:
    for place, text in timer.render(job).items():
        click.echo(f"# {place}:\n{text}")


def _list(*, as_json: bool) -> None:
    from provisioning.timers.choose import present

    found = [(timer.kind, entry) for timer in present() for entry in timer.installed()]
    if as_json:
        entries = [{"name": one.name, "when": one.when, "with": kind, "entry": one.line} for kind, one in found]
        click.echo(json.dumps({"schema_version": 1, "schedules": entries}, indent=1))
        return
    for kind, one in found:
        click.echo(f"{one.name}  {one.when}  ({kind})\n  {one.line}")
    if not found:
        click.echo("nothing is scheduled", err=True)


def _remove(name: str) -> None:
    from provisioning.timers.base import check_name
    from provisioning.timers.choose import present

    check_name(name)
    removed = [timer.kind for timer in present() if timer.remove(name)]
    if not removed:
        raise RequestError(f"there is no schedule {name}", remedy="bench sweep schedule --list shows what there is")
    click.echo(f"removed: {name} ({', '.join(removed)})", err=True)
