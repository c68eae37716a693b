"""CelebA (Liu et al. 2015): its aligned images of 178 x 218 pixels, and the list that parts them for training and test.

The labels of all images are 0: faces have attributes, and no class.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from worker.data.kinds.kind import DataKind, DataSetError, DrawnSet, held_out, read_list
from worker.data.kinds.pictures import jpeg, scene
from worker.data.sets import FileSet

IMAGES = "img_align_celeba"
LIST = "list_eval_partition.txt"
TRAINING = 0
"""The part to train on; 1 is the validation's, and 2 the test's."""
_SIZE_PX = (178, 218)
_LINE = re.compile(r"([^/.\s][^/\s]*) ([012])")
_REMEDY = f"name the directory that holds {IMAGES}/ (unpacked from {IMAGES}.zip) and {LIST}, both whole"


@dataclass(frozen=True, kw_only=True)
class CelebA(DataKind):
    """Faces, of which the list names those to train on."""

    def open(self, root: Path, frame_stride: int) -> FileSet:  # noqa: ARG002 - no frames
        """Return the images of the training part. Raises DataSetError where one of any part is missing."""
        partition = root / LIST
        if not partition.is_file() or not (root / IMAGES).is_dir():
            raise DataSetError(f"{root} lacks {IMAGES}/ or {LIST}", remedy=_REMEDY)
        rows = read_list(partition, _LINE.fullmatch, "NAME 0, 1 or 2", _REMEDY)
        parts = {line[1]: int(line[2]) for line in rows}
        missing = parts.keys() - set(os.listdir(root / IMAGES))
        if missing:
            lacking = f"{partition} names {len(missing)} images that {IMAGES}/ does not hold, such as {min(missing)}"
            raise DataSetError(lacking, remedy=_REMEDY)
        names = []
        for name, part in parts.items():
            if part == TRAINING:
                names.append(f"{IMAGES}/{name}".encode())
        if not names:
            raise DataSetError(f"{partition} names no image to train on: none is in part {TRAINING}", remedy=_REMEDY)
        return FileSet.of(root, names, [0] * len(names))

    def paths(self, drawn: DrawnSet) -> list[str]:
        """Return the images in the order of the parts, as in the original, and then the list."""
        total = drawn.images + 2 * held_out(drawn.images)
        return [*(f"{IMAGES}/{_name(number)}" for number in range(total)), LIST]

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        tested = held_out(drawn.images)
        counts = (drawn.images, tested, tested)
        if number < sum(counts):
            return jpeg(scene(drawn.seed, number, _SIZE_PX))
        parts = (part for part, count in enumerate(counts) for _ in range(count))
        return "".join(f"{_name(image)} {part}\n" for image, part in enumerate(parts)).encode()

    def file_bytes(self, drawn: DrawnSet) -> int:  # noqa: ARG002
        return 24_000


def _name(number: int) -> str:
    return f"{number + 1:06d}.jpg"


CELEBA = CelebA(name="celeba", can_be_generated=True)
