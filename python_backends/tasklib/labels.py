# SPDX-License-Identifier: Apache-2.0
"""Rank labels by their scores."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasklib.item_errors import ItemError
from textlib.errors import EngineFailedError

RankedLabels = tuple[NDArray[np.object_], NDArray[np.float32]]


def rank_labels(
    scores: NDArray[np.float32], labels: Sequence[str], top_k: int | None = None
) -> RankedLabels:
    """Return labels as UTF-8 BYTES[n, k] and scores FP32[n, k], from scores FP32[n, labels].

    top_k: number of labels; None or a larger number: all. Labels with equal scores keep the model's
    order. Raises ItemError for a top_k below 1, EngineFailedError for scores that are not finite or
    do not match the labels.
    """
    if top_k is not None and top_k < 1:
        raise ItemError("top_k", f"is {top_k}, expected 1 or more. Leave it out for all labels.")
    if scores.shape[1:] != (len(labels),):
        raise EngineFailedError(
            f"the graph gives scores {list(scores.shape)} for {len(labels)} labels. "
            "Make the engine again: `tritonctl build --force`."
        )
    require_finite("scores", scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    names = np.array([label.encode("utf-8") for label in labels], dtype=object)
    best: NDArray[np.float32] = np.take_along_axis(scores, order, axis=1)
    return names[order], best


def require_finite(name: str, values: NDArray[np.float32]) -> None:
    """Raise EngineFailedError if a graph's output contains NaN or infinity."""
    if not np.isfinite(values).all():
        raise EngineFailedError(
            f"the graph's {name} are not finite numbers: its weights are damaged, or overflow in "
            "this precision. Build it with fp32 and compare."
        )
