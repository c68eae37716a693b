"""Paths on a command line."""

from pathlib import Path
from typing import Any

import click


class UserPath(click.Path):
    """A file or directory. ``~`` is the home, also behind ``--out=``, which no shell expands."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if str(value) == "-":
            self.fail("'-' does not stand for standard output or input here: name a file, or write ./-", param, ctx)
        path = Path(str(super().convert(value, param, ctx)))
        try:
            return path.expanduser()
        except RuntimeError:
            self.fail(f"{path} begins with ~, but there is no such home directory: write it out", param, ctx)
