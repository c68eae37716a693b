"""Modules of this package that run as programs on any node, by its own Python (3.9 or newer) with nothing installed."""

import inspect
from types import ModuleType


def program_argv(module: ModuleType, *words: str) -> list[str]:
    """Return the command that runs the module there; the words are its ``sys.argv[1:]``, whatever they begin with."""
    return ["python3", "-I", "-c", inspect.getsource(module), *words]
