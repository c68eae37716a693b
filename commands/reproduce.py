"""``bench reproduce``: show which papers the ready plans rebuild and what that takes here; measure one of them."""

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from analysis.compare.published import citation
from analysis.statistics.sequential import LEAST_BLOCKS
from commands.compare.command import compare
from commands.data import MissingSet, missing_set
from commands.paths import UserPath, with_packs
from commands.run.options import BUSY_HELP, number
from commands.sweep.backends.base import backend_of
from commands.sweep.command import measure
from commands.sweep.plan import PlannedOutput, described
from commands.sweep.resolve import resolve
from provisioning.neighbours import Busy
from suite.errors import RequestError, nearest
from suite.job.datasets import SYNTHETIC
from suite.request.parts import TargetOptions
from suite.request.scenario import scenario_of
from suite.results.layout import results_directory
from suite.sweep.cells import Cell, cells_of, request_of
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
        _refuse_options([*part.words(), *(option for option, value in further.items() if value)])
        for line in _listed():
            click.echo(line)
        return
    file, whole = _plan_of(paper, name)
    sweep = smaller(whole, part)
    directory = SweepDirectory(out or results_directory() / sweep.name)
    if dry_run:
        context.exit(0 if _show_plan(sweep) else 2)
    if expect is not None:
        with_packs((expect,))
    sweep = _prepared(sweep)
    again = _again(paper, part, further)
    failed = measure(file, sweep, directory, busy=busy, again=again)
    _show_all(context, paper, sweep, directory.path, expect)
    if failed:
        context.exit(1)


def _refuse_options(words: Sequence[str]) -> None:
    """Raise RequestError for options of a paper that none is named for."""
    if words:
        raise RequestError(f"{words[0]} needs a paper", remedy=f"name one of {', '.join(_plans())}")


def _show_plan(sweep: Sweep) -> bool:
    """Print what would be measured, and which data are made before; return whether it has any cell."""
    planned = _described(sweep, _note)
    missing = missing_sets(sweep)
    click.echo(_summary(sweep, planned, missing))
    for data_set in missing.values():
        click.echo(f"first it runs {data_set.command}")
    return bool(planned.trials or missing)


def _prepared(sweep: Sweep) -> Sweep:
    """Make the data that a plan reads on this machine; return it without the cells that cannot run here."""
    backend = backend_of(sweep)
    backend.check(sweep)
    if not backend.runs_here:
        return sweep
    for data_set in missing_sets(sweep).values():
        data_set.make()
    return _runnable(sweep)


def _note(text: str) -> None:
    click.echo(text, err=True)


def missing_sets(sweep: Sweep) -> dict[str, MissingSet]:
    """Return the data sets that cells of a plan read and that are not there, by their ``--data``, for the largest."""
    images: dict[str, int] = {}
    for cell in cells_of(sweep):
        data, number = _read_by(sweep, cell)
        images[data] = max(number, images.get(data, 0))
    missing = {}
    for data, number in images.items():
        data_set = missing_set(data, number)
        if data_set:
            missing[data] = data_set
    return missing


def _read_by(sweep: Sweep, cell: Cell) -> tuple[str, int]:
    """Return the ``--data`` of a cell, and how many images its largest job takes."""
    try:
        request = request_of(sweep, cell)
        return scenario_of(request).images_read(request)
    except RequestError:  # what cannot be requested reads nothing
        return SYNTHETIC, 0


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


def _again(paper: str, part: "PlanPart", further: Mapping[str, object]) -> str:
    """Return the command that goes on with a paper."""
    words = ["bench", "reproduce", paper, *part.words()]
    for option, value in further.items():
        if value:
            words += [option, str(value)]
    return shlex.join(words)


def _show_all(context: click.Context, paper: str, sweep: Sweep, directory: Path, expect: Path | None) -> None:
    """Print the comparison with the claims of the paper, the views of its plan, and what a pack has of the same."""
    context.invoke(compare, directories=(directory,), claims=paper, reference=True)
    for view in sweep.views:
        _show(context, view, directory)
    if expect is not None:
        _compare_with(context, expect, directory)


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


def _compare_with(context: click.Context, pack: Path, directory: Path) -> None:
    """Compare a rerun with the records of a pack: of other machines by host, of this machine as a change."""
    click.echo(f"\n{directory} compared with {pack}\n")
    try:
        context.invoke(compare, directories=(pack, directory), by=("host",))
    except RequestError:  # both are of one host
        context.invoke(compare, directories=(pack, directory))


class PlanPart(NamedTuple):
    """The part of a plan that is measured; what is None or empty is the plan's own."""

    profile: str | None = None
    targets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    blocks: int | None = None
    scenarios: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return the options of the command that measures it."""
        words = ["--profile", self.profile] if self.profile else []
        for option, values in (
            ("--target", self.targets),
            ("--scenario", self.scenarios),
            ("--model", self.models),
        ):
            for value in values:
                words += [option, value]
        if self.blocks:
            words += ["--blocks", str(self.blocks)]
        return words


def smaller(sweep: Sweep, part: PlanPart) -> Sweep:
    """Return a part of a plan; with another profile or fewer cells under another name. Raises RequestError."""
    changes: dict[str, Any] = {"targets": part.targets or sweep.targets, "blocks": part.blocks or sweep.blocks}
    TargetOptions.model_validate({"target": changes["targets"]})
    name = sweep.name
    if part.profile:
        changes["options"] = Settings.model_validate({**sweep.options.given(), "profile": part.profile})
        changes["matrix"] = {key: values for key, values in sweep.matrix.items() if key != "profile"}
        name = f"{name}-{part.profile}"
    smaller_sweep = sweep.model_copy(update=changes)
    for key, values in (("scenario", part.scenarios), ("model", part.models)):
        if values:
            smaller_sweep = _only(smaller_sweep, key, values)
            name = "-".join((name, *values)).replace("_", "-")
    return smaller_sweep.model_copy(update={"name": name})


def _only(sweep: Sweep, key: str, values: Sequence[str]) -> Sweep:
    """Return the cells of a plan that have one of these values. Raises RequestError for a value that no cell has."""
    cells = [cell.settings for cell in cells_of(sweep)]
    known = {str(settings.get(key)): None for settings in cells}
    for value in values:
        if value not in known:
            raise RequestError(f"--{key} {value!r} is in no cell of {sweep.name}", remedy=nearest(value, [*known]))
    chosen = tuple(Settings.model_validate(settings) for settings in cells if settings.get(key) in values)
    return sweep.model_copy(update={"matrix": {}, "exclude": (), "options": Settings(), "include": chosen})


def _plans() -> dict[str, dict[Path, Sweep]]:
    plans: dict[str, dict[Path, Sweep]] = {}
    for file in (plan_file(Path(name)) for name in shipped_plans()):
        sweep = load_sweep(file)
        if sweep.paper:
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
        for position, (file, sweep) in enumerate(plans.items()):
            yield from _offers(sweep, f"bench reproduce {paper}" + f" --plan {file.stem}" * bool(position))


def _offers(sweep: Sweep, command: str) -> Iterator[str]:
    """Yield the command of the whole plan, and of the largest part that fits an hour, or else of the smallest."""
    whole = _described(sweep, lambda _: None)
    parts = _smaller_parts(whole)
    for part in parts:
        offered = smaller(sweep, part)
        planned = _described(offered, lambda _: None)
        fits = (planned.total_s or 0.0) <= _HOUR_S
        if fits or part in (parts[0], parts[-1]):
            yield f"  {' '.join((command, *part.words()))}"
            yield f"    {_summary(offered, planned, missing_sets(offered))}"
        if fits:
            break


def _smaller_parts(whole: PlannedOutput) -> list[PlanPart]:
    """Return the parts of a plan that are tried in place of it, the largest first, then one model in the least blocks.

    Of a plan with targets that are no measurement here, the others are tried.
    """
    planned = dict.fromkeys(target for cell in whole.cells for target in cell.targets)
    measured = tuple(target for target in planned if target not in whole.path_only)
    least = tuple(target for target in measured if target in ON_REAL_MACHINES)
    targets = measured if whole.path_only else ()
    one = _quickest_model(whole)
    parts = (
        PlanPart(),
        PlanPart(targets=targets),
        PlanPart("quick", targets),
        PlanPart("quick", least),
        PlanPart("quick", least, blocks=LEAST_BLOCKS),
        PlanPart("quick", least, one, LEAST_BLOCKS),
        PlanPart("smoke", least),
    )
    return list(dict.fromkeys(parts))


def _quickest_model(whole: PlannedOutput) -> tuple[str, ...]:
    """Return the model with the shortest block in the first scenario of a plan; none where no cell can run."""
    times_s: dict[str, float] = {}
    for cell in whole.cells:
        if cell.block_s and cell.settings["scenario"] == whole.cells[0].settings["scenario"]:
            times_s.setdefault(str(cell.settings.get("model")), cell.block_s)
    return (min(times_s, key=times_s.__getitem__),) if times_s else ()


def _described(sweep: Sweep, note: Callable[[str], None]) -> PlannedOutput:
    return described(sweep, SweepDirectory(results_directory() / sweep.name), note)


def _summary(sweep: Sweep, planned: PlannedOutput, missing: Collection[str]) -> str:
    """Return what a plan takes here; its cells that wait for ``missing`` data sets are not refused."""
    waiting = {cell.cell_id for cell in cells_of(sweep) if _read_by(sweep, cell)[0] in missing}
    refused = [cell for cell in planned.cells if cell.refused and cell.cell_id not in waiting]
    reasons = "; ".join(dict.fromkeys(f"{cell.refused} ({cell.remedy})" for cell in refused))
    if planned.total_s is not None:
        time = f", about {format_duration(planned.total_s)}"
    else:
        time = ""
    text = f"{count(len(planned.cells), 'cell')}, {count(planned.trials, 'trial')}{time}"
    parts = [text]
    if waiting:
        parts.append(f"in addition {count(len(waiting), 'cell')} with data that it makes first")
    if planned.path_only:
        parts.append(f"no measurement here: {', '.join(planned.path_only)}")
    if planned.early_end:
        parts.append(planned.early_end)
    if refused:
        parts.append(f"{len(refused)} refused: {reasons}")
    return "; ".join(parts)
