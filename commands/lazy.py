"""Commands that are imported when they are run, so that ``bench --help`` is there at once."""

import ast
import importlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group whose ``lazy`` commands are named as ``module:attribute``, as click's documentation has it.

    Their short help, in the help of the group and in completion, is the docstring of the function as it stands in the
    source, so that it is written once and nothing is imported for it.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **more: Any) -> None:  # noqa: ANN401 (click's)
        super().__init__(*args, **more)
        self._lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, the lazy ones first and in their order."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported; None where there is none of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._described(ctx, name).get_short_help_str(room)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin like this, and what completes the group's own options."""
        found = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self._described(ctx, name).get_short_help_str()) for name in found),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def _described(self, ctx: click.Context, name: str) -> click.Command:
        """Return a command that knows its help, and that cannot be run where it is lazy."""
        if name not in self._lazy:
            return super().get_command(ctx, name) or click.Command(name)
        module, _, attribute = self._lazy[name].partition(":")
        spec = find_spec(module)
        tree = ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8")) if spec else ast.Module([], [])
        function = next((each for each in tree.body if getattr(each, "name", None) == attribute), None)
        text = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
        return click.Command(name, help=inspect.cleandoc(text or ""))
