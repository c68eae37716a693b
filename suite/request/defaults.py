"""The defaults of a project, checked as the options of a request are; the command line wins."""

from collections.abc import Mapping
from dataclasses import dataclass

from suite.errors import RequestError
from suite.request.request import RunRequest
from suite.results.project import Project, project


@dataclass(frozen=True)
class Defaults:
    """The options that a request took from the project's file, and those that do not fit what was given."""

    file: str
    taken: tuple[str, ...]
    left_out: Mapping[str, str]
    """Why each of the others does not apply."""

    def __str__(self) -> str:
        """Return ``virtbench.toml: target, margin``."""
        return f"{self.file}: {', '.join(self.taken) or 'none applies'}"


def with_defaults(given: Mapping[str, object]) -> tuple[RunRequest, Defaults | None]:
    """Return the request of the given options and of the project's file.

    A default gives way to the same option, and to options that exclude it or without which it has no effect. Raises
    RequestError for options that cannot be, and for a file with such.
    """
    of_project = project()
    if of_project is None:
        return RunRequest.of(given), None
    chosen = dict(given)
    left_out = {}
    taken = []
    for name, value in _options(of_project).items():
        if name in given:
            continue
        try:
            RunRequest.of({**chosen, name: value}).refuse_idle()
        except RequestError as error:
            left_out[name] = error.message
        else:
            chosen[name] = value
            taken.append(name)
    return RunRequest.of(chosen), Defaults(of_project.file, tuple(taken), left_out)


def _options(of_project: Project) -> dict[str, object]:
    """Return the options of a file as a request takes them. Raises RequestError for one that cannot be."""
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in of_project.options.items()
        if value is not False
    }
    try:
        RunRequest.of(options)
    except RequestError as error:
        raise error.spelled(str).within(of_project.file) from error
    return options
