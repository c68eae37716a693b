"""MNIST (LeCun, Cortes and Burges), in its four idx files, where torchvision keeps them, packed or not."""

import gzip
import io
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from worker.data.kinds.kind import MOST_BYTES, DataKind, DataSetError, DrawnSet, held_out, read_bounded
from worker.data.sets import PixelSet

PLACE = "MNIST/raw"
SIDE_PX = 28
LABELS = 10
_PARTS = ("train", "t10k")
_STROKES = (
    "10 01 03 14 23 21 10",
    "01 10 14",
    "01 10 21 22 04 24",
    "00 20 12 23 14 03",
    "10 03 23 21 24",
    "20 00 02 12 23 14 04",
    "20 01 03 14 23 12 03",
    "00 20 14",
    "12 01 10 21 12 03 14 23 12",
    "23 21 10 01 12 21 24",
)
"""The corners of the digits 0 to 9, as columns and rows of a grid of 3 x 5."""
_FINER = 4
"""Of the canvas on which a digit is drawn, against the jags of its edges."""
_GZIP = b"\x1f\x8b"
_REMEDY = "put the four files, packed or unpacked (gunzip), into MNIST/raw below the directory that you name"


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an idx file of unsigned bytes: two zeros, type 8, dimensions, and the size of each."""
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


def read_idx(path: Path, *sides: int) -> np.ndarray[Any, Any]:
    """Return the bytes of an idx file of elements with ``sides``. Raises DataSetError where it is something else.

    The file may have a dot in place of the last dash but one, in other archives, and be packed.
    """
    dotted_name = path.name.replace("-idx", ".idx")
    dotted = path.with_name(dotted_name)
    candidates = []
    for suffix in ("", ".gz"):
        for file in (path, dotted):
            candidate = file.with_name(file.name + suffix)
            candidates.append(candidate)
    path = next(filter(Path.is_file, candidates), path)
    if not path.is_file():
        raise DataSetError(f"there is no {path}", remedy=_REMEDY)
    content = read_bounded(path, _REMEDY)
    if content.startswith(_GZIP):
        try:
            unpacked = gzip.GzipFile(fileobj=io.BytesIO(content))
            content = unpacked.read(MOST_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DataSetError(f"{path} cannot be unpacked (gunzip): {error}", remedy=_REMEDY) from error
    count = 0
    if len(content) >= 8:
        (count,) = struct.unpack(">I", content[4:8])
    header = idx_header((count, *sides))
    if not content.startswith(header):
        dimensions = map(str, ("N", *sides))
        shape = " x ".join(dimensions)
        raise DataSetError(f"{path} does not begin as an idx file of {shape} bytes does", remedy=_REMEDY)
    expected_bytes = count * math.prod(sides)
    body_bytes = len(content) - len(header)
    if not count or body_bytes != expected_bytes:
        follow = f"{body_bytes} bytes follow the header of {path}, which tells of {expected_bytes}"
        raise DataSetError(follow, remedy=_REMEDY)
    pixels = np.frombuffer(content, np.uint8, offset=len(header))
    return pixels.reshape(count, *sides)


@dataclass(frozen=True, kw_only=True)
class Mnist(DataKind):
    """Grey images of 28 x 28 pixels."""

    def open(self, root: Path, frame_stride: int) -> PixelSet:  # noqa: ARG002 - no frames
        """Return the training images; those of the test are checked, too, since a copy is whole or damaged."""
        directory = root / PLACE
        training, test = _PARTS
        labels, pixels = _part(directory, training)
        _part(directory, test)
        classes = labels.astype(np.int64)
        images = pixels[..., None].copy()
        return PixelSet(classes, images)

    def paths(self, drawn: DrawnSet) -> list[str]:  # noqa: ARG002
        """Return the images and labels of the training, then those of the test."""
        paths = []
        for part in _PARTS:
            for content in ("images-idx3", "labels-idx1"):
                paths.append(f"{PLACE}/{part}-{content}-ubyte")
        return paths

    def content(self, drawn: DrawnSet, number: int) -> bytes:
        first = 0
        count = drawn.images
        if number // 2:
            first = drawn.images
            count = held_out(drawn.images)
        images = range(first, first + count)
        if number % 2:
            labels = [image % LABELS for image in images]
            return idx_header((count,)) + bytes(labels)
        digits = []
        for image in images:
            rng = np.random.default_rng((drawn.seed, image))
            digit = _digit(image % LABELS, rng)
            digits.append(digit)
        header = idx_header((count, SIDE_PX, SIDE_PX))
        return header + b"".join(digits)

    def file_bytes(self, drawn: DrawnSet) -> int:
        images = drawn.images + held_out(drawn.images)
        image_bytes = SIDE_PX * SIDE_PX
        label_bytes = 1
        return 4096 + images * (image_bytes + label_bytes) // 4


def _digit(label: int, rng: np.random.Generator) -> bytes:
    """Return the pixels of a digit by an unsteady hand: so labels can be learned, and generated ones looked at."""
    strokes = []
    for corner in _STROKES[label].split():
        column = int(corner[0])
        row = int(corner[1])
        strokes.append((column, row))
    corners = np.array(strokes) - (1, 2)
    angle = rng.normal(0, 0.12)
    shear = rng.normal(0, 0.15)
    cosine = math.cos(angle)
    sine = math.sin(angle)
    rotation = np.array(((cosine, -sine), (sine, cosine)))
    turn = rotation @ ((1, shear), (0, 1))
    jitter = rng.normal(0, 0.12, corners.shape)
    spread = rng.uniform(0.8, 1.15, 2)
    scaled_corners = (corners + jitter) * spread * (5.5, 4.2)
    placed = scaled_corners @ turn.T
    placed += SIDE_PX / 2 + rng.normal(0, 1, 2)
    canvas_px = _FINER * SIDE_PX
    image = Image.new("L", (canvas_px, canvas_px))
    points = [(_FINER * x, _FINER * y) for x, y in placed.tolist()]
    width_px = rng.uniform(2, 3.5)
    width = round(_FINER * width_px)
    canvas = ImageDraw.Draw(image)
    canvas.line(points, fill=255, width=width, joint="curve")
    small = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX)
    return small.tobytes()


def _part(place: Path, part: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    pixels = read_idx(place / f"{part}-images-idx3-ubyte", SIDE_PX, SIDE_PX)
    labels = read_idx(place / f"{part}-labels-idx1-ubyte")
    if len(labels) != len(pixels) or labels.max() >= LABELS:
        counts = f"{len(pixels)} images, {len(labels)} labels up to {labels.max()}"
        raise DataSetError(f"the {part} files in {place} do not belong together: {counts}", remedy=_REMEDY)
    return labels, pixels


MNIST = Mnist(
    name="mnist",
    channels=1,
    image_px=SIDE_PX,
    can_be_generated=True,
)
