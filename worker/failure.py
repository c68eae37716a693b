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
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if is_own(frame.filename)]


def explained(error: Exception, step: str) -> str:
    """Return type and message of an error, with file, line, function and step if the user's code has raised it."""
    message = f"{type(error).__name__}: {error}"
    frames = own_frames(error)
    if not frames:
        return message
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name}"
    return f"{message} ({where}{f', {step}' if step else ''})"


def print_folded(error: Exception) -> None:
    """Print the traceback to standard error: the user's frames with their lines, then all others as one line each."""
    formatted = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in formatted.stack if is_own(frame.filename)]
    others: Sequence[traceback.FrameSummary] = []
    if frames:
        others = [frame for frame in formatted.stack if frame not in frames]
        formatted.stack = traceback.StackSummary.from_list(frames)
    print("".join(formatted.format()), end="", file=sys.stderr)
    if others:
        print(f"{len(others)} other frames, of the suite and its libraries:", file=sys.stderr)
    for frame in others:
        print(f"  {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno} {frame.name}", file=sys.stderr)
