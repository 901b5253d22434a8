# SPDX-License-Identifier: Apache-2.0
"""The one table of Triton's data types.

Source: Triton's `model_config.proto` (TYPE_* names) and the KServe V2 protocol (wire names).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataType:
    """A data type and its names."""

    config: str  # in config.pbtxt
    wire: str
    numpy: str | None  # None: NumPy has no such type
    size: int | None  # bytes; None: varies


TABLE = (
    DataType("TYPE_BOOL", "BOOL", "bool", 1),
    DataType("TYPE_UINT8", "UINT8", "uint8", 1),
    DataType("TYPE_UINT16", "UINT16", "uint16", 2),
    DataType("TYPE_UINT32", "UINT32", "uint32", 4),
    DataType("TYPE_UINT64", "UINT64", "uint64", 8),
    DataType("TYPE_INT8", "INT8", "int8", 1),
    DataType("TYPE_INT16", "INT16", "int16", 2),
    DataType("TYPE_INT32", "INT32", "int32", 4),
    DataType("TYPE_INT64", "INT64", "int64", 8),
    DataType("TYPE_FP16", "FP16", "float16", 2),
    DataType("TYPE_BF16", "BF16", None, 2),
    DataType("TYPE_FP32", "FP32", "float32", 4),
    DataType("TYPE_FP64", "FP64", "float64", 8),
    DataType("TYPE_STRING", "BYTES", "object", None),
)

BY_CONFIG_NAME = {row.config: row for row in TABLE}
NUMPY_OF = {row.wire: row.numpy for row in TABLE if row.numpy}
