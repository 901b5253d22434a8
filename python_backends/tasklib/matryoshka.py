# SPDX-License-Identifier: Apache-2.0
"""Embeddings cut to their first dimensions, for models that were trained for it."""

import numpy as np
from numpy.typing import NDArray

from tasklib.item_errors import ItemError
from tasklib.labels import require_finite

_SMALLEST_NORM = 1e-12  # as PyTorch's normalize


def cut(
    vectors: NDArray[np.float32], dimensions: int | None = None, *, normalized: bool = True
) -> NDArray[np.float32]:
    """The first `dimensions` of FP32[n, d], scaled to length 1 again if the model's vectors are.

    None: the vectors as they are. Raises ItemError for dimensions that the vectors do not have,
    EngineFailedError for vectors that are not numbers.
    """
    require_finite("embeddings", vectors)
    have = vectors.shape[1]
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= have:
        raise ItemError("dimensions", f"is {dimensions}, expected 1 to {have}.")
    if dimensions == have:
        return vectors
    short = vectors[:, :dimensions]
    if not normalized:
        return np.ascontiguousarray(short)
    norms = np.sqrt(np.sum(short.astype(np.float64) ** 2, axis=1, keepdims=True))
    scaled: NDArray[np.float32] = (short / np.maximum(norms, _SMALLEST_NORM)).astype(np.float32)
    return scaled
