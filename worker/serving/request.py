"""The requests to a server and a load generator, checked as ``worker.spec`` checks a training."""

from dataclasses import dataclass
from typing import Annotated, Literal

from worker.errors import SpecError
from worker.members import Plugin, load_member
from worker.workloads.workload import Shape, Workload


@dataclass(frozen=True)
class ServeSpec:
    """One generator behind HTTP. ``dataset`` and ``model`` are the names by which requests ask for it."""

    workload: str
    """Where the workload is declared: ``module:attribute``."""
    dataset: str
    model: str
    image_px: Annotated[int, 1]
    channels: Annotated[int, 1]
    threads: Annotated[int, 1]
    seed: Annotated[int, 0]
    device: Literal["cpu", "cuda"]
    address: str
    port: Annotated[int, 1]
    model_file: str | None = None
    """The file of the trained network; None for weights that are drawn from the seed."""
    plugin: Plugin | None = None
    """The workload's module, where it is not part of the image."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the images."""
        return Shape(self.image_px, self.channels)

    def load_workload(self) -> Workload:
        """Return the workload's declaration. Raises SpecError where there is none that generates."""
        workload = load_member("workload", self.workload, self.plugin, Workload)
        if not workload.generates:
            raise SpecError(f"workload is {self.workload}, which makes no images")
        return workload


@dataclass(frozen=True)
class LoadRequest:
    """The load that a server is given."""

    address: str
    port: Annotated[int, 1]
    body: str
    """What each request sends."""
    requests: Annotated[int, 1]
    """The requests of each part of the measurement."""
    clients: Annotated[int, 1]
    """The connections at saturation, and at a rate the most that are open."""
    rates: list[float]
    """Requests per second."""
    seed: Annotated[int, 0]
    timeout_s: Annotated[int, 1]
    """How long an answer may take."""
    patience_s: Annotated[int, 1]
    """How long the first may."""
    threads: Annotated[int, 1]
