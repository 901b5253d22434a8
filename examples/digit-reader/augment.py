# SPDX-License-Identifier: Apache-2.0
"""Random changes of training images: 1,437 of them are few."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Shares of the image, radians, factors.
SHIFT, TURN, SHEAR, SCALE = 0.14, math.radians(14), 0.2, 0.15
COLOURED_SHARE = 0.5
LEAST_CONTRAST = 0.35
NOISE = 0.04


@dataclass(frozen=True)
class Augment:
    """Changes images by numbers drawn from ``generator``."""

    generator: torch.Generator

    def __call__(self, ink: Tensor) -> Tensor:
        """Turn ink, FP32 (images, 1, H, W) from 0 to 1, into RGB (images, 3, H, W) from 0 to 1."""
        moved = functional.grid_sample(ink, self._grid(ink), align_corners=False)
        coloured = self._coloured(moved)
        noise = torch.randn(coloured.shape, generator=self.generator) * NOISE
        return (coloured + noise).clamp(0, 1)

    def _uniform(self, count: int, reach: float) -> Tensor:
        return (torch.rand(count, generator=self.generator) * 2 - 1) * reach

    def _grid(self, ink: Tensor) -> Tensor:
        """Where each pixel is taken from: shifted, turned, sheared and scaled."""
        count = len(ink)
        turn, shear = self._uniform(count, TURN), self._uniform(count, SHEAR)
        wide, high = 1 + self._uniform(count, SCALE), 1 + self._uniform(count, SCALE)
        right, down = self._uniform(count, 2 * SHIFT), self._uniform(count, 2 * SHIFT)
        first = [turn.cos() * wide, (shear - turn.sin()) * high, right]
        second = [turn.sin() * wide, turn.cos() * high, down]
        matrices = torch.stack([torch.stack(first, 1), torch.stack(second, 1)], 1)
        return functional.affine_grid(matrices, list(ink.shape), align_corners=False)

    def _coloured(self, ink: Tensor) -> Tensor:
        """Half of the images get a colour of ink and one of paper, the others stay as they are."""
        count = len(ink)
        colours = torch.rand(2, count, 3, 1, 1, generator=self.generator)
        near = (colours[0] - colours[1]).mean(1, keepdim=True).abs() < LEAST_CONTRAST
        plain = near | (torch.rand(count, 1, 1, 1, generator=self.generator) > COLOURED_SHARE)
        of_ink = torch.where(plain, 1.0, colours[0])
        of_paper = torch.where(plain, 0.0, colours[1])
        return of_paper + (of_ink - of_paper) * ink
