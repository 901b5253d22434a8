# SPDX-License-Identifier: Apache-2.0
"""TC82x: whether a request fits into a message.

Sources: https://github.com/triton-inference-server/server/pull/8174 (`--http-max-input-size`) and
https://protobuf.dev/programming-guides/proto-limits/ (2 GiB, of which gRPC's messages are made).
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from tritonctl.checks.analysis.declared import Tensor, batches, inputs, outputs
from tritonctl.checks.analysis.stub_memory import tensor_bytes
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning
from tritonctl.host.units import human_bytes

_HTTP_BYTES = 1 << 26
_GRPC_BYTES = (1 << 31) - 1
# The option came between 25.06 and this release, 25.08.
_LIMITED_SINCE = Version("2.60.0")


def _bytes(tensor: Tensor) -> int:
    """At least: dimensions that vary count as 1, a text as its length alone."""
    return tensor_bytes(tensor.dtype, tensor.dims or (), longest=1, string_bytes=4)


@warning(
    "TC820 too-large-for-http",
    summary="a model whose smallest request is over the HTTP endpoint's limit",
    why="Triton refuses HTTP requests over 64 MiB unless it is started with --http-max-input-size.",
)
def over_http(model: Model, repository: Repository) -> Iterator[Hit]:
    version = repository.target.version
    if not inputs(model) or version is None or Version(version) < _LIMITED_SINCE:
        return
    needed = [tensor for tensor in inputs(model) if not tensor.optional]
    size = sum(_bytes(tensor) for tensor in needed)
    if _HTTP_BYTES < size <= _GRPC_BYTES:
        # The next power of two: the JSON around the tensors needs some room.
        larger = 1 << (size + (1 << 16)).bit_length()
        yield Hit(
            f"one request takes {_sum(needed, size)}: HTTP requests over "
            f"{human_bytes(_HTTP_BYTES)} are refused",
            f"start the server with --http-max-input-size={larger}, or use gRPC",
            _dims(model, needed),
        )


def _sum(tensors: list[Tensor], size: int) -> str:
    listed = [f"{one.name} {human_bytes(_bytes(one))}" for one in sorted(tensors, key=_bytes)[::-1]]
    return human_bytes(size) + (f" ({', '.join(listed[:3])})" if len(listed) > 1 else "")


def _dims(model: Model, tensors: list[Tensor]) -> Span:
    """Where the largest of them says how large it is."""
    largest = max(tensors, key=_bytes)
    return model.config.span(*largest.path, "dims")


@warning(
    "TC821 too-large-for-grpc",
    summary="a model whose smallest request or answer is over 2 GiB",
    why="protobuf, of which gRPC's messages are made, ends there; over HTTP Triton refuses far "
    "smaller ones.",
)
def over_grpc(model: Model) -> Iterator[Hit]:
    if not inputs(model):
        return
    needed = [tensor for tensor in inputs(model) if not tensor.optional]
    for what, tensors in (("request", needed), ("answer", list(outputs(model)))):
        size = sum(_bytes(tensor) for tensor in tensors)
        if size > _GRPC_BYTES:
            yield Hit(
                f"one {what} takes {_sum(tensors, size)}: gRPC messages end at 2 GiB",
                "let clients use shared memory, or divide the tensor",
                _dims(model, tensors),
            )


@advice(
    "TC822 batch-too-large",
    summary="a max_batch_size that no request can have",
    why="Triton would take a request of that many, and no message carries it.",
)
def full_batch(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    if not inputs(model) or not batches(model) or any(over_grpc(model)):
        return
    most = config.message.max_batch_size
    needed = [tensor for tensor in inputs(model) if not tensor.optional]
    size = sum(_bytes(tensor) for tensor in needed)
    if size * most > _GRPC_BYTES:
        yield Hit(
            f"a request of {most} takes {most} × {human_bytes(size)} = {human_bytes(size * most)}: "
            f"gRPC messages end at 2 GiB, with {_GRPC_BYTES // size} of them",
            "lower max_batch_size, or let clients send less at once and Triton make the batches",
            config.span("max_batch_size"),
        )
