"""Groups of commands: they suggest a name for an unknown one, and import a command when it is run."""

import ast
import inspect
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import takewhile, zip_longest
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from click.shell_completion import CompletionItem

from suite.errors import nearest


class SuggestingGroup(click.Group):
    """A group that suggests the command which was probably meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names. Raises UsageError for an unknown one."""
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        first = args[0]
        if self.get_command(ctx, first) is None and not first.startswith("-"):
            suggestion = nearest(first, self.list_commands(ctx))
            ctx.fail(f"there is no command {first!r}: {suggestion}")
        name, command, words = super().resolve_command(ctx, args)
        if command:
            before_program = list(takewhile(lambda word: word != "--", words))
            _refuse_lost_words(ctx, command, before_program)
        return name, command, words


def _refuse_lost_words(ctx: click.Context, command: click.Command, words: Sequence[str]) -> None:
    """Raise UsageError for an option that would be the value of another, or that a later one replaces."""
    options: dict[str, click.Option] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            options.update(dict.fromkeys(parameter.opts, parameter))
    before: dict[str | None, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, value, _ = word.partition("=")
        option = options.get(flag)
        if option is None:
            continue
        complete = option.is_flag or option._flag_needs_value or value
        if not complete and following.startswith("--"):
            ctx.fail(f"{flag} needs a value; write {flag}={following} if {following} is the one")
        if not option.multiple and before.setdefault(option.name, flag) != flag:
            ctx.fail(f"{flag} would replace {before[option.name]}: give one of them")


class LazyGroup(SuggestingGroup):
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
        """Return the command, imported; None for an unknown name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        command: click.Command = resolve_name(self._lazy[cmd_name])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        longest = max(map(len, names))
        help_width = formatter.width - 6 - longest
        rows = []
        for name in names:
            command = self._described(ctx, name)
            rows.append((name, command.get_short_help_str(help_width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin like this, and what completes the group's own options."""
        items = []
        for name in self.list_commands(ctx):
            if name.startswith(incomplete):
                command = self._described(ctx, name)
                items.append(CompletionItem(name, help=command.get_short_help_str()))
        of_group = click.Command.shell_complete(self, ctx, incomplete)
        return [*items, *of_group]

    def _described(self, ctx: click.Context, name: str) -> click.Command:
        """Return a command that knows its help, and that cannot be run where it is lazy."""
        if name not in self._lazy:
            return super().get_command(ctx, name) or click.Command(name)
        module, _, attribute = self._lazy[name].partition(":")
        spec = find_spec(module)
        if spec:
            source = Path(str(spec.origin)).read_text(encoding="utf-8")
            tree = ast.parse(source)
        else:
            tree = ast.Module([], [])
        named = (node for node in tree.body if getattr(node, "name", None) == attribute)
        function = next(named, None)
        text = None
        if isinstance(function, ast.FunctionDef):
            text = ast.get_docstring(function)
        return click.Command(name, help=inspect.cleandoc(text or ""))
