"""CelebA's aligned images, and the list that parts them into training, validation and test."""

from dataclasses import dataclass

from scenarios.datasets.formats.format import SetFormat, held_out
from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import jpeg, scene
from worker.data.kinds.celeba import IMAGES, LIST

_SIZE_PX = (178, 218)


@dataclass(frozen=True, kw_only=True)
class CelebAFormat(SetFormat):
    """The images in the order of the parts, as in the original, and then the list."""

    def files(self, plan: SetPlan) -> int:
        return plan.images + 2 * held_out(plan.images) + 1

    def path(self, plan: SetPlan, index: int) -> str:
        return LIST if index == self.files(plan) - 1 else f"{IMAGES}/{_name(index)}"

    def content(self, plan: SetPlan, index: int) -> bytes:
        images = self.files(plan) - 1
        if index < images:
            return jpeg(scene(plan.seed, index, _SIZE_PX))
        first, each = plan.images, held_out(plan.images)
        parts = (0 if number < first else 1 if number < first + each else 2 for number in range(images))
        return "".join(f"{_name(number)} {part}\n" for number, part in enumerate(parts)).encode()

    def file_bytes(self, plan: SetPlan) -> int:  # noqa: ARG002
        return 24_000


def _name(number: int) -> str:
    return f"{number + 1:06d}.jpg"


CELEBA = CelebAFormat()
