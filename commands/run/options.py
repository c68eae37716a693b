"""How values of options are checked: a refusal names the value and what would do."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from suite.errors import RequestError
from suite.suggest import nearest

F = TypeVar("F", bound=Callable[..., object])


class PlanFile(click.Path):
    """A plan file of the user's, or the bare name of a plan that comes with the suite."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        from suite.sweep.file import plan_file

        return plan_file(Path(os.fsdecode(super().convert(value, param, ctx))))


def choice(known: Sequence[str], *, several: bool = False) -> Callable[..., object]:
    """A callback that refuses an unknown name with the nearest known one."""

    def check(_ctx: click.Context, _param: click.Parameter, value: object) -> object:
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            if each is not None and each not in known and not (several and each == "all"):
                raise RequestError(
                    f"{_param.opts[0]} {each!r} is unknown", remedy=nearest(str(each), [*known, *["all"] * several])
                )
        if several and "all" in values:
            return tuple(known)
        return tuple(dict.fromkeys(values)) if several else value

    return check


def positive(_ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    least = 0 if param.name in ("warmup_steps", "warmup_blocks", "seed", "loader_workers", "only_block") else 1
    if value is not None and value < least:
        raise RequestError(f"--{str(param.name).replace('_', '-')} {value}", remedy=f"give a number from {least} up")
    return value


def shares(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    from suite.units import parse_share

    return None if value is None else parse_share(value)


def number(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002 (click's word)
    return click.option(*names, type=int, callback=positive, help=help)
