"""The plan file of a sweep, as a model: every key with its meaning. Read from TOML by ``suite.sweep.file``.

Keys that are options of a run are declared in ``suite.request.parts``.
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.json_schema import JsonSchemaValue

from suite.errors import flag, nearest
from suite.part import checked
from suite.request.option import NotNegative, OptionGroup, Text
from suite.request.parts import EnvelopeOptions
from suite.request.repetitions import MOST_BLOCKS, Repetitions
from suite.request.request import OPTIONS
from suite.units import parse_duration_s

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
            properties[key] = {"type": "array", "items": schema, "minItems": 1, "description": field["description"]}
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
        return None if self.total is None else parse_duration_s(self.total)


class OutputOptions(OptionGroup):
    """The place of the records."""

    directory: Text | None = Field(default=None, description="Default: results/NAME. --out overrides it.")


class SweepEngine(BaseModel):
    """The backend that runs the blocks. The other keys of the table belong to the engine, which checks them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text = Field(default="local", description="local, slurm, ssh or kubernetes, or that of an installed package.")

    @property
    def table(self) -> dict[str, Any]:
        """Return the keys that the engine's own model validates."""
        return dict(self.__pydantic_extra__ or {})


class Sweep(Repetitions):
    """A plan file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = Field(
        description="Name of the sweep and of its directory: small letters, digits, dots and dashes."
    )
    paper: Text | None = Field(default=None, description="Key of the paper that it rebuilds: see bench reproduce.")
    targets: Annotated[tuple[Text, ...], Field(min_length=1), OPTIONS["target"]] = ("all",)
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
        return self.max_blocks or MOST_BLOCKS if self.open_ended else self.blocks or 1
