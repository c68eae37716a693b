"""CIFAR-10's batches: pickles of protocol 2, as the Python 2 of its authors wrote them."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from scenarios.datasets.formats.format import SetFormat, held_out
from scenarios.datasets.manifest import SetPlan
from scenarios.datasets.pictures import scene
from worker.data.kinds.cifar10 import BATCHES, IMAGE_BYTES, LABELS, META, PLACE, SIDE_PX, TEST

_FILES = (*BATCHES, TEST, META)
_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, kw_only=True)
class Cifar10Format(SetFormat):
    """Five batches to train on, of equal size but for one image, one to test with, and the names of the labels."""

    def files(self, plan: SetPlan) -> int:  # noqa: ARG002
        return len(_FILES)

    def path(self, plan: SetPlan, index: int) -> str:  # noqa: ARG002
        return f"{PLACE}/{_FILES[index]}"

    def content(self, plan: SetPlan, index: int) -> bytes:
        numbers = self._numbers(plan, index)
        if _FILES[index] == META:
            names = _list(_text(name) for name in _NAMES)
            return _pickle(num_cases_per_batch=_int(len(numbers)), label_names=names, num_vis=_int(IMAGE_BYTES))
        batch = "testing batch 1 of 1" if _FILES[index] == TEST else f"training batch {index + 1} of {len(BATCHES)}"
        # Bands of a PIL image are planes, as the rows of the array are: red, then green, then blue.
        images = (scene(plan.seed, number, (SIDE_PX, SIDE_PX)).convert("RGB").split() for number in numbers)
        return _pickle(
            batch_label=_text(batch),
            labels=_list(_int(number % LABELS) for number in numbers),
            data=_array(len(numbers), b"".join(band.tobytes() for bands in images for band in bands)),
            filenames=_list(_text(f"{_NAMES[number % LABELS]}_s_{number:06d}.png") for number in numbers),
        )

    def _numbers(self, plan: SetPlan, index: int) -> range:
        if _FILES[index] == TEST:
            return range(plan.images, plan.images + held_out(plan.images))
        batches = len(BATCHES)
        place = min(index, batches - 1)
        return range(plan.images * place // batches, plan.images * (place + 1) // batches)

    def file_bytes(self, plan: SetPlan) -> int:
        return 4096 + (plan.images + held_out(plan.images)) * (IMAGE_BYTES + 32) // len(_FILES)


CIFAR10 = Cifar10Format(least_images=len(BATCHES))


# What follows writes the opcodes of pickletools: Python 3 has no way to write the texts of Python 2, which are bytes.


def _pickle(**items: bytes) -> bytes:
    return b"\x80\x02}(" + b"".join(_text(key) + value for key, value in items.items()) + b"u."


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode("ascii")


def _int(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _list(items: Iterable[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def _array(rows: int, content: bytes) -> bytes:
    """Return an array of unsigned bytes, one row for each image."""
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * _int(-1) + b"K\x00tb"
    begun = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = _int(rows) + _int(IMAGE_BYTES) + b"\x86"
    return begun + b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"
