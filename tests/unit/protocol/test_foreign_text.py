# SPDX-License-Identifier: Apache-2.0
"""Text models of other makers: fewer tensors, other ranks, one answer or many."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import RequestRejectedError, ServerError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Chunk, SamplingParameters, Timing

INPUTS = {"text_input": ("BYTES", [1]), "max_tokens": ("INT32", [1])}


@dataclass
class Foreign(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton with one model, as strict as it is about names and shapes."""

    inputs: Mapping[str, tuple[str, list[int]]] = field(default_factory=lambda: INPUTS)
    outputs: tuple[str, ...] = ("text_output",)
    texts: tuple[str, ...] = ("a", "", "b")
    breaks: bool = False
    asked: list[Any] = field(default_factory=list)

    def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002
        """The model's tensors."""
        response = service_pb2.ModelMetadataResponse(name=request.name)
        for name, (datatype, shape) in self.inputs.items():
            response.inputs.add(name=name, datatype=datatype, shape=shape)
        for name in self.outputs:
            response.outputs.add(name=name, datatype="BYTES", shape=[1])
        return response

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """An answer, or Triton's words for tensors that the model lacks."""
        request = next(requests)
        self.asked.append(request)
        if problem := self._problem(request):
            yield service_pb2.ModelStreamInferResponse(error_message=problem)
            return
        for number, text in enumerate(self.texts):
            response = service_pb2.ModelStreamInferResponse()
            answer = response.infer_response
            if "text_output" in self.outputs:
                answer.outputs.add(name="text_output", datatype="BYTES", shape=[1])
                answer.raw_output_contents.append(struct.pack("<I", len(text)) + text.encode())
            final = number + 1 == len(self.texts)
            answer.parameters["triton_final_response"].bool_param = final
            yield response
            if self.breaks:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def _problem(self, request: Any) -> str:
        for output in request.outputs:
            if output.name not in self.outputs:
                return f"unexpected inference output '{output.name}' for model 'm'"
        for tensor in request.inputs:
            if tensor.name not in self.inputs:
                return f"unexpected inference input '{tensor.name}' for model 'm'"
            if len(tensor.shape) != len(self.inputs[tensor.name][1]):
                return f"unexpected shape for input '{tensor.name}' for model 'm'"
        return ""


@pytest.fixture
def triton() -> Foreign:
    """To be changed by a test before its first request."""
    return Foreign()


@pytest.fixture
def client(triton: Foreign) -> Iterator[TritonClient]:
    """A client of it."""
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with TritonClient(f"127.0.0.1:{port}") as client:
        yield client
    server.stop(0).wait()


def test_a_model_with_text_alone(client: TritonClient, triton: Foreign) -> None:
    """Its text in order; responses with text are counted; the second request needs no refusal."""
    for requests in (2, 3):
        answer = client.generate("m", "hi", SamplingParameters(max_tokens=3))
        assert (answer.text, answer.num_output_tokens) == ("ab", 2)
        assert (answer.num_input_tokens, answer.finish_reason) == (0, "")
        assert len(triton.asked) == requests
    sent = {tensor.name: list(tensor.shape) for tensor in triton.asked[-1].inputs}
    assert sent == {"text_input": [1], "max_tokens": [1]}
    assert [output.name for output in triton.asked[-1].outputs] == ["text_output"]
    assert triton.asked[-1].raw_input_contents[0] == struct.pack("<I", 2) + b"hi"


def test_a_batching_model_of_one_answer(client: TritonClient, triton: Foreign) -> None:
    """Its batch dimension comes first; its stream flag is kept."""
    triton.inputs = {"text_input": ("BYTES", [-1, 1]), "stream": ("BOOL", [-1, 1])}
    triton.texts = ("whole",)
    assert client.generate("m", "hi").text == "whole"
    sent = {tensor.name: list(tensor.shape) for tensor in triton.asked[-1].inputs}
    assert sent == {"text_input": [1, 1], "stream": [1, 1]}


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"text_input": ("BYTES", [1])}, "m has no max_tokens"),
        (
            {"text_input": ("BYTES", [1]), "max_tokens": ("INT64", [1])},
            "m takes max_tokens as INT64, and the request has max_tokens as INT32",
        ),
        ({"PROMPT": ("BYTES", [1])}, "m has no text_input"),
    ],
)
def test_a_tensor_that_the_model_lacks(
    client: TritonClient,
    triton: Foreign,
    inputs: dict[str, tuple[str, list[int]]],
    problem: str,
) -> None:
    """Refused by name, with what the model takes: nothing that was asked for is dropped."""
    triton.inputs = inputs
    with pytest.raises(RequestRejectedError) as caught:
        client.generate("m", "hi", SamplingParameters(max_tokens=3))
    assert caught.value.problem == problem
    assert ", ".join(inputs) in caught.value.remedy


def test_a_model_without_text(client: TritonClient, triton: Foreign) -> None:
    """Triton's own words, and which command such a model answers to."""
    triton.outputs = ("scores",)
    with pytest.raises(RequestRejectedError, match="unexpected inference output") as caught:
        client.generate("m", "hi")
    assert "`tritonctl infer`" in caught.value.remedy


def test_a_broken_answer_is_not_begun_again(client: TritonClient, triton: Foreign) -> None:
    """Without token ids nothing can be resumed, and a second beginning would repeat the text."""
    triton.breaks = True
    with pytest.raises(ServerError, match="Socket closed"):
        client.generate("m", "hi")
    assert len(triton.asked) == 2, "the refused request and the one that broke"


def test_one_chunk_has_no_time_between_tokens() -> None:
    """Four tokens at once: the first wait, and no gap of nothing."""
    chunk = Chunk("a b c d", 3, 4, "stop", 2_000_000)
    timing = Timing.of(1_000_000, [chunk])
    assert (timing.ttft_ms, timing.itl_ms) == (1.0, None)
    more = Chunk(" e", 3, 5, "stop", 5_000_000)
    assert Timing.of(1_000_000, [chunk, more]).itl_ms == pytest.approx(3 / 4)
