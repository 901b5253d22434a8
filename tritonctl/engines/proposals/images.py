# SPDX-License-Identifier: Apache-2.0
"""Images for a load test, as data URLs because JSON has no bytes."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator

# Width and height of three downscaled photographs and an original one.
_SHAPES = ((320, 240), (240, 320), (400, 300), (640, 480))


def image_url(number: int) -> str:
    """Return a PNG that is different for each number and as costly as a photograph of its size."""
    width, height = _SHAPES[number % len(_SHAPES)]
    rows = b"".join(_rows(width, height, number))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red, green and blue
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return "data:image/png;base64," + base64.b64encode(file).decode("ascii")


def _rows(width: int, height: int, number: int) -> Iterator[bytes]:
    """Yield rows as differences from the left pixel (PNG filter 1), for a small file."""
    for y in range(height):
        row = [
            (x * (3 + channel) // 8 + y * (5 - channel) // 8 + 37 * number * (channel + 1)) % 256
            for x in range(width)
            for channel in range(3)
        ]
        previous_pixels = [0, 0, 0, *row]
        yield b"\1" + bytes(
            (value - previous) % 256 for value, previous in zip(row, previous_pixels, strict=False)
        )
