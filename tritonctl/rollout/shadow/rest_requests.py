# SPDX-License-Identifier: Apache-2.0
"""Convert Triton's REST requests to gRPC: infer, generate and generate_stream."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tritonctl.protocol.datatypes import NUMPY_OF
from tritonctl.protocol.tensors import raw_content

_PATH = re.compile(
    r"/v2/models/([A-Za-z0-9_.-]+)(?:/versions/[0-9]+)?/(infer|generate|generate_stream)"
)
_BYTES = "BYTES"
_MAX_TENSORS = 64
_PARAMETERS = "parameters"


@dataclass(frozen=True)
class InputTensors:
    """The inputs of a model."""

    datatypes: Mapping[str, str]  # by name
    is_batched: bool  # whether the first dimension is the batch


class NotUnderstoodError(Exception):
    """A request that cannot be repeated; the reason quotes nothing of it."""


def model_and_verb(path: str) -> tuple[str, str] | None:
    """Return the model and verb of a request path; None for any other path."""
    match = _PATH.fullmatch(path.partition("?")[0])
    return None if match is None else (match[1], match[2])


def generate_request(model: str, content: bytes, tensors: InputTensors) -> Any:
    """Convert a body of `generate`: a value or a list for each tensor.

    Raises NotUnderstoodError.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in _json_object(content).items():
        datatype = tensors.datatypes.get(name)
        if datatype is None:
            continue  # a parameter, which Triton passes on
        values = value if isinstance(value, list) else [value]
        shape = [1, len(values)] if tensors.is_batched else [len(values)]
        _add_input(request, name, datatype, shape, _raw_tensor(datatype, values))
    return request


def infer_request(model: str, content: bytes, json_length: int | None) -> Any:
    """Convert a body of `infer`, with or without binary tensors after its JSON.

    json_length: from the header inference-header-content-length. Raises NotUnderstoodError.
    """
    end = len(content) if json_length is None else json_length
    if not 0 < end <= len(content):
        raise NotUnderstoodError("its JSON differs from the declared length")
    body, binary_data = _json_object(content[:end]), memoryview(content)[end:]
    request = service_pb2.ModelInferRequest(model_name=model)
    copy_parameters(request, body.get(_PARAMETERS))
    for tensor in _input_list(body.get("inputs")):
        try:
            name, datatype = str(tensor["name"]), str(tensor["datatype"])
            shape = [int(size) for size in tensor["shape"]]
            size = (tensor.get(_PARAMETERS) or {}).get("binary_data_size")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotUnderstoodError("an input without name, datatype or shape") from error
        if "shared_memory_region" in (tensor.get(_PARAMETERS) or {}):
            raise NotUnderstoodError("inputs in shared memory")
        if size is None:
            raw = _raw_tensor(datatype, _flattened(tensor.get("data")))
        else:
            if not isinstance(size, int) or not 0 <= size <= len(binary_data):
                raise NotUnderstoodError("a binary input differs from its declared length")
            raw, binary_data = bytes(binary_data[:size]), binary_data[size:]
        _add_input(request, name, datatype, shape, raw)
    return request


def copy_parameters(request: Any, parameters: Any) -> None:
    """Copy parameters that are integers, strings or booleans; Triton interprets them."""
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        match value:
            case bool():
                request.parameters[name].bool_param = value
            case int() if abs(value) < 2**63:
                request.parameters[name].int64_param = value
            case str():
                request.parameters[name].string_param = value


def _add_input(request: Any, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)


def _raw_tensor(datatype: str, values: list[Any]) -> bytes:
    try:
        if datatype == _BYTES:
            texts = [str(value).encode("utf-8", "surrogatepass") for value in values]
            array = np.empty(len(texts), dtype=object)
            array[:] = texts
            return raw_content(array, _BYTES)
        return raw_content(np.array(values, dtype=NUMPY_OF[datatype]), datatype)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise NotUnderstoodError(f"an input is not {datatype}") from error


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotUnderstoodError("its body is not JSON") from error
    if not isinstance(value, dict):
        raise NotUnderstoodError("its body is not a JSON object")
    return value


def _input_list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_TENSORS:
        raise NotUnderstoodError("it has no inputs")
    return value


def _flattened(value: Any) -> list[Any]:
    """Flatten nested lists in order."""
    values: list[Any] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack += reversed(item)
        else:
            values.append(item)
    return values
