"""Read a plan file. An error names the key, the value and what would do."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from suite.errors import RequestError, nearest
from suite.request.parts import EnvelopeOptions
from suite.request.request import OPTIONS
from suite.sweep.model import Budget, OutputOptions, Settings, Sweep, key_of
from suite.untrusted.files import read_toml, refuse_writable_by_others

_TABLES: dict[str, type[BaseModel]] = {
    "include": Settings,
    "exclude": Settings,
    "options": Settings,
    "envelope": EnvelopeOptions,
    "budget": Budget,
    "output": OutputOptions,
}
PLANS = (Path(__file__).parent / "plans").resolve()
"""The plans that come with the suite: a link to plans/ in a checkout, a directory of the installed package."""
_PAGE = "docs/guide/sweeps.md"
_WANTED = {
    "tuple_type": "give a list: [...]",
    "list_type": "give a list: [...]",
    "dict_type": "give a table: [{key}]",
    "model_type": "give a table: [{key}]",
    "string_type": 'give a text: "..."',
    "string_too_short": "it is empty",
    "too_short": "give at least one",
    "int_type": "give a whole number",
    "less_than_equal": "it is too large a number",
    "less_than": "it is too large a number",
    "bool_type": "give true or false",
    "string_pattern_mismatch": "small letters, digits, dots and dashes, at most 64, the first a letter or a digit",
}
"""Remedies in terms of the file; pydantic speaks of Python's types."""
_LISTS_OF_TABLES = ("include", "exclude")


def plan_file(name: Path) -> Path:
    """Return the file that ``name`` means: itself or, given a bare name such as ``smoke``, a shipped plan."""
    shipped = PLANS / f"{name}.toml"
    return shipped if len(name.parts) == 1 and not name.is_file() and shipped.is_file() else name


def shipped_plans() -> list[str]:
    return sorted(path.stem for path in PLANS.glob("*.toml"))


def load_sweep(path: Path) -> Sweep:
    """Return the sweep of a plan file. Raises RequestError for a file that cannot be read, or that is no plan.

    A plan that names other machines, how to reach them, or code to be run, is refused if others may write it.
    """
    remedy = f"name a plan file, or a plan that comes with bench: {', '.join(shipped_plans())}; see {_PAGE}"
    sweep = read_sweep(read_toml(path, str(path), remedy), str(path))
    values = [(key, value) for key, values in sweep.matrix.items() for value in values]
    values += [pair for settings in (sweep.options, *sweep.include) for pair in settings.given().items()]
    code = any(key == "inventory" or _is_code(key, value) for key, value in values)
    if sweep.engine.kind != "local" or code:
        refuse_writable_by_others(path, "the plan")
    return _located(sweep, path.absolute().parent)


def _is_code(key: str, value: object) -> bool:
    return OPTIONS[key].about.own_code and OPTIONS[key].is_path(value)


def _located(sweep: Sweep, directory: Path) -> Sweep:
    """Return the sweep with the paths of the user's own code taken from the directory of the plan file."""

    def located(key: str, value: object) -> object:
        return OPTIONS[key].located(value, directory) if _is_code(key, value) else value

    def settings(table: Settings) -> Settings:
        return table.model_copy(update={key: located(key, value) for key, value in table.given().items()})

    return sweep.model_copy(
        update={
            "matrix": {key: [located(key, value) for value in values] for key, values in sweep.matrix.items()},
            "options": settings(sweep.options),
            "include": tuple(map(settings, sweep.include)),
            "exclude": tuple(map(settings, sweep.exclude)),
        }
    )


def read_sweep(content: dict[str, Any], where: str) -> Sweep:
    """Return the sweep that TOML has given. Raises RequestError naming ``where`` and the first fault."""
    try:
        return Sweep.model_validate(content)
    except ValidationError as error:
        message, remedy = _fault(error)
        raise RequestError(f"{where}: {message}", remedy=remedy) from error
    except RequestError as error:
        raise error.spelled(key_of).within(where) from error


def _fault(error: ValidationError) -> tuple[str, str]:
    # An unknown key first: a misspelt one is often also missing.
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    first = faults[0]
    # For a union, the location also names the branch that was tried, which means nothing to a reader.
    keys = [str(part) for part in first["loc"] if "constrained" not in str(part) and part not in ("int", "str")]
    key = ".".join(keys) or "the plan"
    if first["type"] == "extra_forbidden":
        model = _TABLES.get(str(first["loc"][0]), Sweep) if len(first["loc"]) > 1 else Sweep
        return f"unknown key {key}", nearest(str(first["loc"][-1]), list(model.model_fields))
    if first["type"] == "missing":
        return f"{key} is missing", f"add it: {key} = ..."
    wanted = _WANTED.get(first["type"], first["msg"].removeprefix("Value error, ")).format(key=key)
    if key.partition(".0")[0] in _LISTS_OF_TABLES and first["type"] in ("tuple_type", "model_type"):
        wanted = f"give a list of tables: [[{first['loc'][0]}]]"
    value = "" if isinstance(first["input"], (dict, BaseModel)) else f" = {first['input']!r}"
    return f"{key}{value}: {wanted}", f"mend {key}; docs/reference/options.md has every key"
