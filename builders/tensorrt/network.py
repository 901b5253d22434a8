# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of a parsed network, as the rules see them. Standard library only."""

from dataclasses import dataclass
from typing import Any

# TensorRT's names (tensorrt.DataType) and Triton's.
TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "INT8": "TYPE_INT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "HALF": "TYPE_FP16",
    "BF16": "TYPE_BF16",
    "FLOAT": "TYPE_FP32",
}
# The types that Q layers produce.
NARROW = ("INT8", "FP8", "INT4", "FP4")


@dataclass(frozen=True)
class NetworkTensor:
    """An input or output."""

    name: str
    data_type: str  # TensorRT's name
    shape: tuple[int, ...]  # -1: variable

    def spec(self, *, batched: bool) -> dict[str, Any]:
        """Return the tensor's entry in the build result; `batched`: without the batch dimension."""
        dims = list(self.shape[int(batched) :])
        return {"name": self.name, "data_type": TRITON_TYPES[self.data_type], "dims": dims}


@dataclass(frozen=True)
class Network:
    """The description of a network."""

    inputs: tuple[NetworkTensor, ...]
    outputs: tuple[NetworkTensor, ...]
    quantised: frozenset[str] = frozenset()  # types of its Q/DQ layers
