# SPDX-License-Identifier: Apache-2.0
"""Decode images to RGB pixels with bounded memory and time. Needs Pillow.

Follows transformers' `load_image`, which its pipelines use: the first frame, rotated by its EXIF
orientation (as people see it, and as the training set was labelled), then `convert("RGB")`, which
drops transparency and reads CMYK without a colour profile. One difference: Pillow clips 16-bit grey
values at 255, which makes nearly all of them white; here they are divided by 256, as Pillow does
with 16-bit colours.

The bytes are untrusted. So only formats of browsers are opened (Pillow has others that start
programs), and the header's size is checked before decoding.
"""

import base64
import binascii
import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tasklib.item_errors import ItemError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
# Scans of a progressive JPEG at the maximum size; cameras and libraries write about ten.
_MAX_SCANS = 20
_START_OF_SCAN = b"\xff\xda"
_DATA_URL = b"data:image/"
_SIGNATURE_BYTES = 8


def image_error(problem: str) -> ItemError:
    """Create the error of one image; `problem` continues the sentence after its name."""
    return ItemError("image", problem)


def open_image(encoded: bytes, max_pixels: int) -> Image.Image:
    """Read an image's header without decoding pixels.

    `encoded`: a file's bytes, or a base64 data URL of them for JSON, which has no bytes.

    Raises:
        ItemError: it is empty, of an unsupported format, or larger than `max_pixels`.
    """
    encoded = _file_bytes(encoded)
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except UnidentifiedImageError:
        raise image_error(
            f"has an unsupported format, expected {', '.join(FORMATS)}: it begins with "
            f"{encoded[:_SIGNATURE_BYTES]!r}."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise image_error(f"has more pixels than this model's limit of {max_pixels}.") from None
    except Exception as error:  # decoders raise many types
        raise _decoding_error(error) from error
    if image.width * image.height > max_pixels:
        raise image_error(
            f"is {image.width} x {image.height} pixels, more than this model's limit of "
            f"{max_pixels}."
        )
    if image.format in ("JPEG", "MPO"):
        scans = encoded.count(_START_OF_SCAN)
        if scans * image.width * image.height > _MAX_SCANS * max_pixels:
            raise image_error(
                f"is a JPEG of {scans} scans over {image.width} x {image.height} pixels, which "
                "would take too long to decode."
            )
    return image


def prepare_pillow(max_pixels: int) -> None:
    """Load Pillow's formats before threads do, and set its pixel limit: it allocates early."""
    Image.init()
    Image.MAX_IMAGE_PIXELS = max_pixels


def decode_rgb(image: Image.Image) -> Image.Image:
    """Decode the first frame of an opened image to mode RGB, rotated by its EXIF orientation.

    Raises:
        ItemError: the file is truncated or damaged.
    """
    try:
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I;16"):
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")
    except Exception as error:  # as above
        raise _decoding_error(error) from error


def _file_bytes(encoded: bytes) -> bytes:
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


def _decoding_error(error: Exception) -> ItemError:
    return image_error(f"cannot be decoded: {error or type(error).__name__}.")
