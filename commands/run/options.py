"""Check the options of the other commands: a refusal names the value and what would do; and the run that is meant."""

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import click

from suite.errors import RequestError, flag, nearest
from suite.results.layout import (
    FIGURE_FORMATS,
    PLAN,
    USUAL_FORMATS,
    empty_after,
    latest_run,
    results_directory,
)
from suite.units import parse_inches, parse_share

_NARROWEST_INCHES = 3.0
_WIDEST_INCHES = 20.0
F = TypeVar("F", bound=Callable[..., object])
BUSY_HELP = {
    "share": "Run although another bench uses the same CPUs. The two disturb each other.",
    "wait": "Wait until no other bench measures on the same CPUs.",
}


def choice(known: Sequence[str]) -> Callable[..., object]:
    """Return a callback that refuses an unknown name, or one of several, with the nearest known one."""

    def check(_ctx: click.Context, param: click.Parameter, value: object) -> object:
        names = value if isinstance(value, tuple) else (value,)
        for name in names:
            if name is not None and name not in known:
                raise RequestError(f"{param.opts[0]} {name!r} is unknown", remedy=nearest(str(name), known))
        return value

    return check


def positive(_ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    """Return the number. Raises RequestError where it is too small; a seed and a block may be 0."""
    least = 0 if param.name in ("seed", "only_block") else 1
    if value is not None and value < least:
        raise RequestError(f"{flag(str(param.name))} {value}", remedy=f"give a number from {least} up")
    return value


def shares(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the share that the text says. Raises RequestError where it says none."""
    if value is None:
        return None
    return parse_share(value)


def _column_inches(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return the width of a column. Raises RequestError for one that has no room for a figure, or for no width."""
    if value is None:
        return None
    inches = parse_inches(value)
    if not _NARROWEST_INCHES <= inches <= _WIDEST_INCHES:
        remedy = f"give one from {_NARROWEST_INCHES:g}in to {_WIDEST_INCHES:g}in"
        raise RequestError(f"--width {value}: letters of 6 points do not fit, or no page does", remedy=remedy)
    return inches


FIGURES = click.option(
    "--figures",
    multiple=True,
    callback=choice(FIGURE_FORMATS),
    help=f"Format of the figures: {', '.join(FIGURE_FORMATS)}. Repeatable. Default: {' and '.join(USUAL_FORMATS)}.",
)
WIDTH = click.option(
    "--width",
    callback=_column_inches,
    help="With --figures: width of a column in print, such as 3.3in or 84mm. Letters have 6 to 8 points.",
)
NEEDED_BY_WIDTH = {"width": ("figures", "pdf")}
"""What ``WIDTH`` is for, as ``refuse_silenced`` takes it."""


def given(options: Mapping[str, object]) -> set[str]:
    """Return the options that were given, by their names on the command line without dashes before them."""
    present = set()
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            present.add(name.replace("_", "-"))
    return present


def refuse_silenced(
    present: Set[str],
    silences: Mapping[str, Set[str]],
    needs: Mapping[str, tuple[str, str]],
) -> None:
    """Raise RequestError for an option that another one would silence, or that lacks the one it is for.

    ``silences``: by an option, those that it has no place for. ``needs``: by an option, the one that it is for, with an
    example of its value.
    """
    for name, silenced in silences.items():
        silent = sorted(silenced & present)
        if name in present and silent:
            raise RequestError(f"--{silent[0]} has no effect with --{name}", remedy="leave one of them out")
    for name, (needed, example) in needs.items():
        if name in present and needed not in present:
            raise RequestError(f"--{name} needs --{needed}", remedy=f"give it, such as --{needed} {example}")


def latest() -> Path:
    """Return the run in results/ that was written last; name it on standard error if another could be meant."""
    results = results_directory()
    run = latest_run(results)
    plans = list(results.glob(f"*/{PLAN}"))
    later = empty_after(run)
    if later:
        click.echo(f"{later} is newer and has no record yet: this is {run}", err=True)
    elif len(plans) > 1:
        click.echo(f"{run}: written last of {len(plans)} runs in {results}/", err=True)
    return run


def number(*names: str, **more: Any) -> Callable[[F], F]:  # noqa: ANN401 (click's)
    """Return an option for a whole number from 1 up."""
    return click.option(*names, type=int, callback=positive, **more)
