# SPDX-License-Identifier: Apache-2.0
"""Makes the inputs of a graph from rows of token ids. Needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taskcompile.task import POOLING_MASK, TEXT_INPUTS

if TYPE_CHECKING:  # builders without ONNX files do not ship onnxlib
    from onnxlib.graph import OnnxTensor

Feed = dict[str, Any]  # arrays by input

NUMPY_TYPES = {
    "BOOL": "bool",
    "FLOAT16": "float16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    **{name: name.lower() for name in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{name: name.lower() for name in ("INT8", "INT16", "INT32", "INT64")},
}
_BATCH = 8


def text_feeds(
    rows: Sequence[list[int]], inputs: Sequence[OnnxTensor], *, pad_id: int, batch: int = _BATCH
) -> list[Feed]:
    """Return batches of token ids with their masks, padded on the right."""
    types = {tensor.name: NUMPY_TYPES[tensor.element_type] for tensor in inputs}
    return [_pad_rows(rows[at : at + batch], types, pad_id) for at in range(0, len(rows), batch)]


def _pad_rows(rows: Sequence[list[int]], types: dict[str, str], pad_id: int) -> Feed:
    max_length = max(map(len, rows))
    ids = np.full((len(rows), max_length), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for target, flags, row in zip(ids, mask, rows, strict=True):
        target[: len(row)], flags[: len(row)] = row, 1
    arrays = dict(zip(TEXT_INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))
    arrays[POOLING_MASK] = mask
    return {name: arrays[name].astype(kind) for name, kind in types.items()}
