"""Imports the suite's packages from the place where virtbench is installed.

Their names are general (``suite``, ``worker``, ``cli``): with ``PYTHONPATH=.``, or in a notebook, a user's file
``worker.py`` comes before them on the path.
"""

import sys
import warnings
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

INSTALLED = Path(__file__).resolve().parents[1]
"""The directory that holds the packages: a checkout, or site-packages."""


def import_own_packages() -> tuple[Path, ...]:
    """Import every package of the suite; return the files on the path that now have no name to be imported by.

    Raises ImportError if another module of such a name was imported before.
    """
    sys.path.insert(0, str(INSTALLED))
    try:
        _import("suite")
        names = import_module("suite.version").NAMES
        for name in names:
            _import(name)
    finally:
        sys.path.remove(str(INSTALLED))
    found = (PathFinder.find_spec(name) for name in names)
    origins = (Path(spec.origin).resolve() for spec in found if spec and spec.origin)
    return tuple(origin for origin in origins if not origin.is_relative_to(INSTALLED))


def _import(name: str) -> None:
    loaded = sys.modules.get(name)
    origin = getattr(loaded, "__file__", None)
    if loaded and not (origin and Path(origin).resolve().is_relative_to(INSTALLED)):
        raise ImportError(
            f"virtbench has a package called {name}, and {origin or name} was imported by this name before; "
            f"what to do: rename your module, or call bench in a process of its own: python -m virtbench"
        )
    import_module(name)


def warn_of_hidden_modules(hidden: tuple[Path, ...]) -> None:
    """Warn of the user's modules whose names the suite's packages have taken in this process."""
    for path in hidden:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        text = f"`import {name}` now means virtbench's package, and not {path}; what to do: rename your module, or run "
        warnings.warn(f"{text}virtbench in a process of its own: python -m virtbench", stacklevel=3)
