# SPDX-License-Identifier: Apache-2.0
"""An encoded image to the tensor that a vision model takes. Needs Pillow and numpy.

Equal, to the bit, to transformers' processors on Pillow (`ViTImageProcessorPil` and its kin), not
to those on torchvision, whose resampling differs. After cropping a channel has 256 values at most,
so rescaling and normalising is a look-up in a table of what the reference makes of each.
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
# From this size on ConvNeXT's images are stretched to it, not cropped.
_CONVNEXT_WARPS = 384


class ImageProcessor:
    """Makes pixel values FP32[3, height, width]; any number of threads may use one."""

    def __init__(self, settings: ImageSettings, *, max_pixels: int) -> None:
        """`max_pixels`: of an image, and of each step on its way, at most."""
        self.settings = settings
        self.shape = (CHANNELS, settings.height, settings.width)
        self._max_pixels = max_pixels
        self._tables = _tables(settings)
        prepare_pillow(max_pixels)

    def pixels(self, encoded: bytes) -> NDArray[np.float32]:
        """Decode, resize, crop, rescale and normalise one image.

        Raises:
            ItemError: it is none, damaged, or too large.
        """
        image = self.opened(encoded)
        out = np.empty(self.shape, dtype=np.float32)
        self.fill(image, out)
        return out

    def opened(self, encoded: bytes) -> Image.Image:
        """Read the header and check what the image will take. Raises ItemError."""
        image = open_image(encoded, self._max_pixels)
        # EXIF may yet turn it: both ways round have to fit.
        needed = max(map(self._resizing, {image.size, image.size[::-1]}))
        if needed > self._max_pixels:
            raise image_error(
                f"is {image.width} x {image.height} pixels, and resized {needed}, more than this "
                f"model's limit of {self._max_pixels}."
            )
        return image

    def fill(self, opened: Image.Image, out: NDArray[np.float32]) -> None:
        """Write the pixel values of an opened image into `out`, FP32[3, height, width].

        Raises:
            ItemError: the file is truncated or damaged.
        """
        image = decode_rgb(opened)
        image = self._resized(image)
        array = self._cropped(np.asarray(image))
        for channel, table in enumerate(self._tables):
            np.take(table, array[..., channel], out=out[channel], mode="clip")

    def _resizing(self, size: tuple[int, int]) -> int:
        """Pixels that it takes to resize an image of this width and height."""
        width, height = self._resized_size(*size)
        # Pillow resizes the width first.
        return width * max(height, size[1])

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after resizing."""
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
        longest = int(edge * long / short)
        return (edge, longest) if width <= height else (longest, edge)

    def _resized(self, image: Image.Image) -> Image.Image:
        if not self.settings.do_resize:
            return image
        size = self._resized_size(image.width, image.height)
        return image.resize(size, Image.Resampling(self.settings.resample))

    def _cropped(self, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        s = self.settings
        edge = s.size.get("shortest_edge", 0)
        if s.do_resize and s.crop_pct is not None and edge < _CONVNEXT_WARPS:
            array = center_crop(array, edge, edge)
        if s.do_center_crop:
            array = center_crop(array, s.crop_size["height"], s.crop_size["width"])
        return array


def center_crop(array: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Cut [h, w, channels] to [height, width, channels]; what is missing is 0 around it.

    As transformers does: the larger half is cut off at the end, and added at the beginning.
    """
    for axis, wanted in ((0, height), (1, width)):
        have = array.shape[axis]
        if have >= wanted:
            start = (have - wanted) // 2
            array = array[(slice(None),) * axis + (slice(start, start + wanted),)]
        else:
            before = -((have - wanted) // 2)
            pad = [(0, 0)] * array.ndim
            pad[axis] = (before, wanted - have - before)
            array = np.pad(array, pad)
    return array


def _tables(settings: ImageSettings) -> NDArray[np.float32]:
    """FP32[3, 256]: what each 8-bit value becomes, in the reference's order and precisions."""
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
