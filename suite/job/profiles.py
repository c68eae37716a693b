"""Profiles: how long a job is, and what it may take. A workload declares its own sizes for each profile.

Every number can be overridden on the command line.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from suite.errors import RequestError, option
from suite.job.envelope import GIB
from suite.part import MOST, Part
from suite.registries import WORKLOADS

Positive = Annotated[int, Field(gt=0)]
_Counted = Annotated[int, Field(gt=0, le=MOST)]
Recipe = Literal["reference", "tuned"]
MOST_STEPS = 100_000
"""The most measured steps: the worker says them in one line, whose length is bounded."""


class Sizes(Part):
    """One training job: the numbers the worker is given. Sizes in pixels, batch per device in the workload's unit."""

    batch: _Counted
    image_px: _Counted | None = None
    """None for a workload that has no images."""
    channels: Literal[1, 3] | None = None
    """None for a workload that takes colour images and no others."""
    warmup_steps: Annotated[int, Field(ge=0, le=MOST)]
    steps: Annotated[int, Field(gt=0, le=MOST_STEPS)]
    epochs: _Counted | None = None
    """The whole epochs that the steps are; None for a number of steps."""


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

    def sizes_of(self, workload: str) -> Sizes:
        """Return the sizes of a workload. Raises RequestError for an unknown one, or one that has none here."""
        declared: Mapping[str, tuple[int, int] | int] = WORKLOADS.get(workload).sizes
        if self.name not in declared:
            raise RequestError(
                f"the workload {workload} has no sizes for the profile {self.name}",
                remedy=f"use {option('profile')} {' or '.join(declared)}",
            )
        size = declared[self.name]
        batch, image_px = (size, None) if isinstance(size, int) else size
        return Sizes(
            batch=batch,
            image_px=image_px,
            channels=WORKLOADS.get(workload).channels,
            warmup_steps=self.warmup_steps,
            steps=self.steps,
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
            name="quick",
            summary="small images, minutes for the whole matrix on a laptop CPU under KVM",
            warmup_steps=3,
            steps=20,
            memory_bytes=3 * GIB,
            trial_timeout_s=1800,
        ),
        Profile(
            name="smoke",
            summary="proves the path, even where the CPU of the VM is emulated; its throughput means little",
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
    if sizes.image_px and not declared.has_images:
        raise RequestError(
            f"{called} has no images, and no {option('image_px')}",
            remedy=f"leave out {option('image_px')} {sizes.image_px}",
        )
    least: int = declared.least_batch(sizes.image_px)
    if sizes.batch < least:
        at = f" at {sizes.image_px} px" if sizes.image_px else ""
        raise RequestError(
            f"{called} cannot train on batches of {sizes.batch}{at}, of which it takes statistics",
            remedy=f"give {option('batch')} {least} or more",
        )
    if sizes.image_px and (wanted := declared.size_wanted(sizes.image_px)):
        raise RequestError(
            f"{called} cannot take images of {sizes.image_px} px", remedy=f"give {option('image_px')} {wanted}"
        )
    if sizes.channels and not declared.channels:
        raise RequestError(
            f"{called} takes colour images alone, and no {option('channels')}",
            remedy=f"leave out {option('channels')} {sizes.channels}",
        )
