# SPDX-License-Identifier: Apache-2.0
"""Build valid requests from a model's configuration alone."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tritonclient.grpc import service_pb2

from tritonctl.protocol.datatypes import BY_CONFIG_NAME
from tritonctl.protocol.model_config import Config
from tritonctl.protocol.sampling_table import sampling_parameters
from tritonctl.protocol.tensors import raw_content

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_BF16_ONE = 0x3F80
# Values for required tensors of text ensembles, tritonctl's and NVIDIA's.
_DEFAULT_VALUES: Mapping[str, Any] = {
    **{name: parameter.neutral for name, parameter in sampling_parameters().items()},
    "top_k": 1,
    "length_penalty": 1.0,
    "min_length": 1,
    "beam_width": 1,
    "end_id": -1,
    "pad_id": 0,
    "stop_words": b"",
    "bad_words": b"",
    "return_log_probs": False,
    "return_context_logits": False,
    "return_generation_logits": False,
}
# A PNG of one pixel, the smallest valid image.
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mNocFAAAAIkAOGVpLGLAAAAAElFTkSuQmCC"
)
_TEXTS = {"image": _PIXEL}
_MAX_LISTED_VALUES = 32


def valid_inputs(
    config: Config,
    *,
    batch: int = 1,
    open_dimension: int = 1,
    optional: bool = False,
    extra_length: int = 0,
    fill: int = 1,
) -> Arrays:
    """Return the smallest valid input, filled with one value.

    open_dimension: size of every open dimension. extra_length: added in ragged inputs, whose sizes
    may differ in a batch. fill: 1 or 0, as a text for strings.
    """
    batch_shape = [batch] if int(config.get("max_batch_size", 0)) else []
    arrays: Arrays = {}
    for tensor in config.get("input", ()):
        if tensor.get("optional") and not optional:
            continue
        size = open_dimension + (extra_length if tensor.get("allow_ragged_batch") else 0)
        dims = [size if int(dim) < 1 else int(dim) for dim in tensor["dims"]]
        arrays[tensor["name"]] = _filled_array(
            [*batch_shape, *dims], tensor["data_type"], tensor["name"], fill
        )
    return arrays


def _filled_array(shape: list[int], data_type: str, name: str, fill: int = 1) -> NDArray[Any]:
    kind = BY_CONFIG_NAME[data_type].numpy
    if kind == "object":
        return np.full(shape, _TEXTS.get(name, b"%d" % fill), dtype=object)
    if kind is None:  # BF16, as its bits
        return np.full(shape, fill * _BF16_ONE, dtype="uint16")
    return np.full(shape, fill, dtype=kind)


def has_open_dimensions(config: Config) -> bool:
    """Whether a required input may have more than one shape."""
    return any(
        int(dim) < 1
        for tensor in config.get("input", ())
        if not tensor.get("optional")
        for dim in tensor["dims"]
    )


def is_text(config: Config) -> bool:
    """Whether the model maps text to text, with the tensor names of NVIDIA's clients."""
    inputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("input", ())}
    outputs = {tensor["name"]: tensor["data_type"] for tensor in config.get("output", ())}
    return inputs.get("text_input") == outputs.get("text_output") == "TYPE_STRING"


def text_inputs(config: Config, prompt: str, **values: Any) -> Arrays:
    """Return a prompt and these values as far as the model has inputs for them; greedy, seed 0."""
    known_values: dict[str, Any] = {
        "text_input": prompt.encode(),
        "random_seed": 0,
        "exclude_input_in_output": True,
    }
    # vLLM's backend takes its parameters as JSON.
    tokens = int(values.get("max_tokens", 1))
    known_values["sampling_parameters"] = json.dumps(
        {"max_tokens": tokens, "temperature": 0}
    ).encode()
    known_values |= values
    batch = [1] if int(config.get("max_batch_size", 0)) else []
    arrays: Arrays = {}
    for tensor in config.get("input", ()):
        name, data_type = tensor["name"], tensor["data_type"]
        shape = [*batch, *(max(1, int(dim)) for dim in tensor["dims"])]
        value = known_values.get(
            name, None if tensor.get("optional") else _DEFAULT_VALUES.get(name)
        )
        if value is not None:
            kind = BY_CONFIG_NAME[data_type].numpy or "uint16"
            arrays[name] = np.full(shape, value, dtype=kind)
        elif not tensor.get("optional"):
            arrays[name] = _filled_array(shape, data_type, name)
    return arrays


def request_of(
    model: str,
    config: Config,
    arrays: Mapping[str, NDArray[Any]],
    *,
    stream: bool = False,
    outputs: tuple[str, ...] = (),
) -> Any:
    """Build the ModelInferRequest; without `outputs`, it requests all of them."""
    request = service_pb2.ModelInferRequest(model_name=model)
    wires = {t["name"]: BY_CONFIG_NAME[t["data_type"]].wire for t in config.get("input", ())}
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=wires[name], shape=array.shape)
        request.raw_input_contents.append(raw_content(array, wires[name]))
    for name in outputs:
        request.outputs.add(name=name)
    if stream:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def as_json(request: Any, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Convert a request to the protocol's JSON form; long tensors are truncated."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "data": [_plain(item) for item in arrays[tensor.name].reshape(-1)[:_MAX_LISTED_VALUES]],
        }
        for tensor in request.inputs
    ]
    return {"model_name": request.model_name, "inputs": inputs}


def _plain(item: Any) -> Any:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return item.item() if hasattr(item, "item") else item


def sequence_parameters(config: Config) -> tuple[dict[str, Any], ...]:
    """Return the parameters of a sequence's first, middle and last request."""
    number = secrets.randbits(48) + 1  # no other client uses it
    controls = [
        control
        for tensor in config["sequence_batching"].get("control_input", ())
        for control in tensor.get("control", ())
    ]
    kinds = {c.get("kind", "CONTROL_SEQUENCE_START"): c.get("data_type") for c in controls}
    has_text_ids = kinds.get("CONTROL_SEQUENCE_CORRID") == "TYPE_STRING"
    identity = f"tritonctl-smoke-{number}" if has_text_ids else number
    return tuple(
        {"sequence_id": identity, "sequence_start": start, "sequence_end": end}
        for start, end in ((True, False), (False, False), (False, True))
    )


def set_parameters(request: Any, parameters: Mapping[str, Any]) -> None:
    """Set Triton's request parameters."""
    for name, value in parameters.items():
        if isinstance(value, bool):
            request.parameters[name].bool_param = value
        elif isinstance(value, int):
            request.parameters[name].int64_param = value
        else:
            request.parameters[name].string_param = value
