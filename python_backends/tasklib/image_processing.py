# SPDX-License-Identifier: Apache-2.0
"""Turn an encoded image into the input tensor of a vision model. Needs Pillow and numpy.

Bit-identical to transformers' processors on Pillow (`ViTImageProcessorPil` and related classes),
not to those on torchvision, whose resampling differs. After cropping, a channel has at most 256
values, so rescaling and normalising is a look-up in a table of the reference's results.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tasklib.image_decoding import (
    decode_rgb,
    image_error,
    open_image,
    prepare_pillow,
)
from tasklib.image_settings import ImageSettings

CHANNELS = 3
_VALUES = 256
# From this size on ConvNeXT stretches images instead of cropping them.
_CONVNEXT_WARPS = 384


class ImageProcessor:
    """Creates pixel values FP32[3, height, width]. Thread-safe."""

    def __init__(self, settings: ImageSettings, *, max_pixels: int) -> None:
        """`max_pixels`: limit for an image and for each intermediate step."""
        self.settings = settings
        self.shape = (CHANNELS, settings.height, settings.width)
        self._max_pixels = max_pixels
        self._tables = _lookup_tables(settings)
        prepare_pillow(max_pixels)

    def pixels(self, encoded: bytes) -> NDArray[np.float32]:
        """Decode, resize, crop, rescale and normalise one image.

        Raises:
            ItemError: it is invalid, damaged, or too large.
        """
        image = self.open(encoded)
        out = np.empty(self.shape, dtype=np.float32)
        self.fill(image, out)
        return out

    def open(self, encoded: bytes) -> Image.Image:
        """Read the header and check the pixels of each step. Raises ItemError."""
        image = open_image(encoded, self._max_pixels)
        # EXIF may rotate it later: both orientations have to fit.
        peak_pixels = max(map(self._resize_pixels, {image.size, image.size[::-1]}))
        if peak_pixels > self._max_pixels:
            raise image_error(
                f"is {image.width} x {image.height} pixels, and resized {peak_pixels}, more than "
                f"this model's limit of {self._max_pixels}."
            )
        return image

    def fill(self, opened: Image.Image, out: NDArray[np.float32]) -> None:
        """Write the pixel values of an opened image into `out`, FP32[3, height, width].

        Raises:
            ItemError: the file is truncated or damaged.
        """
        image = decode_rgb(opened)
        image = self._resize(image)
        array = self._crop(np.asarray(image))
        for channel, table in enumerate(self._tables):
            np.take(table, array[..., channel], out=out[channel], mode="clip")

    def _resize_pixels(self, size: tuple[int, int]) -> int:
        """Return the pixels of the intermediate image when resizing this width and height."""
        width, height = self._resized_size(*size)
        # Pillow resizes the width first.
        return width * max(height, size[1])

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after resizing."""
        s = self.settings
        if not s.do_resize:
            return width, height
        edge = s.size.get("shortest_edge")
        if edge is None:
            return s.size["width"], s.size["height"]
        if s.crop_pct is not None:
            if edge >= _CONVNEXT_WARPS:
                return edge, edge
            edge = int(edge / s.crop_pct)
        short, long = sorted((width, height))
        long_edge = int(edge * long / short)
        return (edge, long_edge) if width <= height else (long_edge, edge)

    def _resize(self, image: Image.Image) -> Image.Image:
        if not self.settings.do_resize:
            return image
        size = self._resized_size(image.width, image.height)
        return image.resize(size, Image.Resampling(self.settings.resample))

    def _crop(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        s = self.settings
        edge = s.size.get("shortest_edge", 0)
        if s.do_resize and s.crop_pct is not None and edge < _CONVNEXT_WARPS:
            array = center_crop(array, edge, edge)
        if s.do_center_crop:
            array = center_crop(array, s.crop_size["height"], s.crop_size["width"])
        return array


def center_crop(array: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Crop [h, w, channels] to [height, width, channels], or pad it with 0.

    As in transformers, the larger half is cropped at the end, and padded at the start.
    """
    for axis, target in ((0, height), (1, width)):
        size = array.shape[axis]
        if size >= target:
            start = (size - target) // 2
            array = array[(slice(None),) * axis + (slice(start, start + target),)]
        else:
            leading = -((size - target) // 2)
            pad = [(0, 0)] * array.ndim
            pad[axis] = (leading, target - size - leading)
            array = np.pad(array, pad)
    return array


def _lookup_tables(settings: ImageSettings) -> NDArray[np.float32]:
    """Return FP32[3, 256]: the result for each 8-bit value, in the reference's precision."""
    values: NDArray[np.float32] = np.arange(_VALUES, dtype=np.float32)
    if settings.do_rescale:
        values = (values.astype(np.float64) * settings.rescale_factor).astype(np.float32)
    tables = np.tile(values, (CHANNELS, 1))
    if settings.do_normalize:
        mean, std = (
            np.array(each, dtype=np.float32)[:, None]
            for each in (settings.image_mean, settings.image_std)
        )
        tables = (tables - mean) / std
    return tables
