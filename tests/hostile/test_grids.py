"""Pictures in records of strangers: one that is no grid of the worker's is refused with its record, at little cost."""

import io
import struct
import time
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from suite.records.fields import checked_part
from suite.records.record import Generated
from suite.untrusted.grid import MOST_PIXEL_BYTES, MOST_PNG_BYTES, check_grid

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(name: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(*rows: bytes, width: int = 2, form: bytes = b"\x08\x00\x00\x00\x00", between: bytes = b"") -> bytes:
    """Return a PNG of rows, each with its filter; grey, 8 bits, unless the form says otherwise."""
    header = struct.pack(">II", width, len(rows)) + form
    body = chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return SIGNATURE + chunk(b"IHDR", header) + between + body + chunk(b"IEND")


def drawn(**options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(out, format="PNG", **options)
    return out.getvalue()


def with_text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "<script>alert(1)</script>")
    return info


ROW = b"\x00ab"
GOOD = png(ROW, ROW)
BOMB = SIGNATURE + chunk(b"IHDR", struct.pack(">II", 1 << 15, 1 << 15) + b"\x08\x00\x00\x00\x00")
BOMB += chunk(b"IDAT", zlib.compress(bytes(16 << 20), 9)) + chunk(b"IEND")


def pictures() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "a signature alone", SIGNATURE
    yield "a JPEG", b"\xff\xd8\xff\xe0" + bytes(100)
    yield "half of it", GOOD[: len(GOOD) // 2]
    yield "more behind it", GOOD + b"<script>"
    yield "a second picture behind it", GOOD + GOOD
    yield "another byte", GOOD[:-20] + bytes([GOOD[-20] ^ 1]) + GOOD[-19:]
    yield "a text", drawn(pnginfo=with_text())
    yield "a palette", drawn(bits=4)[:24] + b"\x08\x03" + drawn()[26:]
    yield "16 bits", png(b"\x00abcd", form=b"\x10\x00\x00\x00\x00")
    yield "interlaced", png(ROW, form=b"\x08\x00\x00\x00\x01")
    yield "an unknown filter", png(b"\x05ab")
    yield "too few rows", png(ROW + b"\x00a")
    yield "too many rows", png(ROW + ROW)
    yield "no width", png(b"\x00", width=0)
    yield "no rows", png()
    yield "an animation", png(ROW, between=chunk(b"acTL", bytes(8)))
    yield "a profile", png(ROW, between=chunk(b"iCCP", b"x\x00\x00" + zlib.compress(b"x")))
    yield "a bomb", BOMB
    noise = [b"\x00" + np.random.default_rng(seed).bytes(300) for seed in (1, *range(300))]
    yield "too large a file", png(*noise, width=300)
    yield "a chunk longer than the file", SIGNATURE + struct.pack(">I", (1 << 32) - 1) + b"IHDR"


@pytest.mark.parametrize("picture", [pytest.param(content, id=name) for name, content in pictures()])
def test_a_picture_that_is_no_grid_is_refused_at_once(picture: bytes) -> None:
    begin_s = time.process_time()
    with pytest.raises(ValueError, match="PNG"):
        check_grid(b64encode(picture).decode())
    assert time.process_time() - begin_s < 1


@pytest.mark.parametrize("text", ["", "no base64", "ä" * 40, "=" * 200_000, "A" * (8 << 20)])
def test_a_text_that_is_no_picture_is_refused_with_its_record(text: str) -> None:
    with pytest.raises(ValueError, match="png"):
        checked_part(Generated, {"images": 1, "pixels_sha256": "ab" * 32, "png": text})


def test_pictures_of_the_worker_s_kind_pass() -> None:
    for content in (GOOD, drawn(), png(b"\x04abcdef", form=b"\x08\x02\x00\x00\x00")):
        text = b64encode(content).decode()
        assert check_grid(text) == text
    assert len(BOMB) < MOST_PNG_BYTES < MOST_PIXEL_BYTES
