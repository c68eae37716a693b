"""The next step, as a command that a shell takes as it is printed."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from suite.units import format_duration
from suite.untrusted.parse import has_control_characters

LABEL = "next"
"""Stands on a line of its own before the command."""


@dataclass(frozen=True)
class NextStep:
    """A command that settles what is open, or shows what is behind an answer."""

    argv: tuple[str, ...]
    decides: str
    """What is known after it, in a few words."""
    takes_s: float | None = None
    """About how long it takes, or at most; None for what takes seconds, or where nothing is known."""
    at_most: bool = False
    """Whether a budget ends it after ``takes_s``."""

    @property
    def command(self) -> str:
        return shlex.join(self.argv)

    @property
    def remark(self) -> str:
        """Return what it decides, and how long that takes."""
        if not self.takes_s:
            return self.decides
        return f"{self.decides}, {'at most' if self.at_most else 'about'} {format_duration(self.takes_s)}"

    def __str__(self) -> str:
        """Return the line of a shell: the command, and the remark as a comment."""
        return f"{self.command}  # {self.remark}"


def bench(*words: str | Path, decides: str, takes_s: float | None = None, at_most: bool = False) -> NextStep | None:
    """Return the step that ``bench`` takes with these words; None if a shell could not take it from one line."""
    argv = ("bench", *map(_word, words))
    if has_control_characters("".join(argv)):
        return None
    return NextStep(argv, decides, takes_s, at_most)


def _word(word: str | Path) -> str:
    """Return a word of a command line; a path that begins like an option is one of this directory."""
    is_option_like = isinstance(word, Path) and str(word).startswith("-")
    if is_option_like:
        return f"./{word}"
    return str(word)
