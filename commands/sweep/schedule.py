"""``bench sweep schedule``: run a sweep at set times, by a timer of the host or a cluster."""

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import Field

from commands.output import Output
from commands.paths import UserPath
from commands.sweep.backends.base import backend_of
from commands.sweep.resolve import PlanFile
from provisioning.paths import bench_argv
from provisioning.timers.base import ScheduledJob, ScheduleEntry, Timer, check_name, parse_schedule
from suite.errors import RequestError
from suite.part import Part
from suite.registries import TIMERS
from suite.results.layout import results_directory
from suite.results.runs import contains, find_runs
from suite.sweep.file import load_sweep
from suite.units import parse_share

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Timers give a job a shorter one, without the programs that make networks and disks."""


class Scheduled(Part):
    """A schedule: ``with`` is the timer, ``entry`` what it holds."""

    name: str
    when: str
    timer: str = Field(serialization_alias="with")
    entry: str


class SchedulesOutput(Output):
    """The schedules that are installed on this host, and in the kubeconfig's current namespace."""

    schedules: list[Scheduled]


def firing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a firing: ``schedule`` checks them and hands them on to ``schedule-run``."""
    for option in (
        click.option(
            "--keep",
            type=click.IntRange(min=1),
            help="Number of firings to keep in addition to those of the baseline. Default: all.",
        ),
        click.option(
            "--notify",
            help="Program with arguments to start, without a shell, unless a firing is ok; it reads JSON on standard "
            "input.",
        ),
        click.option(
            "--fail-above",
            help="Report a firing as slower if it is slower than the baseline by more than this, for example 5%.",
        ),
        click.option(
            "--baseline",
            type=UserPath(),
            help="Run or sweep to compare every firing with. Default: the last --keep firings that were not slower.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("file", required=False, type=PlanFile())
@click.option("--every", help="Times in this host's time zone: '02:00 daily', '02:00 mon,wed', 'hourly', '30m', '6h'.")
@click.option("--name", help="Name of the schedule. Default: the name of the file.")
@click.option("--into", type=UserPath(), help="Parent directory of the firings. Default: results/NAME-scheduled.")
@firing_options
@click.option("--with", "kind", type=click.Choice([*TIMERS]), help="Timer. Default: the first that works on this host.")
@click.option("--dry-run", is_flag=True, help="Print the entry and install nothing.")
@click.option("--list", "listing", is_flag=True, help="List installed schedules.")
@click.option("--remove", metavar="NAME", help="Remove a schedule.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print JSON.")
def schedule(kind: str | None, dry_run: bool, listing: bool, remove: str | None, as_json: bool, **options: Any) -> None:  # noqa: ANN401 (those of the job)
    """Run a sweep at set times.

    This installs a systemd timer, a crontab entry, or a Kubernetes CronJob.

    A schedule of the same name is replaced. Entries of other programs are never touched.

    \b
    Examples:
      bench sweep schedule nightly --every "02:00 daily"
      bench sweep schedule nightly --every "02:00 mon,wed" --baseline results/good --fail-above 5% \\
          --notify "mail -s regression me@example.org" --keep 14
      bench sweep schedule nightly --every 6h --with cron --dry-run
      bench sweep schedule ./cluster.toml --every 6h --with kubernetes
      bench sweep schedule --list
      bench sweep schedule --remove nightly
    """
    if listing:
        _list(as_json=as_json)
    elif remove:
        _remove(check_name(remove))
    else:
        _install(job_of(**options), kind, dry_run=dry_run)


def _list(*, as_json: bool) -> None:
    schedules = [Scheduled(name=e.name, when=e.when, timer=timer.kind, entry=e.line) for timer, e in installed()]
    if as_json:
        SchedulesOutput(schedules=schedules).tell()
        return
    for entry in schedules:
        click.echo(f"{entry.name}  {entry.when}  ({entry.timer})\n  {entry.entry}")
    if not schedules:
        click.echo("nothing is scheduled", err=True)


def _remove(name: str) -> None:
    timers = [timer for timer, entry in installed() if entry.name == name]
    if not timers:
        raise RequestError(f"there is no schedule {name}", remedy="see them with: bench sweep schedule --list")
    for timer in timers:
        timer.remove(name)
    click.echo(f"removed: {name} ({', '.join(timer.kind for timer in timers)})", err=True)


def _install(job: ScheduledJob, kind: str | None, *, dry_run: bool) -> None:
    if dry_run and kind:
        timer: Timer = TIMERS.get(kind)()
    else:
        timer = choose(kind)
    rendered = timer.render(job)
    if dry_run:
        click.echo(f"# {job.name} would run at {job.schedule.text}, by {timer.kind}; nothing is installed.")
    for location, text in rendered.items():
        click.echo(f"# {location}:\n{text}")
    if dry_run:
        return
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    timer.install(job.name, rendered)
    click.echo(f"installed: {job.name} ({timer.kind}, {job.schedule.text})", err=True)
    why = timer.asleep()
    if why:
        click.echo(f"warning: firings will be missed: {why}", err=True)


def choose(kind: str | None) -> Timer:
    """Return the named timer, or the first that would fire here. Raises RequestError with the reason of each."""
    reasons: dict[str, str] = {}
    for timer in timers([kind] if kind else TIMERS):
        reason = timer.missing() or (None if kind else timer.asleep())
        if reason is None:
            return timer
        reasons[timer.kind] = reason
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise RequestError(
        f"this host has no timer to install into ({why})",
        remedy="install and start cron, or choose one with --with; --dry-run only shows the entry",
    )


def installed() -> list[tuple[Timer, ScheduleEntry]]:
    """Return the entries of the suite with their timers, whether or not they would fire now."""
    return [(timer, entry) for timer in timers(TIMERS) if timer.missing() is None for entry in timer.installed()]


def timers(names: Iterable[str]) -> Iterator[Timer]:
    """Yield the timers of these names that load."""
    broken = TIMERS.failures()
    yield from (TIMERS.get(name)() for name in names if name not in broken)


def job_of(file: Path | None, every: str | None, name: str | None, into: Path | None, **options: Any) -> ScheduledJob:  # noqa: ANN401
    """Return the job; everything is checked before anything is installed. Raises RequestError."""
    lacking = [name for name, value in (("FILE", file), ("--every", every)) if value is None]
    if file is None or every is None:
        usage = 'bench sweep schedule FILE --every "02:00 daily"; or --list, --remove NAME'
        required = "is required" if len(lacking) == 1 else "are required"
        raise RequestError(f"{' and '.join(lacking)} {required}", remedy=usage)
    sweep = load_sweep(file)  # refused now, and not at two in the morning
    backend_of(sweep).check(sweep)
    name = check_name(name or file.stem)
    # Not results/NAME: there bench sweep run keeps the sweep of this name, which is mostly the baseline.
    into = (into or results_directory() / f"{name}-scheduled").absolute()
    return ScheduledJob(
        name=name,
        schedule=parse_schedule(every),
        plan=file,
        command=(*bench_argv(), "sweep", "schedule-run", str(file.absolute()), "--into", str(into)),
        options=_words(into, **options),
        directory=str(Path.cwd()),
        environment={"PATH": PATH} | {key: os.environ[key] for key in ("VIRTBENCH_HOME",) if key in os.environ},
        log=f"{into}.log",
    )


def _words(
    into: Path, baseline: Path | None, fail_above: str | None, notify: str | None, keep: int | None
) -> tuple[str, ...]:
    """Return the options of ``schedule-run``, checked as it will check them."""
    check_gate(baseline, fail_above, keep)
    words: list[str] = []
    if baseline:
        if not find_runs([baseline]):
            raise RequestError(f"--baseline {baseline} holds no run", remedy="name a run or a sweep")
        refuse_itself(baseline, into)
        words += ["--baseline", str(baseline.absolute())]
    if fail_above:
        parse_share(fail_above)
        words += ["--fail-above", fail_above]
    words += ["--notify", shlex.join(notify_argv(notify))] if notify else []
    return (*words, *(["--keep", str(keep)] if keep else []))


def check_gate(baseline: Path | None, fail_above: str | None, keep: int | None) -> None:
    """Raise RequestError for a baseline without a bound, and for a bound with nothing to compare."""
    if baseline and not fail_above:
        raise RequestError("--baseline needs --fail-above", remedy="give it, such as --fail-above 5%")
    if fail_above and not baseline and not keep:
        remedy = "name one with --baseline, or the number of last firings with --keep"
        raise RequestError("--fail-above needs older runs", remedy=remedy)


def refuse_itself(baseline: Path, into: Path) -> None:
    """Raise RequestError if every firing would be part of the baseline that it is compared with."""
    if contains(baseline, into):
        raise RequestError(
            f"--into {into} lies in --baseline {baseline}: each firing would be compared with itself",
            remedy="name the run or sweep that is the baseline, or another --into",
        )


def notify_argv(text: str) -> list[str]:
    """Split a command as it is typed into words. Raises RequestError for no words, or an open quote."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RequestError(f"--notify {text}: {error}", remedy="quote it as on a command line") from error
    if not words:
        raise RequestError("--notify names no program", remedy='write it as "mail -s regression me@example.org"')
    return words
