"""``bench reproduce``: show which papers the ready plans rebuild and what that takes here; measure one of them."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from analysis.compare.published import citation
from commands.compare.command import compare
from commands.paths import UserPath
from commands.run.options import BUSY_HELP
from commands.sweep.backends.base import backend_of
from commands.sweep.command import measure
from commands.sweep.plan import PlannedOutput, described
from provisioning.neighbours import Busy
from suite.errors import RequestError, nearest
from suite.request.parts import TargetOptions
from suite.results.layout import results_directory
from suite.sweep.directory import SweepDirectory
from suite.sweep.file import Settings, Sweep, load_sweep, plan_file, shipped_plans
from suite.targets import ON_REAL_MACHINES
from suite.units import count, format_duration

_HOUR_S = 3600.0


@click.command()
@click.argument("paper", required=False)
@click.option("--plan", "name", help="Plan of the paper, if several rebuild it.")
@click.option("--profile", help="Profile in place of the plan's, such as quick.")
@click.option("--target", "targets", multiple=True, help="Target in place of the plan's; repeatable.")
@click.option("--out", type=UserPath(), help="Directory. Default: results/PLAN or results/PLAN-PROFILE.")
@click.option("--dry-run", is_flag=True, help="Print what would run, and how long it takes; start and write nothing.")
@click.option("--concurrent", "busy", flag_value="share", help=BUSY_HELP["share"])
@click.option("--wait", "busy", flag_value="wait", help=BUSY_HELP["wait"])
@click.pass_context
def reproduce(
    context: click.Context,
    paper: str | None,
    name: str | None,
    profile: str | None,
    targets: tuple[str, ...],
    out: Path | None,
    dry_run: bool,
    busy: Busy | None,
) -> None:
    """List the papers that ready plans rebuild, or measure one and judge its claims. Again after Ctrl-C: continues.

    \b
    Examples:
      bench reproduce                                   papers, and what each takes here
      bench reproduce closer2018 --profile quick
      bench reproduce closer2018 --profile smoke --target bare-metal --target container --dry-run
    """
    if paper is None:
        for line in _listed():
            click.echo(line)
        return
    file, whole = _plan_of(paper, name)
    sweep = smaller(whole, profile, targets)
    directory = SweepDirectory(out or results_directory() / sweep.name)
    if dry_run:
        planned = _described(sweep, lambda text: click.echo(text, err=True))
        click.echo(_summary(planned))
        context.exit(0 if planned.trials else 2)
    backend_of(sweep).check(sweep)
    further = [*(("--plan", name) if name else ()), *(("--out", str(out)) if out else ())]
    again = shlex.join(["bench", "reproduce", paper, *_words(profile, targets), *further])
    failed = measure(file, sweep, directory, busy=busy, again=again)
    context.invoke(compare, directories=(directory.path,), claims=True, reference=True)
    if failed:
        context.exit(1)


def smaller(sweep: Sweep, profile: str | None, targets: tuple[str, ...]) -> Sweep:
    """Return a plan with another profile or other targets, under a name of its own. Raises RequestError."""
    named = {**sweep.options.given(), **({"profile": profile} if profile else {})}
    matrix = {key: values for key, values in sweep.matrix.items() if not (profile and key == "profile")}
    changes = {"options": Settings.model_validate(named), "matrix": matrix, "targets": targets or sweep.targets}
    TargetOptions.model_validate({"target": changes["targets"]})
    return sweep.model_copy(update={**changes, "name": f"{sweep.name}-{profile}" if profile else sweep.name})


def _words(profile: str | None, targets: Sequence[str]) -> list[str]:
    chosen = ["--profile", profile] if profile else []
    return [*chosen, *(word for target in targets for word in ("--target", target))]


def _plans() -> dict[str, dict[Path, Sweep]]:
    plans: dict[str, dict[Path, Sweep]] = {}
    for file in (plan_file(Path(name)) for name in shipped_plans()):
        if (sweep := load_sweep(file)).paper:
            plans.setdefault(sweep.paper, {})[file] = sweep
    return plans


def _plan_of(paper: str, name: str | None) -> tuple[Path, Sweep]:
    plans = _plans()
    if paper not in plans:
        raise RequestError(f"no plan rebuilds {paper!r}", remedy=nearest(paper, list(plans)))
    named = {file.stem: (file, sweep) for file, sweep in plans[paper].items()}
    if name is not None and name not in named:
        raise RequestError(f"--plan {name!r} rebuilds nothing of {paper}", remedy=nearest(name, [*named]))
    return named[name or next(iter(named))]


def _listed() -> Iterator[str]:
    """Yield every paper with its citation, and each of its plans with what it takes here and in an hour."""
    for paper, plans in _plans().items():
        yield f"{paper}: {citation(paper)}"
        for number, (file, sweep) in enumerate(plans.items()):
            yield from _offers(sweep, f"bench reproduce {paper}" + f" --plan {file.stem}" * bool(number))


def _offers(sweep: Sweep, command: str) -> Iterator[str]:
    """Yield the command of the whole plan, and of the largest part that fits an hour, or else of the smallest."""
    whole = _described(sweep, lambda _: None)
    parts = _smaller_parts(whole)
    for profile, targets in parts:
        planned = _described(smaller(sweep, profile, targets), lambda _: None)
        fits = (planned.total_s or 0.0) <= _HOUR_S
        if fits or (profile, targets) in (parts[0], parts[-1]):
            yield f"  {' '.join((command, *_words(profile, targets)))}"
            yield f"    {_summary(planned)}"
        if fits:
            break


def _smaller_parts(whole: PlannedOutput) -> list[tuple[str | None, tuple[str, ...]]]:
    """Return the profile and the targets that are tried in place of a plan's own, the largest first.

    Of a plan with targets that are no measurement here, the others are tried.
    """
    planned = dict.fromkeys(target for cell in whole.cells for target in cell.targets)
    measured = tuple(target for target in planned if target not in whole.path_only)
    least = tuple(target for target in measured if target in ON_REAL_MACHINES)
    targets = measured if whole.path_only else ()
    return list(dict.fromkeys([(None, ()), (None, targets), ("quick", targets), ("quick", least), ("smoke", least)]))


def _described(sweep: Sweep, note: Callable[[str], None]) -> PlannedOutput:
    return described(sweep, SweepDirectory(results_directory() / sweep.name), note)


def _summary(planned: PlannedOutput) -> str:
    refused = [cell for cell in planned.cells if cell.refused]
    reasons = "; ".join(dict.fromkeys(f"{cell.refused} ({cell.remedy})" for cell in refused))
    time = f", about {format_duration(planned.total_s)}" if planned.total_s is not None else ""
    text = f"{count(len(planned.cells), 'cell')}, {count(planned.trials, 'trial')}{time}"
    limits = [f"no measurement here: {', '.join(planned.path_only)}"] if planned.path_only else []
    text = "; ".join(filter(None, [text, *limits, planned.early_end]))
    return f"{text}; {len(refused)} refused: {reasons}" if refused else text
