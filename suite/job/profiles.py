"""Profiles: how long a job is, and what it may take. A workload declares its own sizes for each profile.

Every number can be overridden on the command line.
"""

from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError, option
from suite.job.envelope import GIB
from suite.part import MOST, Part
from suite.registries import WORKLOADS

Positive = Annotated[int, Field(gt=0)]
_Counted = Annotated[int, Field(gt=0, le=MOST)]
Recipe = Literal["reference", "tuned"]
EXTENTS = {"image_px": ("images", "images of {} px"), "tokens": ("sequences", "sequences of {} tokens")}
"""The names of extents, each with what has it."""
CUDA_MEMORY_BYTES = 8 * GIB
"""The least memory of a job on a GPU: torch's libraries, pinned batches and the compiler's processes need it."""
MOST_STEPS = 100_000
"""The most measured steps: the worker says them in one line, whose length is bounded."""


class Sizes(Part):
    """One training job: the numbers the worker is given. The batch is per device, in the workload's unit."""

    batch: _Counted
    image_px: _Counted | None = None
    """None for a workload that has no images."""
    channels: Literal[1, 3] | None = None
    """None for a workload that takes colour images and no others."""
    tokens: _Counted | None = None
    """The length of the sequences; None for a workload that has none."""
    depth: _Counted | None = None
    """The depth of the network; None for a workload that has the same in every profile."""
    warmup_steps: Annotated[int, Field(ge=0, le=MOST)]
    steps: Annotated[int, Field(gt=0, le=MOST_STEPS)]
    epochs: _Counted | None = None
    """The whole epochs that the steps are, of drawn data each up to a checkpoint; None for a number of steps."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """The learning rate of all optimizers; None for those of the workload."""
    settle_s: Annotated[float, Field(gt=0)] | None = None
    """The least seconds of a training before this one, on drawn data and forgotten, which lasts until its steps are
    level. It is none of the warm-up steps: all targets take the same steps. None for none."""
    least_s: Annotated[float, Field(gt=0)] | None = None
    """The least seconds that the measured steps take; None for any time. The first trial of a job that has settled
    takes as many steps as last it, and so do all others, whose sizes no longer have it: equal work. A shorter trial of
    epochs, or of blocks that machines share, fails."""

    def fixed(self, steps: object) -> "Sizes":
        """Return the sizes with the number of steps that is fixed for all trials. Raises ValidationError for none."""
        return Sizes.model_validate({**self.model_dump(), "steps": steps, "least_s": None})


class Profile(Part):
    """The steps that a job takes, and the memory and the time that it may take."""

    name: str
    summary: str
    warmup_steps: Annotated[int, Field(ge=0)]
    steps: Positive
    memory_bytes: Positive
    trial_timeout_s: Positive
    decides: bool = True
    """Whether its trials are long enough for a verdict."""
    of: str = ""
    """The profile whose sizes of workloads it has; empty for its own."""
    settle_s: float | None = None
    least_s: float | None = None
    """See ``Sizes``; both are for one instance with GPUs."""

    def memory_for(self, device: str) -> int:
        """Return the bytes that a job may take of the host's memory: libraries of CUDA take some by themselves."""
        return max(self.memory_bytes, CUDA_MEMORY_BYTES) if device == "cuda" else self.memory_bytes

    def sizes_of(self, workload: str) -> Sizes:
        """Return the sizes of a workload. Raises RequestError for an unknown one, or one that has none here."""
        declared = WORKLOADS.get(workload)
        name = self.of or self.name
        if name not in declared.sizes:
            raise RequestError(
                f"the workload {workload} has no sizes for the profile {self.name}",
                remedy=f"use {option('profile')} {' or '.join(declared.sizes)}",
            )
        size = declared.sizes[name]
        batch, extent = (size, None) if isinstance(size, int) else size
        return Sizes(
            batch=batch,
            **{declared.extent: extent},
            channels=declared.channels,
            depth=declared.depth.get(name),
            warmup_steps=self.warmup_steps,
            steps=self.steps,
            settle_s=self.settle_s,
            least_s=self.least_s,
        )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="paper",
            summary="Table 1 of Lin, Pai and Chou (2018): full image sizes, 10 warm-up and 100 measured steps",
            warmup_steps=10,
            steps=100,
            memory_bytes=8 * GIB,
            trial_timeout_s=6 * 3600,
        ),
        Profile(
            name="gpu",
            summary="the sizes of paper, on a GPU that first trains until 5 s have passed and its steps are level; "
            "1000 measured steps, or as many as take 20 s in the first trial",
            warmup_steps=10,
            steps=1000,
            memory_bytes=16 * GIB,
            trial_timeout_s=6 * 3600,
            of="paper",
            settle_s=5.0,
            least_s=20.0,
        ),
        Profile(
            name="quick",
            summary="small images, minutes for the whole matrix on a laptop CPU under KVM",
            warmup_steps=3,
            steps=20,
            memory_bytes=3 * GIB,
            trial_timeout_s=1800,
        ),
        Profile(
            name="smoke",
            summary="shows that everything works, even if the CPU of the VM is emulated; no measurement",
            warmup_steps=1,
            steps=2,
            memory_bytes=2 * GIB,
            trial_timeout_s=600,
            decides=False,
        ),
    )
}


def check_sizes(workload: str, sizes: Sizes, called: str) -> None:
    """Raise RequestError, about the job ``called`` so, for sizes that the layers of the workload cannot take."""
    declared = WORKLOADS.get(workload)
    for name, (meaning, size) in EXTENTS.items():
        value = getattr(sizes, name)
        if value and not declared.has(name):
            remedy = f"leave out {option(name)} {value}"
            raise RequestError(f"{called} has no {meaning}, and no {option(name)}", remedy=remedy)
        if value and (wanted := declared.size_wanted(value)):
            raise RequestError(f"{called} cannot take {size.format(value)}", remedy=f"give {option(name)} {wanted}")
    if sizes.tokens and sizes.batch % sizes.tokens:
        raise RequestError(
            f"{called} cannot make a batch of {sizes.batch} tokens from sequences of {sizes.tokens}",
            remedy=f"give {option('batch')} a multiple of {sizes.tokens}, or another {option('tokens')}",
        )
    least: int = declared.least_batch(sizes.image_px)
    if sizes.batch < least:
        at = ""
        if sizes.image_px:
            at = f" at {sizes.image_px} px"
        raise RequestError(
            f"{called} cannot train on batches of {sizes.batch}{at}, of which it takes statistics",
            remedy=f"give {option('batch')} {least} or more",
        )
    if sizes.channels and not declared.channels:
        remedy = f"leave out {option('channels')} {sizes.channels}"
        raise RequestError(f"{called} takes colour images alone, and no {option('channels')}", remedy=remedy)
