"""Shows an unforeseen error by the user's own code: where a workload that the host has sent has raised it."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

PLUGINS = "virtbench-plugin-"
"""Begins the name of the directory that a module which the host has sent is written to."""


def is_own(file: str | None) -> bool:
    return Path(file or "").parent.name.startswith(PLUGINS)


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]


def explained(error: Exception, step: str) -> str:
    """Return type and message of an error, with file, line, function and step if the user's code has raised it."""
    told = f"{type(error).__name__}: {error}"
    if not (own := own_frames(error)):
        return told
    where = f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}"
    return f"{told} ({where}{f', {step}' if step else ''})"


def print_folded(error: Exception) -> None:
    """Print the traceback to standard error: the user's frames with their lines, then all others as one line each."""
    told = traceback.TracebackException.from_exception(error)
    own = [frame for frame in told.stack if is_own(frame.filename)]
    others: Sequence[traceback.FrameSummary] = [frame for frame in told.stack if frame not in own] if own else []
    if own:
        told.stack = traceback.StackSummary.from_list(own)
    print("".join(told.format()), end="", file=sys.stderr)
    if others:
        print(f"{len(others)} other frames, of the suite and its libraries:", file=sys.stderr)
    for frame in others:
        print(f"  {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno} {frame.name}", file=sys.stderr)
