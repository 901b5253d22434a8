# SPDX-License-Identifier: Apache-2.0
"""Encoded images to RGB pixels, with bounded memory and time. Needs Pillow.

As transformers' `load_image` does, and with it its pipelines: the first frame, turned as the EXIF
orientation says (people see it so, and so did who labelled the training set), then
`convert("RGB")`, which drops transparency and takes CMYK without a colour profile. One difference:
Pillow cuts 16-bit grey values at 255, which makes nearly all of them white; here they are divided
by 256, as Pillow does with 16-bit colours.

Nobody vouches for these bytes, so only formats that browsers show are opened (Pillow has others
that start programs), and a file says how much work it is before any of it is done.
"""

import base64
import binascii
import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tasklib.item_errors import ItemError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
# Of a progressive JPEG with all its pixels; cameras and libraries write about ten.
_MOST_SCANS = 20
_START_OF_SCAN = b"\xff\xda"
_DATA_URL = b"data:image/"
_SHOWN = 8


def image_error(problem: str) -> ItemError:
    """The error of one image; `problem` continues the sentence that begins with its name."""
    return ItemError("image", problem)


def open_image(encoded: bytes, max_pixels: int) -> Image.Image:
    """Read an image's header: its size in pixels is known, none of them is decoded.

    `encoded`: a file's bytes, or a data URL of them in base64, for JSON, which has no bytes.

    Raises:
        ItemError: it is empty, of no known format, or larger than `max_pixels`.
    """
    encoded = _file_of(encoded)
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except UnidentifiedImageError:
        raise image_error(
            f"is of none of the formats {', '.join(FORMATS)}: it begins with {encoded[:_SHOWN]!r}."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise image_error(f"has more pixels than this model's limit of {max_pixels}.") from None
    except Exception as error:  # a decoder raises whatever its reader stumbles over
        raise _undecodable(error) from error
    if image.width * image.height > max_pixels:
        raise image_error(
            f"is {image.width} x {image.height} pixels, more than this model's limit of "
            f"{max_pixels}."
        )
    if image.format in ("JPEG", "MPO"):
        scans = encoded.count(_START_OF_SCAN)
        if scans * image.width * image.height > _MOST_SCANS * max_pixels:
            raise image_error(
                f"is a JPEG of {scans} scans over {image.width} x {image.height} pixels, which "
                "take too long to decode."
            )
    return image


def prepare_pillow(max_pixels: int) -> None:
    """Load its formats before threads do, and give it the limit: it allocates some early."""
    Image.init()
    Image.MAX_IMAGE_PIXELS = max_pixels


def decode_rgb(image: Image.Image) -> Image.Image:
    """Decode the first frame of an opened image to mode RGB, the right way up.

    Raises:
        ItemError: the file is truncated or damaged.
    """
    try:
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I;16"):
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as error:  # as above
        raise _undecodable(error) from error


def _file_of(encoded: bytes) -> bytes:
    if not encoded:
        raise image_error("is empty.")
    if not encoded.startswith(_DATA_URL):
        return encoded
    head, comma, data = encoded.partition(b",")
    if not comma or not head.endswith(b";base64"):
        raise image_error("is a data URL without `;base64,`.")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise image_error(f"is a data URL whose base64 is wrong: {error}.") from None


def _undecodable(error: Exception) -> ItemError:
    return image_error(f"cannot be decoded: {error or type(error).__name__}.")
