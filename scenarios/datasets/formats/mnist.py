"""MNIST's four idx files."""

from dataclasses import dataclass

from scenarios.datasets.formats.format import SetFormat, held_out
from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import scene
from worker.data.kinds.mnist import LABELS, PLACE, SIDE_PX, idx_header

_PARTS = ("train", "t10k")
_CONTENTS = ("images-idx3", "labels-idx1")


@dataclass(frozen=True, kw_only=True)
class MnistFormat(SetFormat):
    """Images and labels of the training, then those of the test."""

    def files(self, plan: SetPlan) -> int:  # noqa: ARG002
        return len(_PARTS) * len(_CONTENTS)

    def path(self, plan: SetPlan, index: int) -> str:  # noqa: ARG002
        return f"{PLACE}/{_PARTS[index // 2]}-{_CONTENTS[index % 2]}-ubyte"

    def content(self, plan: SetPlan, index: int) -> bytes:
        first, count = (plan.images, held_out(plan.images)) if index // 2 else (0, plan.images)
        numbers = range(first, first + count)
        if index % 2:
            return idx_header((count,)) + bytes(number % LABELS for number in numbers)
        pixels = (scene(plan.seed, number, (SIDE_PX, SIDE_PX)).convert("L").tobytes() for number in numbers)
        return idx_header((count, SIDE_PX, SIDE_PX)) + b"".join(pixels)

    def file_bytes(self, plan: SetPlan) -> int:
        return 4096 + (plan.images + held_out(plan.images)) * (SIDE_PX * SIDE_PX + 1) // 4


MNIST = MnistFormat()
