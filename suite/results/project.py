"""The file of a project in the working directory: ``virtbench.toml``, or ``[tool.virtbench]`` of pyproject.toml.

Its options are checked by ``suite.request.request``: commands that need only the results directory import this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.errors import RequestError
from suite.untrusted.files import read_toml, refuse_writable_by_others

OWN_FILE = Path("virtbench.toml")
SHARED_FILE = Path("pyproject.toml")
_RESULTS = "results"
"""The one key that is no option of a run: the directory for runs."""


@dataclass(frozen=True)
class Project:
    """The content of a project's file."""

    file: str
    """The name of the file, with its table if it has others: ``pyproject.toml [tool.virtbench]``."""
    options: Mapping[str, Any]
    """The options of runs by their names in a plan file, as they were read."""
    results: Path | None


def project() -> Project | None:
    """Return the content of the file in the working directory; None if there is none.

    Raises RequestError for a file that others may write, for one that is not TOML, and if there are two.
    """
    own = read_toml(OWN_FILE, str(OWN_FILE), _remedy(OWN_FILE)) if OWN_FILE.is_file() else None
    shared = read_toml(SHARED_FILE, str(SHARED_FILE), _remedy(SHARED_FILE)) if SHARED_FILE.is_file() else {}
    table = shared.get("tool", {}).get("virtbench")
    if own is None and table is None:
        return None
    name = f"{SHARED_FILE} [tool.virtbench]"
    if own is not None and table is not None:
        raise RequestError(f"{OWN_FILE} and {name} both give defaults", remedy="keep one of them")
    if own is None:
        return _checked(name, SHARED_FILE, table)
    return _checked(str(OWN_FILE), OWN_FILE, own)


def _remedy(file: Path) -> str:
    return f"correct it, or move {file} away"


def _checked(name: str, file: Path, table: Any) -> Project:  # noqa: ANN401 (whatever TOML holds)
    refuse_writable_by_others(file.absolute(), "the file of defaults")
    if not isinstance(table, dict):
        raise RequestError(f"{name} is not a table", remedy='write keys below it, such as margin = "3%"')
    results = table.get(_RESULTS)
    if results is not None and not (isinstance(results, str) and results):
        raise RequestError(
            f"{name}: {_RESULTS} = {results!r} is not a directory", remedy=f'write it as {_RESULTS} = "runs"'
        )
    options = {key: value for key, value in table.items() if key != _RESULTS}
    return Project(name, options, Path(results).expanduser() if results else None)
