# SPDX-License-Identifier: Apache-2.0
"""The images that prove an image model. Needs numpy and Pillow.

They are generated and equal on every machine. Resampling, cropping, swapped channels and an EXIF
rotation all change their colours and structures. They cover the formats and modes that users send.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

_ORIENTATION = 0x112
_ROTATED = 6
# Divisors of the size of the pictures that are enlarged: structures of three sizes.
_GRAINS = (3, 9, 29)
# Name, width and height in pixels, mode, format, options of its writer.
_SPECIFICATIONS: tuple[tuple[str, int, int, str, str, dict[str, Any]], ...] = (
    ("wide", 320, 200, "RGB", "PNG", {}),
    ("tall", 180, 333, "RGB", "JPEG", {"quality": 92}),
    ("square", 256, 256, "RGB", "JPEG", {"quality": 80, "progressive": True}),
    ("small", 31, 24, "RGB", "PNG", {}),
    ("strip", 420, 60, "RGB", "WEBP", {"quality": 90}),
    ("grey", 200, 240, "L", "JPEG", {"quality": 90}),
    ("transparent", 150, 150, "RGBA", "PNG", {}),
    ("palette", 210, 190, "P", "GIF", {}),
    ("print", 224, 224, "CMYK", "JPEG", {"quality": 90}),
    ("bitmap", 97, 131, "RGB", "BMP", {}),
)


@dataclass(frozen=True)
class ImageCase:
    """One encoded image."""

    name: str
    encoded: bytes
    ignoring_exif: bytes  # the same without its orientation


def image_cases() -> list[ImageCase]:
    """Return one image of every kind, and one with an EXIF rotation."""
    cases = []
    for seed, (name, width, height, mode, kind, options) in enumerate(_SPECIFICATIONS):
        file = _encode(_picture(width, height, seed).convert(mode), kind, options)
        cases.append(ImageCase(name, file, file))
    exif = Image.Exif()
    exif[_ORIENTATION] = _ROTATED
    photograph, options = _picture(300, 200, len(_SPECIFICATIONS)), {"quality": 90}
    rotated = _encode(photograph, "JPEG", {**options, "exif": exif})
    cases.append(ImageCase("turned", rotated, _encode(photograph, "JPEG", options)))
    return cases


def _picture(width: int, height: int, seed: int) -> Image.Image:
    generator = np.random.default_rng(seed)
    layers = []
    for grain in _GRAINS:
        size = (max(2, height // grain), max(2, width // grain), 3)
        layer = Image.fromarray(generator.integers(0, 256, size, dtype=np.uint8))
        layers.append(np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC), float))
    tint = generator.uniform(0.3, 1.0, 3)  # makes swapped channels visible
    return Image.fromarray((np.mean(layers, axis=0) * tint).astype(np.uint8))


def _encode(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
