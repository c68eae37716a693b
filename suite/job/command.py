"""A command of the user's own as a job: its words, and where its throughput stands in what it prints."""

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError
from suite.part import Part
from suite.targets import VERSUS
from suite.untrusted.parse import has_control_characters

COMMAND = "command"
"""The scenario that runs a program, and its option of that name."""
JSON = "json"
"""Stands in the place of a pattern where the command prints JSON objects, each on a line."""
AUTO = "auto"
"""Stands in the place of a pattern for the usual rates, such as ``12.3 images/s``, where the command prints any."""
DecimalMark = Literal["point", "comma"]
THROUGHPUT = "throughput"
SECONDS = "seconds"
"""The groups of a pattern, of which one is needed: a rate, or the time of a step. Objects have the first as a key."""
UNIT = r"^[A-Za-z][A-Za-z0-9_.+-]{0,30}$"
"""The form of what a throughput counts."""
LONGEST = 4000
UNITS = "units"
"""Stands for the unit of a throughput until the output names it."""
_PATH = re.compile(rf"{JSON}:[^\s.]+(?:\.[^\s.]+)*")
_SERIES = re.compile(r"(?:[a-z #0-9-]+ )?[A-Za-z-]+/s", re.IGNORECASE)
_NAME = re.compile(r"[^A-Za-z0-9_.+-]")
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_OPERATOR = re.compile(r"\|\|?|&&?|;|<|>>?")


class CommandJob(Part):
    """A program of the image's or of the user's, run as it is."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    versus: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The command that it is compared with, in the trials of the ablation of that name; None for one command."""
    throughput: str | None = None
    """The choice of the throughput in the output, see ``parse_throughput``; None if elapsed time alone counts."""
    decimal_mark: DecimalMark | None = None
    """The decimal mark of printed numbers; None where those that depend on it are not read."""

    @property
    def name(self) -> str:
        """Return what tables call it: the name of its script, or else of its program."""
        first = _script_of(self.argv)
        second = _script_of(self.versus or self.argv)
        if first == second:
            return first
        return f"{first}-{VERSUS}-{second}"[:100]

    def argv_of(self, ablation: str | None) -> tuple[str, ...]:
        """Return the command that a trial runs."""
        if ablation == VERSUS and self.versus:
            return self.versus
        return self.argv


def _script_of(argv: Sequence[str]) -> str:
    scripts = [word for word in argv if word.endswith((".py", ".sh"))]
    program = scripts[0] if scripts else argv[0]
    name = _NAME.sub("_", program.rpartition("/")[2])
    return name.lstrip("_.+-")[:100] or "command"


def parse_command(text: str) -> tuple[str, ...]:
    """Return the words of a command, split as a shell would and given to none. Raises RequestError."""
    _refuse_unprintable(text)
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise RequestError(f"{text!r} cannot be split into words: {error}", remedy="close the quotation") from error
    if _VARIABLE.match(words[0] if words else ""):
        raise RequestError(
            f"{words[0]} is set by a shell, and none starts the command", remedy=f"write it as env {shlex.join(words)}"
        )
    if not words or not words[0]:
        raise RequestError("it names no program", remedy='write it as "python train.py --epochs 1"')
    operator = _OPERATOR.search(_QUOTED.sub("", text))
    if operator:
        raise RequestError(
            f"{operator[0]} needs a shell, and none starts the command",
            remedy=f"write it as sh -c {shlex.quote(text)}, or quote {operator[0]} if it belongs to an argument",
        )
    return words


def parse_throughput(text: str) -> None:
    """Raise RequestError unless the text chooses a throughput.

    It is ``auto``, ``json``, ``json:PATH``, the name of a series, or a regular expression with a group for rates or
    times.
    """
    if text in (JSON, AUTO) or _PATH.fullmatch(text) or _SERIES.fullmatch(text):
        return
    _refuse_unprintable(text)
    remedy = (
        rf"write it as '(?P<{THROUGHPUT}>[0-9.]+) images/s', 'time (?P<{SECONDS}>[0-9.]+)ms', {JSON}, {JSON}:KEY, "
        f"{AUTO}, or the name of a printed rate such as 'train images/s'"
    )
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(f"{text!r} is no regular expression: {error}", remedy=remedy) from error
    if not groups.keys() & {THROUGHPUT, SECONDS}:
        raise RequestError(f"{text!r} has no group that is named {THROUGHPUT} or {SECONDS}", remedy=remedy)


def unit_of(throughput: str) -> str:
    """Return the unit that a choice implies; ``units`` if the output is to name it."""
    if _SERIES.fullmatch(throughput):
        return throughput.rpartition(" ")[2].removesuffix("/s")
    if f"(?P<{SECONDS}>" in throughput:
        return "steps"
    return UNITS


def _refuse_unprintable(text: str) -> None:
    if len(text) > LONGEST:
        raise RequestError(f"it has {len(text)} characters, and {LONGEST} are the most", remedy="put it in a script")
    if has_control_characters(text):
        raise RequestError(f"{text!r} holds a line break or a control character", remedy="put it in a script")
