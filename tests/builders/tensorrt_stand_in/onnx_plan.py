# SPDX-License-Identifier: Apache-2.0
"""A "plan" that ONNX Runtime runs, for the stand-in of TensorRT: a real graph answers.

Shapes are refused outside the chosen profile, tensors without an address are an error, and memory
is read at the addresses that were set, as on a GPU.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx  # noqa: TID251 - this runs in the builder's environment
import onnxruntime  # noqa: TID251 - same
from numpy.typing import NDArray

_TYPES = {"FLOAT": "FLOAT", "FLOAT16": "HALF", "INT64": "INT64", "INT32": "INT32", "BOOL": "BOOL"}
_OWN = ("", "ai.onnx")
# What is added to every answer, by a test that wants a plan which is wrong.
NOISE = "STAND_IN_NOISE"


def description(file: Path) -> dict[str, Any]:
    """A graph's tensors and the types of its Q/DQ nodes, as the stand-in's JSON has them.

    Raises ValueError for operators that are not ONNX's own, which TensorRT does not parse.
    """
    model = onnx.load(file, load_external_data=False)
    foreign = {node.domain for node in model.graph.node} - set(_OWN)
    if foreign:
        raise ValueError(f"no importer registered for the domain {min(foreign)}")
    weights = {one.name: one.data_type for one in model.graph.initializer}
    quantised = {
        onnx.TensorProto.DataType.Name(weights[node.input[2]])
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    inputs = [one for one in model.graph.input if one.name not in weights]
    return {
        "inputs": [_tensor(one) for one in inputs],
        "outputs": [_tensor(one) for one in model.graph.output],
        "quantised": sorted(quantised),
        "onnx": str(file),
    }


def _tensor(value: Any) -> list[Any]:
    kind = value.type.tensor_type
    shape = [one.dim_value or -1 for one in kind.shape.dim]
    return [value.name, _TYPES[onnx.TensorProto.DataType.Name(kind.elem_type)], shape]


class Context:
    """tensorrt.IExecutionContext, of one engine."""

    def __init__(self, content: dict[str, Any], types: dict[str, type]) -> None:
        self._profiles, self._types = content["profiles"], types
        self._session = onnxruntime.InferenceSession(content["onnx"])
        self._profile: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Shapes have to be set again afterwards."""
        assert stream_handle == 0
        self._profile, self._shapes = self._profiles[profile_index], {}
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """False outside the profile."""
        low, _, high = self._profile[name]
        if not all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True)):
            return False
        self._shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Of an output, once the inputs' are known: the rows, and what stands behind them."""
        rows, *rest = next(iter(self._shapes.values()))
        [output] = [one for one in self._session.get_outputs() if one.name == name]
        known = iter(rest)
        behind = (size if isinstance(size, int) else next(known) for size in output.shape[1:])
        return (rows, *behind)

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Where the device has a tensor."""
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        """False where an input has no shape."""
        assert stream_handle == 0
        inputs = [one.name for one in self._session.get_inputs()]
        if set(inputs) != self._shapes.keys():
            return False
        feed = {name: self._memory(name, self._shapes[name]).copy() for name in inputs}
        arrays = self._session.run(None, feed)
        for output, array in zip(self._session.get_outputs(), arrays, strict=True):
            assert array.shape == self.get_tensor_shape(output.name)
            noise = np.linspace(0, float(os.environ.get(NOISE, "0")), array.shape[-1])
            self._memory(output.name, array.shape)[...] = array + noise
        return True

    def _memory(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        kind: np.dtype[Any] = np.dtype(self._types[name])
        size = int(np.prod(shape)) * kind.itemsize
        raw = (ctypes.c_char * size).from_address(self._addresses[name])
        return np.ndarray(shape, dtype=kind, buffer=memoryview(raw))
