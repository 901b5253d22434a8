# SPDX-License-Identifier: Apache-2.0
"""The images, their split, and the files made of those held out.

scikit-learn carries the 1,797 images itself (`sklearn.datasets.load_digits`): 8 x 8 pixels, 17
shades. They are the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (UCI Machine Learning Repository, 1998, CC BY 4.0), written by 13 people.

The last 360 are held out. Neighbours are often of one hand: drawn at random, the held-out ones
would be written by people whom training has seen, and the score would flatter.
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT = 360
BRIGHTEST = 16


@dataclass(frozen=True)
class Digit:
    """One image and what it shows."""

    pixels: np.ndarray
    """UINT8, (8, 8); the ink is bright."""
    target: int

    @property
    def image(self) -> Image.Image:
        """As an image in shades of grey."""
        return Image.fromarray(self.pixels)

    @property
    def png(self) -> bytes:
        """As a PNG file."""
        buffer = io.BytesIO()
        self.image.save(buffer, "PNG", optimize=True)
        return buffer.getvalue()


def digits() -> tuple[list[Digit], list[Digit]]:
    """Load all images: those for training, those held out."""
    data = load_digits()
    shades = np.rint(data.images * (255 / BRIGHTEST)).astype(np.uint8)
    every = [Digit(pixels, int(t)) for pixels, t in zip(shades, data.target, strict=True)]
    return every[:-HELD_OUT], every[-HELD_OUT:]


def write_held_out(digits: list[Digit], listing: Path) -> None:
    """Write ``digits`` as PNG files, and their names and labels as JSON lines into ``listing``."""
    folder = listing.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, digit in enumerate(digits, start=1):
        label = LABELS[digit.target]
        file = folder / f"{index:03}-{label}.png"
        file.write_bytes(digit.png)
        rows.append({"image": f"{folder.name}/{file.name}", "label": label})
    listing.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_held_out(listing: Path) -> list[tuple[Image.Image, str]]:
    """Read what :func:`write_held_out` wrote."""
    rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]
    return [(Image.open(listing.parent / row["image"]), row["label"]) for row in rows]
