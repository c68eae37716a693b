"""CIFAR-10 (Krizhevsky 2009), in the pickles of ``cifar-10-python.tar.gz``.

A pickle is a program. These are read with an unpickler that knows three names, of what an array is made of, and has a
stand-in for each, which keeps its arguments and does nothing: nothing that a file asks for is imported or called. It
knows the opcodes that CIFAR-10 has alone: others reserve memory that the file only claims to fill.
"""

import io
import pickle
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from worker.data.kinds.kind import DataKind, DataSetError, DrawnSet, held_out, read_bounded
from worker.data.kinds.pictures import scene
from worker.data.sets import PixelSet

PLACE = "cifar-10-batches-py"
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
META = "batches.meta"
SIDE_PX = 32
LABELS = 10
IMAGE_BYTES = 3 * SIDE_PX * SIDE_PX
_FILES = (*BATCHES, TEST, META)
_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_REMEDY = "unpack cifar-10-python.tar.gz in the directory that you name"
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    AssertionError,
    struct.error,
)
"""What an unpickler raises for bytes that are none of its own."""
_ARRAY_PARTS = (
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
)
"""The module and the name of all that an array is made of."""
_OPCODES = b"\x80.(cRbN\x88\x89" + b"}su]aet\x85\x86\x87" + b"JKMTU" + b"qrhj"
"""Those of protocol 2 as Python 2 wrote it: control and objects, containers, numbers and texts, references."""


class _Opcodes(dict[int, Any]):
    def __missing__(self, opcode: int) -> NoReturn:
        raise pickle.UnpicklingError(f"it has the opcode {opcode:#04x}, which is no part of CIFAR-10")


class _StandIn:
    """Stands for an array, its type or the function that begins one."""

    content: bytes = b""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        """Keep the bytes of an array, which come last in its state."""
        if isinstance(state, tuple) and state and isinstance(state[-1], bytes):
            self.content = state[-1]


class _Inert(pickle._Unpickler):
    """The unpickler that is written in Python: the other one reserves whatever memory a damaged file asks for."""

    handlers = ((code, pickle._Unpickler.dispatch[code]) for code in _OPCODES)
    dispatch = _Opcodes(handlers)

    def find_class(self, module: str, name: str) -> type[_StandIn]:
        if (module, name) not in _ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no part of CIFAR-10")
        return _StandIn


def read_pickle(path: Path) -> dict[Any, Any]:
    """Return the dictionary that a file holds, with texts as bytes. Raises DataSetError for any other file."""
    if not path.is_file():
        raise DataSetError(f"there is no {path}", remedy=_REMEDY)
    try:
        content_bytes = read_bounded(path, _REMEDY)
        reader = _Inert(io.BytesIO(content_bytes), encoding="bytes")
        content = reader.load()
    except _BROKEN as error:
        raise DataSetError(f"{path} is no batch of CIFAR-10: {error}", remedy=_REMEDY) from error
    if not isinstance(content, dict):
        raise DataSetError(f"{path} is no batch of CIFAR-10: it holds no dictionary", remedy=_REMEDY)
    return content


@dataclass(frozen=True, kw_only=True)
class Cifar10(DataKind):
    """Colour images of 32 x 32 pixels."""

    def open(self, root: Path, frame_stride: int) -> PixelSet:  # noqa: ARG002 - no frames
        """Return the training images; the test's are checked, too, since a copy is whole or damaged."""
        directory = root / PLACE
        if not read_pickle(directory / META).get(b"label_names"):
            raise DataSetError(f"{directory / META} names no labels", remedy=_REMEDY)
        _, *parts = (_batch(directory / name) for name in (TEST, *BATCHES))
        labels = np.concatenate([labels for labels, _ in parts])
        planes = np.concatenate([pixels for _, pixels in parts])
        by_pixel = planes.transpose(0, 2, 3, 1)
        return PixelSet(labels, np.ascontiguousarray(by_pixel))

    def paths(self, drawn: DrawnSet) -> list[str]:  # noqa: ARG002
        """Return five batches to train on, of equal size but for one image, one to test with, and the label names."""
        return [f"{PLACE}/{name}" for name in _FILES]

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        images = drawn.images
        name = _FILES[number]
        if name == TEST:
            numbers = range(images, images + held_out(images))
            title = "testing batch 1 of 1"
        else:
            batch = min(number, len(BATCHES) - 1)
            batches = len(BATCHES)
            begin = images * batch // batches
            end = images * (batch + 1) // batches
            numbers = range(begin, end)
            title = f"training batch {batch + 1} of {batches}"
        if name == META:
            names = _list(_text(name) for name in _NAMES)
            return _pickle(num_cases_per_batch=_int(len(numbers)), label_names=names, num_vis=_int(IMAGE_BYTES))
        # Bands of a PIL image are planes, as the rows of the array are: red, then green, then blue.
        scenes = (scene(drawn.seed, image, (SIDE_PX, SIDE_PX)).convert("RGB").split() for image in numbers)
        return _pickle(
            batch_label=_text(title),
            labels=_list(_int(image % LABELS) for image in numbers),
            data=_array(len(numbers), b"".join(band.tobytes() for bands in scenes for band in bands)),
            filenames=_list(_text(f"{_NAMES[image % LABELS]}_s_{image:06d}.png") for image in numbers),
        )

    def file_bytes(self, drawn: DrawnSet) -> int:
        images = drawn.images + held_out(drawn.images)
        return 4096 + images * (IMAGE_BYTES + 32) // len(_FILES)


def _batch(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    batch = read_pickle(path)
    labels = batch.get(b"labels")
    data = getattr(batch.get(b"data"), "content", b"")
    if not isinstance(labels, list) or not all(isinstance(label, int) and 0 <= label < LABELS for label in labels):
        raise DataSetError(f"{path} holds no list of labels from 0 to {LABELS - 1}", remedy=_REMEDY)
    if not labels or len(data) != len(labels) * IMAGE_BYTES:
        pixels = f"{path} holds {len(data)} bytes of pixels, where {len(labels)} labels ask for {IMAGE_BYTES} each"
        raise DataSetError(pixels, remedy=_REMEDY)
    planes = np.frombuffer(data, np.uint8)
    return np.array(labels, np.int64), planes.reshape(-1, 3, SIDE_PX, SIDE_PX)


CIFAR10 = Cifar10(
    name="cifar10",
    image_px=SIDE_PX,
    can_be_generated=True,
    least_images=len(BATCHES),
)


# What follows writes the opcodes of pickletools: Python 3 has no way to write the texts of Python 2, which are bytes.


def _pickle(**items: bytes) -> bytes:
    items_written = (_text(key) + value for key, value in items.items())
    return b"\x80\x02}(" + b"".join(items_written) + b"u."


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode("ascii")


def _int(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _list(items: Iterable[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def _array(rows: int, content: bytes) -> bytes:
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * _int(-1) + b"K\x00tb"
    begun = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = _int(rows) + _int(IMAGE_BYTES) + b"\x86"
    size = struct.pack("<i", len(content))
    return begun + b"(K\x01" + shape + kind + b"\x89T" + size + content + b"tb"
