"""``bench run``: from the command line to records."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import click

from commands.paths import RunPath, UserPath
from commands.run.forecast import Forecast, as_lines, earlier_durations, forecast, with_budget, with_trial_limit
from commands.run.options import BUSY_HELP
from commands.run.outlook import Outlook
from commands.run.prepare import Ready, host_environment, observing, ready
from commands.run.request_command import DEFAULTS, RequestCommand, with_help_alone
from commands.run.steps import steps
from commands.run.validate import refuse_ignored
from provisioning import ledger, neighbours
from provisioning.metrics.accounting import accounts
from provisioning.neighbours import Busy
from suite.errors import RequestError
from suite.interfaces import Note
from suite.loop import Loop
from suite.progress import Display, Lines
from suite.records.record import TrialRecord
from suite.request.request import Defaults, RunRequest
from suite.results import files
from suite.results.store import (
    LOG,
    PLAN,
    Run,
    StopRequest,
    StopRequested,
    clear_stop,
    new_run_directory,
    stop_request,
    stored_plan,
)
from suite.units import count
from suite.untrusted.console import PlainConsole
from suite.untrusted.terminal import CleanStream


@click.command(
    cls=RequestCommand,
    params=[
        click.Option(
            ["--out"],
            type=UserPath(),
            help="Directory of the run. An interrupted run there continues. Default: a new directory in results/.",
        ),
        click.Option(
            ["--continue", "continued"],
            type=RunPath(),
            help="Directory of a run to resume, with its options. Options that decide when it ends extend it.",
        ),
        click.Option(
            ["--repeat-failed"],
            is_flag=True,
            help="With --continue: repeat trials that failed. They still count as failed.",
        ),
        click.Option(
            ["--all"],
            is_flag=True,
            expose_value=False,
            callback=with_help_alone,
            help="With --help: show every option in full.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print plan, time and disk space; start nothing."),
        click.Option(["--concurrent", "busy"], flag_value="share", help=BUSY_HELP["share"]),
        click.Option(["--wait", "busy"], flag_value="wait", help=BUSY_HELP["wait"]),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
    ],
)
def run(
    request: RunRequest,
    out: Path | None,
    continued: Path | None,
    repeat_failed: bool,
    dry_run: bool,
    busy: Busy | None,
    as_json: bool,
) -> None:
    """Run a scenario on targets and record every trial.

    \b
    Examples:
      bench run --target all --profile smoke
      bench run -- python train.py --epochs 2            (your training, with the files of this directory)
      bench run -- python old.py --versus -- python new.py      (two commands on one target)
      bench run --target all --dry-run                   (plan, time and disk space)
      bench run                                          (until decided; what this machine measures)
      bench run --continue results/night                 (after Ctrl-C or a crash)
      bench run --continue results/night --budget 4h     (extends it: 4 hours in all)
      bench run --scenario real --data imagenet:/data/ilsvrc --target all
      bench run --target bare-metal --target container --blocks 10 --ablate seccomp --ablate pinning
      bench run --scenario shared --help                 (the options of a scenario)
    """
    defaults: Defaults | None = click.get_current_context().meta.get(DEFAULTS)
    if not continued:
        refuse_ignored(request)
    store = run_store(continued or out, repeats_failed=repeat_failed)
    if not dry_run:
        records = measure(request, store, defaults, continued=bool(continued), busy=busy)
        _tell(records, store, as_json=as_json)
        return
    begin_s = time.monotonic()
    with observing() as observer:
        made = _made(request, store, observer.note, defaults=defaults, continued=bool(continued))
        expected = forecast(made, made.repetitions, store, time.monotonic() - begin_s)
    _tell_forecast(expected, made, as_json=as_json)


def run_store(directory: Path | None, *, repeats_failed: bool = False) -> Run:
    """Return the store of a run, in a new directory unless one is given. Raises RequestError."""
    directory = directory or new_run_directory()
    if repeats_failed and not (directory / PLAN).exists():
        raise RequestError("--repeat-failed is for a run that exists", remedy="name it with --continue")
    return Run(directory, repeats_failed=repeats_failed)


def measure(
    request: RunRequest,
    store: Run,
    defaults: Defaults | None = None,
    *,
    continued: bool = False,
    busy: Busy | None = None,
) -> list[TrialRecord]:
    """Measure what a request asks for and the store does not hold yet; return the records that were made.

    It needs the context of a command, with which ends what it opens. Raises RequestError.
    """
    earlier = stop_request(store.directory)
    log = RunLog(store.directory)
    # With the ledger's entry, bench web sees that it runs, and bench clean what a killed run left half written.
    held = ledger.holding("run-directory", str(store.directory.absolute()))
    with observing() as observer, held, ExitStack() as lifetime:
        made = _made(request, store, observer.note, lifetime, defaults=defaults, continued=continued)
        if busy == "wait":  # pages show that it waits
            log.write("", begun=True)
        return _measured(made, store, observer, busy, earlier)


def _tell_forecast(expected: Forecast, made: Ready, *, as_json: bool) -> None:
    if as_json:
        expected.tell()
        return
    for line in as_lines(expected, made.repetitions):
        click.echo(line)
    click.echo("Dry run: nothing was started. Remove --dry-run to start it.", err=True)


def _made(
    request: RunRequest,
    store: Run,
    note: Note,
    lifetime: ExitStack | None = None,
    *,
    defaults: Defaults | None,
    continued: bool,
) -> Ready:
    """Return the checked run, with the end that the suite chooses where nothing says when a new one ends."""
    made = ready(request, note, lifetime=lifetime, decides_by_default=not continued)
    if defaults:
        made = replace(made, plan=made.plan.model_copy(update={"defaults": str(defaults)}))
    if not continued:
        if made.plan.request:  # with the targets that it takes by default
            refuse_ignored(made.plan.request)
        made = with_budget(made, request, store, note)
    return with_trial_limit(made, store)


class RunLog:
    """Copies standard error into ``bench.log`` of a run from when that has begun: a refused request leaves none."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._pending = ""
        with suppress(OSError):
            if os.path.samestat(os.fstat(2), (run / LOG).stat()):  # as bench web starts runs
                return
        if isinstance(sys.stderr, CleanStream):
            sys.stderr.copy = self.write

    def write(self, text: str, *, begun: bool = False) -> None:
        """Append text, unless no run has begun. A log that cannot be written ends no measurement."""
        self._pending += text
        if begun or (self._run / LOG).exists() or (self._run / PLAN).exists():
            with suppress(OSError), files.appending(self._run / LOG, self._run) as file:
                file.write(self._pending.encode())
            self._pending = ""


def _measured(
    made: Ready, store: Run, observer: Lines | Display, busy: Busy | None, earlier: StopRequest | None
) -> list[TrialRecord]:
    """Run what the store does not hold yet; return the records made now. If it is ended early, print how to go on.

    The ``earlier`` request to stop is one of an earlier run.
    """
    with neighbours.alone_on(made.site.here_cpus(made.plan), observer.note, busy):
        made = made.prepare(observer.note)
        outlook = Outlook(observer, made.plan, store)
        durations = earlier_durations(store)
        for trial in made.plan.trials_of(made.plan.blocks):
            if (seconds := durations.of(trial)) is not None:  # so that the clock knows the time to go from the first on
                observer.clock.expect(trial, seconds)
        loop = Loop(made.scenario, made.open_target, store, outlook, host_environment, accounts())
        with store.exclusive(), store.sealed():
            clear_stop(store.directory, earlier)
            go_on = f"go on with: bench run --continue {store.directory}"
            outlook.note_failed()
            try:
                for plan, block in steps(made.plan, made.repetitions, store, outlook):
                    loop.run(plan, block)
            except StopRequested:
                click.echo(f"stopped, as it was asked to; {go_on}", err=True)
            except KeyboardInterrupt:
                click.echo(go_on, err=True)
                raise
    return outlook.made


def _tell(records: list[TrialRecord], store: Run, *, as_json: bool) -> None:
    """Print the answer, and where the records are; end with exit code 1 where a trial has failed."""
    # Here, since pandas takes as long to import as everything else together.
    from analysis.report.answers.answer import answer
    from analysis.report.document import answer_elements
    from analysis.report.rows import answer_output
    from analysis.report.terminal import Terminal
    from commands.compare.command import plain
    from commands.compare.kept import listing, once
    from commands.compare.output import RunOutput
    from commands.compare.show import Shown

    failed = [record.trial_id for record in records if record.outcome.status == "failed"]
    measured = count(len(records) - len(failed), "trial")
    click.echo(f"{measured} measured, {len(failed)} failed: {store.directory}", err=True)
    if failed:
        click.echo(f"the first failure in full: bench results show {store.directory}/{failed[0]}", err=True)
    chosen = [store.directory]
    options = plain()
    comparison = None
    listed = listing(chosen)
    shown = Shown(chosen, options)
    try:
        comparison = shown.comparison
    except RequestError as error:  # what was measured stays measured
        click.echo(f"no answer: {error.message}", err=True)
    if as_json:
        trials = [record.trial_id for record in records]
        where = str(store.directory)
        told = answer_output(comparison) if comparison else None
        RunOutput(
            run_id=stored_plan(store.directory).run_id,
            directory=where,
            trials=trials,
            failed=failed,
            answer=told,
        ).tell()
    else:
        if comparison:
            PlainConsole().print(Terminal(answer_elements(answer(comparison))))
            once(chosen, {"command": "compare", **options}, shown.tell, listed, silently=True)
        click.echo(f"more: bench compare {store.directory}", err=True)
    if failed:
        sys.exit(1)
