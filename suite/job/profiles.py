"""Profiles: how large and how long a job is. Every number of one can be overridden on the command line."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from suite.errors import RequestError, option
from suite.job.envelope import GIB

Positive = Annotated[int, Field(gt=0)]
Recipe = Literal["reference", "tuned"]
MODELS = ("inception_v3", "resnet50", "alexnet")
# Below these the convolutions of a model leave nothing of the image.
SMALLEST_IMAGE_PX = {"inception_v3": 75, "resnet50": 32, "alexnet": 63}


class Sizes(BaseModel):
    """One training job: the numbers the worker is given. Sizes in pixels, batch per device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: Positive
    image_px: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    steps: Positive


class Profile(BaseModel):
    """A named set of workloads, one per model, and what they need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    workloads: dict[str, Sizes]
    memory_bytes: Positive
    trial_timeout_s: Positive


def _profile(
    name: str,
    summary: str,
    sizes: dict[str, tuple[int, int]],
    *,
    warmup_steps: int,
    steps: int,
    memory_gib: int,
    trial_timeout_s: int,
) -> Profile:
    workloads = {
        model: Sizes(batch=batch, image_px=px, warmup_steps=warmup_steps, steps=steps)
        for model, (batch, px) in sizes.items()
    }
    return Profile(
        name=name,
        summary=summary,
        workloads=workloads,
        memory_bytes=memory_gib * GIB,
        trial_timeout_s=trial_timeout_s,
    )


PROFILES = {
    profile.name: profile
    for profile in (
        _profile(
            "paper",
            "Table 1 of Lin, Pai and Chou (2018): full image sizes, 10 warm-up and 100 measured steps",
            {"inception_v3": (32, 299), "resnet50": (32, 224), "alexnet": (512, 224)},
            warmup_steps=10,
            steps=100,
            memory_gib=8,
            trial_timeout_s=6 * 3600,
        ),
        _profile(
            "quick",
            "small images, minutes for the whole matrix on a laptop CPU under KVM",
            {"inception_v3": (8, 75), "resnet50": (8, 64), "alexnet": (8, 64)},
            warmup_steps=3,
            steps=20,
            memory_gib=3,
            trial_timeout_s=1800,
        ),
        _profile(
            "smoke",
            "proves the path, even where the CPU of the VM is emulated; its throughput means little",
            {"inception_v3": (2, 75), "resnet50": (2, 32), "alexnet": (2, 64)},
            warmup_steps=1,
            steps=2,
            memory_gib=2,
            trial_timeout_s=600,
        ),
    )
}


def make_workload(profile: Profile, model: str, changed: dict[str, int]) -> Sizes:
    """The workload of a model with some of its numbers replaced. Raises RequestError on one that cannot be."""
    workload = profile.workloads[model].model_copy(update=changed)
    least = SMALLEST_IMAGE_PX[model]
    if workload.image_px < least:
        raise RequestError(
            f"{model} cannot take images of {workload.image_px} px",
            remedy=f"give {option('image_px')} {least} or more",
        )
    return workload


def get_profile(name: str) -> Profile:
    """Raises RequestError with the known names."""
    if name not in PROFILES:
        raise RequestError(f"no profile {name!r}", remedy=f"choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
