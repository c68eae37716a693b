"""Grids of generated images, as PNG in base64: the bounds within which they are made, and the check of a foreign one.

Standard library only: this file is part of the image, where the worker keeps to the same bounds.
"""

import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator

MOST_PNG_BYTES = 64 << 10
MOST_PIXEL_BYTES = 4 << 20
"""The most that the rows of a grid may take: a small file can hold many equal ones."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3}
"""The channels of the colour types that the worker writes: grey and RGB."""


def check_grid(text: str) -> str:
    """Return the text of a grid. Raises ValueError unless it is a PNG within the bounds, whole and of pixels alone."""
    try:
        (first, header), *data, end = _chunks(b64decode(text, validate=True))
        width, height, depth, colour, *others = struct.unpack(">IIBBBBB", header)
        row_bytes = 1 + width * _CHANNELS[colour]
        unpacker = zlib.decompressobj()
        packed = b"".join(body for _, body in data)
        rows = unpacker.decompress(packed, min(height * row_bytes, MOST_PIXEL_BYTES) + 1)
        proper = (first, *end, depth, *others) == (b"IHDR", b"IEND", b"", 8, 0, 0, 0) and {*dict(data)} == {b"IDAT"}
        whole = unpacker.eof and not unpacker.unused_data and 0 < width <= len(rows) == height * row_bytes
        if not (proper and whole and max(rows[::row_bytes]) <= 4):
            raise ValueError("it has other parts than pixels, or not all of them")
    except (ValueError, LookupError, struct.error, zlib.error) as error:
        raise ValueError(f"the grid is no PNG of the worker's: {error}") from error
    return text


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the content of each chunk. Raises ValueError for one that is damaged, and struct.error."""
    place = len(_SIGNATURE)
    while content[:8] == _SIGNATURE and place < len(content) <= MOST_PNG_BYTES:
        size, name = struct.unpack_from(">I4s", content, place)
        body = content[place + 8 : place + 8 + size]
        place = place + 12 + size
        if struct.unpack_from(">I", content, place - 4)[0] != zlib.crc32(name + body):
            raise ValueError("a chunk is damaged")
        yield name, body
