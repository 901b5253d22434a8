# SPDX-License-Identifier: Apache-2.0
"""Triton's REST requests as its gRPC ones: infer, generate and generate_stream."""

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
_MOST_TENSORS = 64
_PARAMETERS = "parameters"


@dataclass(frozen=True)
class Tensors:
    """The inputs of a model: data type by name. batched: whether their first dimension is."""

    datatypes: Mapping[str, str]
    batched: bool


class NotUnderstoodError(Exception):
    """A request that cannot be asked again: in words that quote nothing of it."""


def model_and_verb(path: str) -> tuple[str, str] | None:
    """Of a request to a model; None of any other path."""
    found = _PATH.fullmatch(path.partition("?")[0])
    return None if found is None else (found[1], found[2])


def generate_request(model: str, content: bytes, tensors: Tensors) -> Any:
    """The ModelInferRequest of a body of `generate`: a value or a list for each tensor.

    Raises NotUnderstoodError.
    """
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, value in _object(content).items():
        datatype = tensors.datatypes.get(name)
        if datatype is None:
            continue  # a parameter, which Triton hands on
        values = value if isinstance(value, list) else [value]
        shape = [1, len(values)] if tensors.batched else [len(values)]
        _add(request, name, datatype, shape, _raw(datatype, values))
    return request


def infer_request(model: str, content: bytes, json_length: int | None) -> Any:
    """The ModelInferRequest of a body of `infer`, with binary tensors behind its JSON or without.

    json_length: of the header inference-header-content-length. Raises NotUnderstoodError.
    """
    end = len(content) if json_length is None else json_length
    if not 0 < end <= len(content):
        raise NotUnderstoodError("its JSON has another length than it says")
    body, rest = _object(content[:end]), memoryview(content)[end:]
    request = service_pb2.ModelInferRequest(model_name=model)
    copy_parameters(request, body.get(_PARAMETERS))
    for tensor in _list(body.get("inputs")):
        try:
            name, datatype = str(tensor["name"]), str(tensor["datatype"])
            shape = [int(size) for size in tensor["shape"]]
            size = (tensor.get(_PARAMETERS) or {}).get("binary_data_size")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotUnderstoodError("an input without name, datatype or shape") from error
        if "shared_memory_region" in (tensor.get(_PARAMETERS) or {}):
            raise NotUnderstoodError("inputs in shared memory")
        if size is None:
            raw = _raw(datatype, _flat(tensor.get("data")))
        else:
            if not isinstance(size, int) or not 0 <= size <= len(rest):
                raise NotUnderstoodError("a binary input of another length than it says")
            raw, rest = bytes(rest[:size]), rest[size:]
        _add(request, name, datatype, shape, raw)
    return request


def copy_parameters(request: Any, parameters: Any) -> None:
    """Those that are numbers, texts or truths; what they mean is Triton's affair."""
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        match value:
            case bool():
                request.parameters[name].bool_param = value
            case int() if abs(value) < 2**63:
                request.parameters[name].int64_param = value
            case str():
                request.parameters[name].string_param = value


def _add(request: Any, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(raw)


def _raw(datatype: str, values: list[Any]) -> bytes:
    try:
        if datatype == _BYTES:
            texts = [str(value).encode("utf-8", "surrogatepass") for value in values]
            array = np.empty(len(texts), dtype=object)
            array[:] = texts
            return raw_content(array, _BYTES)
        return raw_content(np.array(values, dtype=NUMPY_OF[datatype]), datatype)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise NotUnderstoodError(f"an input that is no {datatype}") from error


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise NotUnderstoodError("its body is no JSON") from error
    if not isinstance(found, dict):
        raise NotUnderstoodError("its body is no object")
    return found


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_TENSORS:
        raise NotUnderstoodError("it has no inputs")
    return value


def _flat(value: Any) -> list[Any]:
    """Data of any depth, in order."""
    found: list[Any] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += reversed(one)
        else:
            found.append(one)
    return found
