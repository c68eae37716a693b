"""``bench reproduce``: show which papers the ready plans rebuild and what that takes here; measure one of them."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from analysis.figures import reference
from commands.compare.command import compare
from commands.paths import UserPath, with_packs
from commands.reproduce.offers import listed
from commands.reproduce.parts import PlanPart, paper_plans, plan_of_paper, smaller
from commands.reproduce.rerun import check_rerun, show_rerun
from commands.reproduce.takes import described_here, is_hopeless, missing_sets, refusals, summary, unsaid
from commands.run.options import BUSY_HELP, number
from commands.sweep.backends.base import backend_of
from commands.sweep.command import measure
from commands.sweep.resolve import resolve
from provisioning.neighbours import Busy
from suite.errors import RequestError
from suite.request.next_step import NextStep, bench
from suite.results.layout import results_directory
from suite.results.runs import runs_and_sweeps
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import Settings, Sweep


@click.command()
@click.argument("paper", required=False)
@click.option("--plan", "name", help="Plan of the paper, if several rebuild it.")
@click.option("--profile", help="Profile in place of the plan's, such as quick.")
@click.option("--target", "targets", multiple=True, help="Target in place of the plan's; repeatable.")
@click.option("--scenario", "scenarios", multiple=True, help="Scenario of the plan to measure alone; repeatable.")
@click.option("--model", "models", multiple=True, help="Model of the plan to measure alone; repeatable.")
@number("--blocks", help="Blocks in place of the plan's.")
@click.option("--expect", type=UserPath(), help="Pack of earlier records to compare the new ones with.")
@click.option("--out", type=UserPath(), help="Directory. Default: results/PLAN or results/PLAN-PROFILE.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and how long it takes; start and write nothing.")
@click.option("--concurrent", "busy", flag_value="share", help=BUSY_HELP["share"])
@click.option("--wait", "busy", flag_value="wait", help=BUSY_HELP["wait"])
@click.pass_context
def reproduce(
    context: click.Context,
    /,
    paper: str | None,
    name: str | None,
    expect: Path | None,
    out: Path | None,
    dry_run: bool,
    busy: Busy | None,
    **options: Any,  # noqa: ANN401 (the fields of ``PlanPart``)
) -> None:
    """List the papers that ready plans rebuild, or measure one.

    It shows the tables and figures of the paper, and judges its claims.

    Data that its cells read are generated first, cells that cannot run here are named and left out. The same command
    again goes on where it was.

    \b
    Examples:
      bench reproduce                                   papers, and what each takes here
      bench reproduce closer2018 --profile quick --model alexnet --blocks 5
      bench reproduce closer2018 --profile quick --scenario synthetic --model alexnet --blocks 5
      bench reproduce closer2018 --expect artefact.tar.gz
      bench reproduce closer2018 --profile smoke --target bare-metal --target container --dry-run
    """
    part = PlanPart(**options)
    further = {"--plan": name, "--out": out, "--expect": expect}
    if paper is None:
        _list_papers([*part.words(), *(option for option, value in further.items() if value)])
        return
    file, whole = plan_of_paper(paper, name)
    sweep = smaller(whole, part)
    directory = SweepDirectory(out or results_directory() / sweep.name)
    earlier: list[Path] = []
    if expect:
        earlier = runs_and_sweeps(with_packs((expect,)))
    if not dry_run:
        sweep = _prepared(sweep)
    if expect:
        check_rerun(resolve(sweep, unsaid), directory, expect, earlier)
    if dry_run:
        context.exit(0 if _show_plan(sweep) else 2)
    again = shlex.join(("bench", *_again(paper, part, further)))
    failed = measure(file, sweep, directory, busy=busy, again=again)
    _show_all(context, paper, sweep, directory.path)
    if expect:
        show_rerun(expect, earlier, directory.path, partial(_to_blocks, paper, part, further))
    if failed:
        context.exit(1)


def _list_papers(words: Sequence[str]) -> None:
    """Print the papers. Raises RequestError for options, which one has to be named for."""
    if words:
        raise RequestError(f"{words[0]} needs a paper", remedy=f"name one of {', '.join(paper_plans())}")
    for line in listed():
        click.echo(line)


def _show_plan(sweep: Sweep) -> bool:
    """Print what would be measured, and which data are made before; return whether any cell can run."""
    planned = described_here(sweep, _note)
    missing = missing_sets(sweep)
    click.echo(summary(sweep, planned, missing))
    if is_hopeless(sweep, planned, missing):
        return False
    for data_set in missing.values():
        click.echo(f"first it runs {data_set.command}")
    if planned.paper_figures:
        click.echo(f"{reference.SOURCE}, complete: figures {', '.join(map(str, planned.paper_figures))}")
    _note("Dry run: nothing was started. Remove --dry-run to start it.")
    return bool(planned.trials or missing)


def _prepared(sweep: Sweep) -> Sweep:
    """Make the data that a plan reads on this machine; return it without the cells that cannot run here.

    Raises RequestError, before any data are made, if no other cell can run.
    """
    backend = backend_of(sweep)
    backend.check(sweep)
    if not backend.runs_here:
        return sweep
    missing = missing_sets(sweep)
    if missing:
        planned = described_here(sweep, unsaid)
        if is_hopeless(sweep, planned, missing):
            commands = "; ".join(map(attrgetter("command"), missing.values()))
            raise RequestError(
                f"no data are made, for no other cell of {sweep.name} can run here: {refusals(planned.cells)}",
                remedy=f"see --dry-run; if the cells with data can run, make these first: {commands}",
            )
    for data_set in missing.values():
        data_set.make()
    return _runnable(sweep)


def _note(text: str) -> None:
    click.echo(text, err=True)


def _runnable(sweep: Sweep) -> Sweep:
    """Return a plan without the cells that cannot run here, which are named; one whose cells all cannot stays whole."""
    planned = resolve(sweep, _note)
    left_out = []
    for cell in planned:
        if cell.refusal:
            left_out.append(Settings.model_validate(cell.cell.settings))
    if len(left_out) == len(planned):
        return sweep
    for cell in planned:
        if cell.refusal:
            _note(f"left out: {cell.cell.cell_id}: {cell.refusal.message} ({cell.refusal.remedy})")
    return sweep.model_copy(update={"exclude": (*sweep.exclude, *left_out)})


def _again(paper: str, part: PlanPart, further: Mapping[str, object]) -> list[str]:
    """Return the words after ``bench`` that go on with a paper."""
    words = ["reproduce", paper, *part.words()]
    for option, value in further.items():
        if value:
            words += [option, str(value)]
    return words


def _to_blocks(paper: str, part: PlanPart, further: Mapping[str, object], blocks: int) -> NextStep | None:
    longer = part._replace(blocks=blocks)
    return bench(*_again(paper, longer, further), decides=f"whether the rerun agrees, by {blocks} blocks")


def _show_all(context: click.Context, paper: str, sweep: Sweep, directory: Path) -> None:
    """Print the comparison with the claims of the paper, and the views of its plan."""
    context.invoke(compare, directories=(directory,), claims=paper, reference=True)
    for view in sweep.views:
        _show(context, view, directory)


def _show(context: click.Context, view: str, directory: Path) -> None:
    """Print a further view of a plan. What the records are too few for is named, and ends nothing."""
    name, _, keys = view.partition("=")
    options: dict[str, Any] = {name: tuple(keys.split(",")) if keys else True}
    click.echo(f"\n{shlex.join(['bench', 'compare', str(directory), *_flags(name, keys)])}\n")
    try:
        context.invoke(compare, directories=(directory,), **options)
    except RequestError as error:
        click.echo(f"not shown: {error.message}; {error.remedy}", err=True)


def _flags(name: str, keys: str) -> list[str]:
    if not keys:
        return [f"--{name}"]
    return [word for key in keys.split(",") for word in ("--by", key)]
