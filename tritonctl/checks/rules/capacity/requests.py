# SPDX-License-Identifier: Apache-2.0
"""TC82x: requests and responses that exceed the message size limits.

Sources: https://github.com/triton-inference-server/server/pull/8174 (`--http-max-input-size`) and
https://protobuf.dev/programming-guides/proto-limits/ (2 GiB, also the limit of gRPC messages).
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from tritonctl.checks.analysis.declared import DeclaredTensor, has_batch_dimension, inputs, outputs
from tritonctl.checks.analysis.stub_memory import tensor_bytes
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning
from tritonctl.checks.source_span import Span
from tritonctl.host.units import human_bytes

_HTTP_BYTES = 1 << 26
_GRPC_BYTES = (1 << 31) - 1
# The option was added after 25.06; this is release 25.08.
_FIRST_LIMITED_VERSION = Version("2.60.0")


def _min_tensor_bytes(tensor: DeclaredTensor) -> int:
    """Return the minimum size: variable dimensions count as 1, a string as its length field."""
    return tensor_bytes(tensor.dtype, tensor.dims or (), variable_size=1, string_bytes=4)


@warning(
    "TC820 too-large-for-http",
    summary="a model whose smallest request exceeds the HTTP endpoint's limit",
    reason="Triton refuses HTTP requests over 64 MiB unless it is started with "
    "--http-max-input-size.",
)
def over_http(model: Model, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if not inputs(model) or version is None or Version(version) < _FIRST_LIMITED_VERSION:
        return
    required = [tensor for tensor in inputs(model) if not tensor.optional]
    size = sum(_min_tensor_bytes(tensor) for tensor in required)
    if _HTTP_BYTES < size <= _GRPC_BYTES:
        # The next power of two leaves room for the JSON around the tensors.
        larger = 1 << (size + (1 << 16)).bit_length()
        yield Hit(
            f"one request takes {_size_text(required, size)}: HTTP requests over "
            f"{human_bytes(_HTTP_BYTES)} are refused",
            f"start the server with --http-max-input-size={larger}, or use gRPC",
            _largest_dims_span(model, required),
        )


def _size_text(tensors: list[DeclaredTensor], size: int) -> str:
    listed = [
        f"{tensor.name} {human_bytes(_min_tensor_bytes(tensor))}"
        for tensor in sorted(tensors, key=_min_tensor_bytes)[::-1]
    ]
    return human_bytes(size) + (f" ({', '.join(listed[:3])})" if len(listed) > 1 else "")


def _largest_dims_span(model: Model, tensors: list[DeclaredTensor]) -> Span:
    """Return the span of the largest tensor's dims."""
    largest = max(tensors, key=_min_tensor_bytes)
    return model.config.span(*largest.path, "dims")


@warning(
    "TC821 too-large-for-grpc",
    summary="a model whose smallest request or answer is over 2 GiB",
    reason="gRPC messages are protobuf messages, which are limited to 2 GiB. Over HTTP Triton "
    "refuses far smaller requests.",
)
def over_grpc(model: Model) -> Iterator[Hit]:
    if not inputs(model):
        return
    required = [tensor for tensor in inputs(model) if not tensor.optional]
    for kind, tensors in (("request", required), ("answer", list(outputs(model)))):
        size = sum(_min_tensor_bytes(tensor) for tensor in tensors)
        if size > _GRPC_BYTES:
            yield Hit(
                f"one {kind} takes {_size_text(tensors, size)}: gRPC messages are limited to 2 GiB",
                "let clients use shared memory, or split the tensor",
                _largest_dims_span(model, tensors),
            )


@advice(
    "TC822 batch-too-large",
    summary="a max_batch_size that no request can reach",
    reason="Triton accepts a request of that size, but no gRPC message can hold it.",
)
def full_batch(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not inputs(model) or not has_batch_dimension(model) or any(over_grpc(model)):
        return
    max_batch_size = config.message.max_batch_size
    required = [tensor for tensor in inputs(model) if not tensor.optional]
    size = sum(_min_tensor_bytes(tensor) for tensor in required)
    if size * max_batch_size > _GRPC_BYTES:
        yield Hit(
            f"a request of {max_batch_size} takes {max_batch_size} × {human_bytes(size)} = "
            f"{human_bytes(size * max_batch_size)}: "
            f"gRPC messages are limited to 2 GiB, {_GRPC_BYTES // size} of them",
            "lower max_batch_size, or let clients send smaller requests and Triton batch them",
            config.span("max_batch_size"),
        )
