# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's serialised responses: a text ensemble and an identity model.

Stream responses combine cached bytes: concatenated protobuf messages merge, so the cached response
of token n and the request's id form a complete one. This keeps the mock cheap, so that a benchmark
saturates the generator and not the mock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tritonclient.grpc import service_pb2

_WORD = "word "
_TEXT_INPUTS = (
    ("text_input", "BYTES"),
    ("messages", "BYTES"),
    ("max_tokens", "INT32"),
    ("stream", "BOOL"),
    ("temperature", "FP32"),
    ("top_k", "INT32"),
    ("top_p", "FP32"),
    ("random_seed", "UINT64"),
    ("min_tokens", "INT32"),
    ("stop_words", "BYTES"),
)
_TEXT_OUTPUTS = (
    ("text_output", "BYTES"),
    ("num_input_tokens", "INT32"),
    ("num_output_tokens", "INT32"),
    ("finish_reason", "BYTES"),
)


def stream_inputs(request: Any) -> tuple[int | None, bool, int]:
    """Return max_tokens, whether to stream, and the prompt's number of words."""
    contents = {
        tensor.name: (raw, tensor)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=False)
    }
    if not contents:  # tensors as typed fields, as grpcurl sends them
        return _typed_inputs(request)
    text = next((contents[n][0][4:] for n in ("text_input", "messages") if n in contents), b"")
    max_tokens = contents.get("max_tokens")
    stream = contents.get("stream")
    limit = struct.unpack("<i", max_tokens[0][:4])[0] if max_tokens else None
    return limit, bool(stream and stream[0][:1] == b"\x01"), len(text.split())


def _typed_inputs(request: Any) -> tuple[int | None, bool, int]:
    typed = {tensor.name: tensor.contents for tensor in request.inputs}
    limit = typed["max_tokens"].int_contents[0] if "max_tokens" in typed else None
    stream = "stream" in typed and typed["stream"].bool_contents[0]
    text = typed["text_input"].bytes_contents[0] if "text_input" in typed else b""
    return limit, bool(stream), len(text.split())


def stream_response(
    request: Any, words: int, tokens: tuple[int, int], last: bool, cut: bool
) -> bytes:
    """Serialise a response; `tokens` are (new, total), `cut` means ended by max_tokens."""
    finish = ("length" if cut else "stop") if last else ""
    return _encode_text_chunk(request.model_name, words, *tokens, finish) + _id(request.id)


@lru_cache(maxsize=4096)
def _encode_text_chunk(
    model: str, words: int, new_tokens: int, total_tokens: int, finish: str
) -> bytes:
    response = service_pb2.ModelStreamInferResponse()
    answer = response.infer_response
    answer.model_name, answer.model_version = model, "1"
    answer.parameters["triton_final_response"].bool_param = bool(finish)
    for (name, datatype), raw in zip(
        _TEXT_OUTPUTS,
        (
            _string(_WORD * new_tokens),
            struct.pack("<i", words),
            struct.pack("<i", total_tokens),
            _string(finish),
        ),
        strict=True,
    ):
        answer.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        answer.raw_output_contents.append(raw)
    return bytes(response.SerializeToString())


@lru_cache(maxsize=4096)
def _id(request_id: str) -> bytes:
    if not request_id:
        return b""
    answer = service_pb2.ModelInferResponse(id=request_id)
    return bytes(service_pb2.ModelStreamInferResponse(infer_response=answer).SerializeToString())


def stream_error(request: Any, message: str) -> bytes:
    """Serialise an error as Triton does: a message in a stream that continues."""
    response = service_pb2.ModelStreamInferResponse(error_message=message)
    response.infer_response.id = request.id
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())


def unary_response(request: Any) -> bytes:
    """Return the first input as output: INPUT0 as OUTPUT0."""
    response = service_pb2.ModelInferResponse(
        model_name=request.model_name, model_version="1", id=request.id
    )
    for tensor in request.inputs[:1]:
        output = response.outputs.add(
            name=tensor.name.replace("INPUT", "OUTPUT"),
            datatype=tensor.datatype,
            shape=tensor.shape,
        )
        if not request.raw_input_contents:
            output.contents.CopyFrom(tensor.contents)
    response.raw_output_contents.extend(request.raw_input_contents[:1])
    return bytes(response.SerializeToString())


def metadata(model: str, text: bool) -> Any:
    """Return the ModelMetadata of the text model or the identity model."""
    inputs = _TEXT_INPUTS if text else (("INPUT0", "FP32"),)
    outputs = _TEXT_OUTPUTS if text else (("OUTPUT0", "FP32"),)
    response = service_pb2.ModelMetadataResponse(name=model, versions=["1"], platform="mock")
    for name, datatype in inputs:
        response.inputs.add(name=name, datatype=datatype, shape=[-1, 1 if text else -1])
    for name, datatype in outputs:
        response.outputs.add(name=name, datatype=datatype, shape=[-1, 1 if text else -1])
    return response


def config(model: str, text: bool, batch: int) -> Any:
    """Return the ModelConfig fields that clients read."""
    response = service_pb2.ModelConfigResponse()
    answer = response.config
    answer.name, answer.platform, answer.max_batch_size = model, "mock", batch
    answer.model_transaction_policy.decoupled = text
    metadata_response = metadata(model, text)
    for tensor in metadata_response.inputs:
        data_type = _config_type(tensor.datatype)
        dims = list(tensor.shape[1:])
        optional = text and tensor.name != "text_input"
        answer.input.add(name=tensor.name, data_type=data_type, dims=dims, optional=optional)
    for tensor in metadata_response.outputs:
        dims = list(tensor.shape[1:])
        answer.output.add(name=tensor.name, data_type=_config_type(tensor.datatype), dims=dims)
    return response


def index(models: Iterable[str]) -> Any:
    """Return a RepositoryIndex with every model ready."""
    response = service_pb2.RepositoryIndexResponse()
    for name in models:
        response.models.add(name=name, version="1", state="READY")
    return response


def _config_type(datatype: str) -> str:
    return "TYPE_" + {"BYTES": "STRING"}.get(datatype, datatype)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw
