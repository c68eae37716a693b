"""The plan file of a sweep: a model with every key and its meaning, and how one is read.

Keys that are options of a run are declared in ``suite.request.parts``. An error names the key, the value and what would
do.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, create_model
from pydantic.json_schema import JsonSchemaValue

from suite.errors import RequestError, flag, nearest
from suite.part import checked
from suite.request.option import NotNegative, OptionGroup, Text
from suite.request.parts import EnvelopeOptions
from suite.request.repetitions import MOST_BLOCKS, Repetitions
from suite.request.request import OPTIONS
from suite.units import parse_duration_s
from suite.untrusted.files import read_toml, refuse_writable_by_others

ELSEWHERE = {
    "target": "targets",
    "ablate": "ablate",
    "budget": "budget.total",
    **{name: name for name in Repetitions.model_fields},
    **{name: f"envelope.{name}" for name in EnvelopeOptions.model_fields},
}
"""The places, in a plan file, of options that all cells have alike; a cell can have an envelope of its own."""
CELL_KEYS = tuple(name for name in OPTIONS if name not in ELSEWHERE or name in EnvelopeOptions.model_fields)
"""The options that can differ from cell to cell."""


def key_of(name: str) -> str:
    """Return how a plan file spells an option; an option of the command alone stays as it is there."""
    return ELSEWHERE.get(name) or (name if name in OPTIONS else flag(name))


class CellKeys(OptionGroup):
    """One value for each key that a cell can have."""

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


if TYPE_CHECKING:
    Settings = CellKeys
else:
    Settings = create_model(
        "Settings",
        __base__=CellKeys,
        **{
            # A name is checked where its cell is: other cells of the plan can be run.
            name: (Annotated[each.field.annotation if each.kind is int else Text | None, each], None)
            for name, each in OPTIONS.items()
            if name in CELL_KEYS
        },
    )


def _matrix(matrix: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the lists. Raises ValueError for a value that its key cannot have."""
    for key, values in matrix.items():
        if key not in Settings.model_fields:
            raise ValueError(f"{key!r} is no key of a matrix: {nearest(key, list(Settings.model_fields))}")
        if not values:
            raise ValueError(f"{key} = []: give at least one value, or leave the key out")
        for value in values:
            Settings.model_validate({key: value})
        if len(set(values)) < len(values):
            raise ValueError(f"{key} = {values}: give each value once")
    return matrix


class _MatrixSchema:
    """Gives the matrix the JSON schema of a table with a list for each key of a cell."""

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:  # noqa: ANN401
        properties = {}
        for key, field in Settings.model_json_schema()["properties"].items():
            schema = next(kind for kind in field["anyOf"] if kind["type"] != "null")
            properties[key] = {
                "type": "array",
                "items": schema,
                "minItems": 1,
                "description": field["description"],
            }
        return {"type": "object", "properties": properties, "additionalProperties": False}


class Budget(OptionGroup):
    """The limits at which a sweep gives up."""

    total: Annotated[Text | None, checked(parse_duration_s)] = Field(
        default=None, description='Begin no new block when the trials took so long together: "8h".'
    )
    retries: NotNegative = Field(default=1, description="How often a failed trial is tried again.")

    @property
    def total_s(self) -> float | None:
        """Return the seconds after which no block is begun; None without such a limit."""
        if self.total is None:
            return None
        return parse_duration_s(self.total)


class OutputOptions(OptionGroup):
    """The place of the records."""

    directory: Text | None = Field(default=None, description="Default: results/NAME. --out overrides it.")


class SweepEngine(BaseModel):
    """The backend that runs the blocks. The other keys of the table belong to the engine, which checks them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text = Field(default="local", description="local, slurm, ssh or kubernetes, or that of an installed package.")

    @property
    def table(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


VIEWS = r"^(allocation|scaling|by=[a-z_.]+(,[a-z_.]+)?)$"
"""The views of ``bench compare`` that a plan can name."""


class Sweep(Repetitions):
    """A plan file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = Field(
        description="Name of the sweep and of its directory: small letters, digits, dots and dashes."
    )
    paper: Text | None = Field(default=None, description="Key of the paper that it rebuilds: see bench reproduce.")
    views: tuple[Annotated[str, Field(pattern=VIEWS)], ...] = Field(
        default=(),
        description="What bench reproduce shows after the targets: allocation, scaling, or by=KEY,KEY.",
    )
    targets: Annotated[tuple[Text, ...], Field(min_length=1), OPTIONS["target"]] = ()
    ablate: Annotated[tuple[Text, ...], OPTIONS["ablate"]] = ()
    matrix: Annotated[dict[str, list[Any]], AfterValidator(_matrix), _MatrixSchema()] = Field(
        {}, description="A list for each key; the cells are the product of the lists."
    )
    include: tuple[Settings, ...] = Field(
        default=(), description="Further cells; what is not given comes from options."
    )
    exclude: tuple[Settings, ...] = Field(default=(), description="Cells that have all of these values are left out.")
    options: Settings = Field(
        default=Settings(), description="Values that all cells have, unless the matrix gives another."
    )
    envelope: EnvelopeOptions = Field(
        default=EnvelopeOptions(), description="Envelope of every target, unless a cell has its own."
    )
    budget: Budget = Field(default=Budget(), description="When to give up.")
    output: OutputOptions = Field(default=OutputOptions(), description="Where the records go.")
    engine: SweepEngine = Field(default=SweepEngine(), description="What runs the blocks.")

    @property
    def block_count(self) -> int:
        if self.open_ended:
            return self.max_blocks or MOST_BLOCKS
        return self.blocks or 1


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
    if len(name.parts) == 1 and not name.is_file() and shipped.is_file():
        return shipped
    return name


def shipped_plans() -> list[str]:
    return sorted(path.stem for path in PLANS.glob("*.toml"))


def load_sweep(path: Path) -> Sweep:
    """Return the sweep of a plan file. Raises RequestError for a file that cannot be read, or that is no plan.

    A plan that names other machines, how to reach them, or code to be run, is refused if others may write it.
    """
    remedy = f"name a plan file, or a plan that comes with bench: {', '.join(shipped_plans())}; see {_PAGE}"
    sweep = read_sweep(read_toml(path, str(path), remedy), str(path))
    values = [(key, value) for key, values in sweep.matrix.items() for value in values]
    groups = (sweep.options, *sweep.include)
    values += [pair for settings in groups for pair in settings.given().items()]
    code = any(key == "inventory" or _is_code(key, value) for key, value in values)
    if sweep.engine.kind != "local" or code:
        refuse_writable_by_others(path, "the plan")
    return _located(sweep, path.absolute().parent)


def _is_code(key: str, value: object) -> bool:
    return OPTIONS[key].about.own_code and OPTIONS[key].is_path(value)


def _located(sweep: Sweep, directory: Path) -> Sweep:
    """Return the sweep with the paths of the user's own code taken from the directory of the plan file."""

    def located(key: str, value: object) -> object:
        if _is_code(key, value):
            return OPTIONS[key].located(value, directory)
        return value

    def settings(table: Settings) -> Settings:
        table_located = {key: located(key, value) for key, value in table.given().items()}
        return table.model_copy(update=table_located)

    matrix = {}
    for key, values in sweep.matrix.items():
        matrix[key] = [located(key, value) for value in values]
    included = tuple(map(settings, sweep.include))
    return sweep.model_copy(
        update={
            "matrix": matrix,
            "options": settings(sweep.options),
            "include": included,
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
    keys = []
    for part in first["loc"]:
        if "constrained" not in str(part) and part not in ("int", "str"):
            keys.append(str(part))
    key = ".".join(keys) or "the plan"
    if first["type"] == "extra_forbidden":
        model = _TABLES.get(str(first["loc"][0]), Sweep) if len(first["loc"]) > 1 else Sweep
        return f"unknown key {key}", nearest(str(first["loc"][-1]), list(model.model_fields))
    if first["type"] == "missing":
        return f"{key} is missing", f"add it: {key} = ..."
    wanted = _WANTED.get(first["type"], first["msg"].removeprefix("Value error, ")).format(key=key)
    if key.partition(".0")[0] in _LISTS_OF_TABLES and first["type"] in ("tuple_type", "model_type"):
        wanted = f"give a list of tables: [[{first['loc'][0]}]]"
    value = ""
    if not isinstance(first["input"], (dict, BaseModel)):
        value = f" = {first['input']!r}"
    return f"{key}{value}: {wanted}", f"mend {key}; docs/reference/options.md has every key"
