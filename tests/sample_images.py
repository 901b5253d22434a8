# SPDX-License-Identifier: Apache-2.0
"""Small encoded images of every kind, made here; and files that claim to be large ones."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

ORIENTATION = 0x112
_TRUE_COLOUR = 2
_GREY = 0


def smooth(height: int, width: int, *, seed: int = 1, mode: str = "RGB") -> Image.Image:
    """A picture with structure at all scales, which resampling and cropping change."""
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    generator = np.random.default_rng(seed)
    shape = (max(2, height // 9), max(2, width // 9), channels)
    small = generator.integers(0, 256, shape, dtype=np.uint8)
    image = Image.fromarray(small[..., 0] if channels == 1 else small)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def every_kind() -> dict[str, bytes]:
    """A file of each format and mode that is taken, by its name."""
    grey, coloured = smooth(120, 80, mode="L"), smooth(100, 133)
    see_through = smooth(64, 90, mode="RGBA")
    frames = [smooth(64, 64, seed=seed) for seed in (5, 6)]
    made = {
        "rgb.png": encoded(coloured),
        "tall.jpg": encoded(smooth(301, 93), "JPEG", quality=90),
        "progressive.jpg": encoded(smooth(251, 150), "JPEG", progressive=True),
        "tiny.png": encoded(smooth(7, 5)),
        "grey.png": encoded(grey),
        "grey.jpg": encoded(grey, "JPEG"),
        "rgba.png": encoded(see_through),
        "la.png": encoded(see_through.convert("LA")),
        "palette.png": encoded(coloured.convert("P")),
        "one_bit.png": encoded(grey.convert("1")),
        "cmyk.jpg": encoded(coloured.convert("CMYK"), "JPEG"),
        "lossless.webp": encoded(coloured, "WEBP", lossless=True),
        "animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated.webp": encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "plain.bmp": encoded(coloured, "BMP"),
        "deep_colour.png": png_16_bit([0, 255, 256, 4096, 65535], _TRUE_COLOUR),
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        made[f"exif_{orientation}.jpg"] = encoded(smooth(60, 140), "JPEG", exif=exif)
    return made


def png_16_bit(values: Sequence[int], colour: int = _GREY) -> bytes:
    """A PNG of one row with these values, in each of its channels."""
    channels = {_GREY: 1, _TRUE_COLOUR: 3}[colour]
    row = b"\0" + b"".join(struct.pack(">H", value) * channels for value in values)
    return png(len(values), 1, row, depth=16, colour=colour)


def png(
    width: int, height: int, rows: bytes, *, depth: int = 8, colour: int = _TRUE_COLOUR
) -> bytes:
    """A PNG of these rows, each behind the number of its filter; there may be too few."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def bombs(edge: int) -> dict[str, bytes]:
    """Small files, one of each format, that claim to be `edge` pixels wide and high."""
    jpeg = bytearray(encoded(smooth(16, 16), "JPEG"))
    start = jpeg.index(b"\xff\xc0")  # SOF0: marker, length, precision, height, width
    jpeg[start + 5 : start + 9] = struct.pack(">HH", edge, edge)
    gif = bytearray(encoded(smooth(16, 16).convert("P"), "GIF"))
    gif[6:10] = struct.pack("<HH", edge, edge)
    bmp = bytearray(encoded(smooth(16, 16), "BMP"))
    bmp[18:26] = struct.pack("<II", edge, edge)
    canvas = (edge - 1).to_bytes(3, "little") * 2
    webp = bytearray(encoded(smooth(16, 16, mode="RGBA"), "WEBP", exif=b"Exif\0\0"))
    start = webp.index(b"VP8X") + 12  # name, size, flags
    webp[start : start + 6] = canvas
    files = {"jpeg": jpeg, "gif": gif, "bmp": bmp, "webp": webp}
    return {"png": png(edge, edge, b"\0" * 9)} | {name: bytes(file) for name, file in files.items()}
