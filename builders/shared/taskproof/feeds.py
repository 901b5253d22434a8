# SPDX-License-Identifier: Apache-2.0
"""Rows of token ids as the inputs of a graph. Needs numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxlib.graph import OnnxTensor
from taskcompile.task import POOLING_MASK, TEXT_INPUTS

Feed = dict[str, Any]  # arrays by the name of the input

NUMPY = {
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
    """Return batches of token ids, padded on the right, with their masks."""
    types = {tensor.name: NUMPY[tensor.element_type] for tensor in inputs}
    return [_padded(rows[at : at + batch], types, pad_id) for at in range(0, len(rows), batch)]


def _padded(rows: Sequence[list[int]], types: dict[str, str], pad_id: int) -> Feed:
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for target, flags, row in zip(ids, mask, rows, strict=True):
        target[: len(row)], flags[: len(row)] = row, 1
    made = dict(zip(TEXT_INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))
    made[POOLING_MASK] = mask
    return {name: made[name].astype(kind) for name, kind in types.items()}
