"""The plan file of a sweep, as a model: every key with its meaning. Read from TOML by ``suite.sweep.file``."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from suite.errors import RequestError
from suite.job.envelope import parse_bytes
from suite.suggest import nearest
from suite.units import parse_duration_s, parse_share

Count = Annotated[int, Field(gt=0, strict=True)]
NotNegative = Annotated[int, Field(ge=0, strict=True)]
Text = Annotated[str, Field(min_length=1)]
MOST_BLOCKS = 100
"""With ``until``, as ``bench run`` has it."""


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(Part):
    """One value for each key that a cell can have: the options of ``bench run`` of the same names."""

    scenario: Text | None = Field(default=None, description="What is run: synthetic, real, probe, distributed, shared.")
    model: Text | None = Field(default=None, description="inception_v3, resnet50 or alexnet. Not of probes.")
    probe: Text | None = Field(
        default=None, description="Of the scenario probe: disk, memory, network, cpu, syscall, startup."
    )
    data: Text | None = Field(
        default=None, description="synthetic, generated[:DIR], imagenet:DIR and so on. Not of probes."
    )
    data_disk: Text | None = Field(default=None, description="Block device that holds the data set: /dev/sdb.")
    cache: Text | None = Field(default=None, description="Page cache of the data set: cold or warm.")
    recipe: Text | None = Field(default=None, description="reference or tuned.")
    profile: Text | None = Field(default=None, description="paper, quick or smoke.")
    strategy: Text | None = Field(
        default=None, description="Of a distributed job: parameter-server, parameter-server-async or all-reduce."
    )
    workers: Count | None = Field(default=None, description="Of a distributed job.")
    ps: Count | None = Field(default=None, description="Parameter servers of a distributed job.")
    lab: Text | None = Field(default=None, description="Virtual nodes of a distributed job: nodes=3,rate=1gbit.")
    inventory: Text | None = Field(default=None, description="Machines of a distributed job: a hosts.toml.")
    network: Text | None = Field(default=None, description="Of containers in a lab: overlay, bridge or host.")
    comm_timeout: Count | None = Field(default=None, description="Seconds after which a silent rank is given up.")
    aggressor: Text | None = Field(default=None, description="Of the scenario shared: what the neighbours do.")
    aggressors: Count | None = Field(default=None, description="Of the scenario shared: how many neighbours.")
    aggressor_batch: Count | None = Field(default=None, description="Of neighbours that train: images per step.")
    bare_metal_cpus: Text | None = Field(default=None, description="Of the scenario shared: unrestricted or equal.")
    engine: Text | None = Field(default=None, description="Of containers: docker, podman or runc.")
    accel: Text | None = Field(default=None, description="Of virtual machines: auto, kvm or tcg.")
    isa: Text | None = Field(default=None, description="Vector instructions: shared or native.")
    loader_workers: NotNegative | None = Field(default=None, description="Processes that read and decode images.")
    decoder: Text | None = Field(default=None, description="Of JPEG files: auto, simplejpeg or pillow.")
    fio_job: Text | None = Field(default=None, description="Of the disk probe: a job file of fio's.")
    batch: Count | None = Field(default=None, description="Images per step and device.")
    image_px: Count | None = Field(default=None, description="Width and height of the images.")
    steps: Count | None = Field(default=None, description="Measured steps.")
    warmup_steps: NotNegative | None = Field(default=None, description="Steps before them.")
    trial_timeout: Count | None = Field(default=None, description="Seconds after which a job is given up.")
    device: Text | None = Field(default=None, description="cpu or cuda.")
    devices: Count | None = Field(default=None, description="GPUs of one job.")
    parallel: Text | None = Field(default=None, description="Several devices: none, parameter-cpu or ddp.")
    gpus: Text | None = Field(default=None, description="GPUs for bare metal and containers, by index: 0,1.")
    vfio: Text | None = Field(default=None, description="GPUs for virtual machines, by PCI address.")

    def given(self) -> dict[str, Any]:
        """The keys that have a value, in the order above."""
        return self.model_dump(exclude_none=True)


def _matrix(given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Every value of every list is one that the key can have."""
    for key, values in given.items():
        if key not in Settings.model_fields:
            raise ValueError(f"{key!r} is no key of a matrix: {nearest(key, list(Settings.model_fields))}")
        if not values:
            raise ValueError(f"{key} = []: give at least one value, or leave the key out")
        for value in values:
            Settings.model_validate({key: value})
        if len(set(values)) < len(values):
            raise ValueError(f"{key} = {values}: give each value once")
    return given


def _matrix_schema() -> dict[str, Any]:
    properties = {}
    for key, field in Settings.model_json_schema()["properties"].items():
        one = next(kind for kind in field["anyOf"] if kind["type"] != "null")
        properties[key] = {"type": "array", "items": one, "minItems": 1, "description": field["description"]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


class EnvelopeRequest(Part):
    """What every target gets alike."""

    cpus: Count | Text | None = Field(
        default=None, description='How many (2), or which ("0-1,4"). Default: all allowed.'
    )
    memory: Text | None = Field(default=None, description='Such as "4G". Default: the profile\'s.')
    threads: Count | None = Field(default=None, description="Of the training. Default: one per CPU.")

    @field_validator("memory")
    @classmethod
    def _an_amount(cls, memory: str | None) -> str | None:
        _sayable(parse_bytes, memory)
        return memory


class Budget(Part):
    """When to give up."""

    total: Text | None = Field(
        default=None, description='Begin no new block when the trials took so long together: "8h".'
    )
    retries: NotNegative = Field(default=1, description="How often a failed trial is tried again.")

    @field_validator("total")
    @classmethod
    def _a_span(cls, total: str | None) -> str | None:
        _sayable(parse_duration_s, total)
        return total

    @property
    def total_s(self) -> float | None:
        return None if self.total is None else parse_duration_s(self.total)


class Output(Part):
    """Where the records go."""

    directory: Text | None = Field(default=None, description="Default: results/NAME. --out overrides it.")


class Engine(BaseModel):
    """Who runs the blocks. The other keys of the table belong to the engine, which checks them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Text = Field(default="local", description="local, slurm or ssh, or that of an installed package.")

    @property
    def table(self) -> dict[str, Any]:
        """What the engine's own model validates."""
        return dict(self.__pydantic_extra__ or {})


class Sweep(Part):
    """A plan file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")] = Field(
        description="Of the sweep and of its directory: small letters, digits, dots and dashes."
    )
    targets: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default=("all",),
        description="bare-metal, container, vm, container-vm, or all. A block holds every one of them.",
    )
    ablate: tuple[Text, ...] = Field(
        default=(), description="Properties to switch one at a time in every block; or all."
    )
    matrix: Annotated[dict[str, list[Any]], AfterValidator(_matrix), WithJsonSchema(_matrix_schema())] = Field(
        {}, description="A list for each key; the cells are the product of the lists."
    )
    include: tuple[Settings, ...] = Field(
        default=(), description="Further cells; what is not given comes from options."
    )
    exclude: tuple[Settings, ...] = Field(default=(), description="Cells that have all of these values are left out.")
    options: Settings = Field(
        default=Settings(), description="Values that all cells have, unless the matrix gives another."
    )
    blocks: Count | None = Field(default=None, description="How many times every cell is measured. Default: 1.")
    until: Text | None = Field(default=None, description='Go on until every 95 % interval is within this: "2%".')
    min_blocks: Count | None = Field(default=None, description="With until: at least so many.")
    max_blocks: Count | None = Field(default=None, description=f"With until: at most so many. Default: {MOST_BLOCKS}.")
    warmup_blocks: NotNegative | None = Field(default=None, description="Blocks before the first that are not counted.")
    aa: bool = Field(default=False, strict=True, description="Measure bare metal twice in every block.")
    seed: NotNegative = Field(default=0, description="Of the order and of the data.")
    envelope: EnvelopeRequest = Field(default=EnvelopeRequest(), description="What every target gets alike.")
    budget: Budget = Field(default=Budget(), description="When to give up.")
    output: Output = Field(default=Output(), description="Where the records go.")
    engine: Engine = Field(default=Engine(), description="Who runs the blocks.")

    @field_validator("until")
    @classmethod
    def _a_share(cls, until: str | None) -> str | None:
        _sayable(parse_share, until)
        return until

    @model_validator(mode="after")
    def _one_way_to_end(self) -> Self:
        if self.until and self.blocks:
            raise ValueError("until and blocks exclude each other: use max_blocks with until")
        if not self.until and (self.min_blocks or self.max_blocks):
            raise ValueError("min_blocks and max_blocks are about until: give until, or blocks alone")
        if (self.min_blocks or 1) > self.element_count and self.until:
            raise ValueError(f"min_blocks {self.min_blocks} is above max_blocks {self.element_count}")
        return self

    @property
    def element_count(self) -> int:
        """How many blocks there are at most; an element is one block of all cells."""
        return self.max_blocks or MOST_BLOCKS if self.until else self.blocks or 1


def _sayable(parse: Any, text: str | None) -> None:  # noqa: ANN401 (a parser of any kind)
    """What a parser refuses, as pydantic wants to hear it."""
    try:
        if text is not None:
            parse(text)
    except RequestError as error:
        raise ValueError(f"{error.message}; {error.remedy}") from error
