# SPDX-License-Identifier: Apache-2.0
"""Cut embeddings to their first dimensions, for models trained for it."""

import numpy as np
from numpy.typing import NDArray

from tasklib.item_errors import ItemError
from tasklib.labels import require_finite

_SMALLEST_NORM = 1e-12  # as PyTorch's normalize


def cut_embeddings(
    vectors: NDArray[np.float32], dimensions: int | None = None, *, normalized: bool = True
) -> NDArray[np.float32]:
    """Return the first `dimensions` of FP32[n, d], rescaled to length 1 if `normalized`.

    None: all dimensions. Raises ItemError for more dimensions than the vectors have,
    EngineFailedError for vectors that are not finite.
    """
    require_finite("embeddings", vectors)
    full_dimensions = vectors.shape[1]
    if dimensions is None:
        return vectors
    if not 1 <= dimensions <= full_dimensions:
        raise ItemError("dimensions", f"is {dimensions}, expected 1 to {full_dimensions}.")
    if dimensions == full_dimensions:
        return vectors
    shortened = vectors[:, :dimensions]
    if not normalized:
        return np.ascontiguousarray(shortened)
    norms = np.sqrt(np.sum(shortened.astype(np.float64) ** 2, axis=1, keepdims=True))
    scaled: NDArray[np.float32] = (shortened / np.maximum(norms, _SMALLEST_NORM)).astype(np.float32)
    return scaled
