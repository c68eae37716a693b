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
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}: {nearest(args[0], self.list_commands(ctx))}")
        name, command, words = super().resolve_command(ctx, args)
        if command and not ctx.resilient_parsing:
            _refuse_lost_words(ctx, command, [*takewhile(lambda word: word != "--", words)])
        return name, command, words


def _refuse_lost_words(ctx: click.Context, command: click.Command, words: Sequence[str]) -> None:
    """Raise UsageError for an option that would be the value of another, or that a later one replaces."""
    options = {flag: option for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    before: dict[str | None, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, value, _ = word.partition("=")
        option = options.get(flag)
        if option is None:
            continue
        if not (option.is_flag or option._flag_needs_value or value) and following.startswith("--"):
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
        room = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            rows = [(name, self._described(ctx, name).get_short_help_str(room)) for name in names]
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin like this, and what completes the group's own options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self._described(ctx, name).get_short_help_str()) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

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
