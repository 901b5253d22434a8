# SPDX-License-Identifier: Apache-2.0
"""Arrays to Triton's protocol and back; one inference against a server that plays Triton."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import ModelFailedError, RequestRejectedError, ServerBusyError
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.datatypes import TABLE
from tritonctl.protocol.tensors import infer_request, infer_response

ARRAYS = [np.zeros((2, 3), dtype=row.numpy) for row in TABLE if row.numpy not in (None, "object")]


def _echo(request: Any) -> Any:
    """What a model answers that copies its inputs."""
    response = service_pb2.ModelInferResponse(model_name=request.model_name)
    for tensor in request.inputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.extend(request.raw_input_contents)
    return response


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.name)
def test_every_type_there_and_back(array: Any) -> None:
    """Values, shape and type; also from memory that is not in order."""
    array = (np.arange(array.size).reshape(array.shape) % 2).astype(array.dtype)
    for given in (array, np.asfortranarray(array), array[:, ::2], array[:0]):
        (back,) = infer_response(_echo(infer_request("m", {"x": given}, ()))).values()
        assert back.dtype == given.dtype
        np.testing.assert_array_equal(back, given)


def test_texts_there_and_back() -> None:
    """str and bytes go, bytes come; empty ones and those with any byte in them too."""
    given = np.array([["näme", b"\xff\x00"], ["", "b"]], dtype=object)
    (back,) = infer_response(_echo(infer_request("m", {"x": given}, ()))).values()
    assert back.tolist() == [["näme".encode(), b"\xff\x00"], [b"", b"b"]]


def test_big_endian_arrays_arrive_as_numbers() -> None:
    """The protocol is little-endian."""
    given = np.array([[1, 2]], dtype=">i4")
    (back,) = infer_response(_echo(infer_request("m", {"x": given}, ()))).values()
    assert back.tolist() == [[1, 2]]


def test_bf16_comes_as_its_bits() -> None:
    """NumPy has no such type."""
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="y", datatype="BF16", shape=[1, 1])
    response.raw_output_contents.append(b"\x80\x3f")
    assert infer_response(response)["y"].tolist() == [[0x3F80]]


def test_a_type_that_triton_has_not() -> None:
    """Named, with a way out."""
    with pytest.raises(RequestRejectedError, match=r"input x: Triton has no .* complex128"):
        infer_request("m", {"x": np.zeros(1, dtype=complex)}, ())


class Actor(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Echoes; the model's name says how it fails."""

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """One answer."""
        if request.model_name == "full":
            context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
        if request.model_name == "unknown":
            context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model")
        if request.model_name == "broken":
            context.abort(grpc.StatusCode.INTERNAL, "the model broke")
        return _echo(request)


@pytest.fixture
def url() -> Iterator[str]:
    """A server on a port of its own."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Actor(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_infer(url: str) -> None:
    """Synchronous and asynchronous."""
    inputs = {"x": np.array([[1.5]], dtype=np.float32)}

    async def ask() -> dict[str, Any]:
        async with AsyncTritonClient(url) as client:
            return await client.infer("echo", inputs)

    with TritonClient(url) as client:
        assert client.infer("echo", inputs)["x"].tolist() == [[1.5]]
    assert asyncio.run(ask())["x"].tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("model", "error"),
    [("full", ServerBusyError), ("unknown", RequestRejectedError), ("broken", ModelFailedError)],
)
def test_what_went_wrong_is_told_apart(url: str, model: str, error: type[Exception]) -> None:
    """Too much at once, a wrong request, a broken model."""
    with TritonClient(url) as client, pytest.raises(error):
        client.infer(model, {"x": np.zeros((1, 1), dtype=np.float32)})
