# SPDX-License-Identifier: Apache-2.0
"""Requests and responses on the wire, over gRPC and HTTP."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from loadlib import grpc_wire, http_wire
from loadlib.failures import WireError, grpc_failure, rpc_failure, triton_failure
from loadlib.grpc_transport import GrpcTransport
from loadlib.plan import parse_plan
from loadlib.plan_types import GeneratorPlan
from loadlib.refusal import RunRefusedError
from loadlib.signature import Signature, check_inputs
from loadlib.workload import Workload
from tritonclient.grpc import service_pb2

SIGNATURE = Signature(
    {
        "text_input": ("BYTES", 2),
        "messages": ("BYTES", 2),
        "max_tokens": ("INT32", 2),
        "stream": ("BOOL", 2),
        "temperature": ("FP32", 2),
        "random_seed": ("UINT64", 2),
        "stop_words": ("BYTES", 2),
    },
    ("text_output", "num_input_tokens", "num_output_tokens", "cum_log_probs"),
)


def first_body(bodies: Any, plan: GeneratorPlan, signature: Signature = SIGNATURE) -> bytes:
    """The first request of a plan."""
    request = Workload(plan).planned_requests()[0]
    body = bodies(plan, signature).body(request.request_class, request.turns[0])
    assert isinstance(body, bytes)
    return body


def tensors(request: Any) -> dict[str, tuple[str, list[int], bytes]]:
    """Datatype, shape and content of each input."""
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def test_text_request(plan: dict[str, Any]) -> None:
    """Parts put one behind the other are one request, each tensor in the model's own type."""
    plan["classes"][0] |= {
        "order": "sequential",
        "priority": 2,
        "parameters": {"temperature": 0, "random_seed": 2**40, "stop_words": ["x", "yz"]},
    }
    request = service_pb2.ModelInferRequest.FromString(
        first_body(grpc_wire.GrpcBodies, parse_plan(plan))
    )
    assert request.model_name == "text"
    assert request.parameters["priority"].uint64_param == 2
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    assert tensors(request) == {
        "stream": ("BOOL", [1, 1], b"\1"),
        "temperature": ("FP32", [1, 1], struct.pack("<f", 0)),
        "random_seed": ("UINT64", [1, 1], struct.pack("<Q", 2**40)),
        "stop_words": ("BYTES", [1, 2], b"\1\0\0\0x\2\0\0\0yz"),
        "text_input": ("BYTES", [1, 1], struct.pack("<I", 13) + b"one two three"),
        "max_tokens": ("INT32", [1, 1], struct.pack("<i", 4)),
    }
    assert [output.name for output in request.outputs] == list(SIGNATURE.outputs[:3])


def test_a_model_without_batches(plan: dict[str, Any]) -> None:
    """Its tensors have one dimension."""
    flat = Signature({"text_input": ("BYTES", 1), "max_tokens": ("INT64", 1)}, ("text_output",))
    body = first_body(grpc_wire.GrpcBodies, parse_plan(plan), flat)
    found = tensors(service_pb2.ModelInferRequest.FromString(body))
    assert found["max_tokens"] == ("INT64", [1], struct.pack("<q", 4))
    assert set(found) == {"text_input", "max_tokens"}


@pytest.fixture
def tensor_plan(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Two tensors, one of them nested."""
    inputs = {
        "X": {"shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4.5]]},
        "S": {"shape": [1, 1], "datatype": "BYTES", "data": ["é"]},
    }
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps({"inputs": inputs}) + "\n", encoding="utf-8")
    return plan | {"kind": "tensors", "classes": [{"name": "x", "prompts": str(path)}]}


def test_tensor_request(tensor_plan: dict[str, Any]) -> None:
    """Row by row, little-endian; texts with their length in bytes."""
    body = first_body(grpc_wire.GrpcBodies, parse_plan(tensor_plan))
    assert tensors(service_pb2.ModelInferRequest.FromString(body)) == {
        "X": ("FP32", [2, 2], struct.pack("<4f", 1, 2, 3, 4.5)),
        "S": ("BYTES", [1, 1], b"\2\0\0\0\xc3\xa9"),
    }


def _with_length(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("a.txt", "é b", {"text_input": ([1, 1], ["é b"])}),
        ("a.jsonl", '{"text_input": "a"}', {"text_input": ([1, 1], ["a"])}),
        (
            "a.jsonl",
            '{"query": ["q", "q"], "text_input": ["a", "b"]}',
            {"query": ([2, 1], ["q", "q"]), "text_input": ([2, 1], ["a", "b"])},
        ),
        ("a.jsonl", '{"image": "cat.png"}', {"image": ([1, 1], ["data:image/*;base64,AAH/"])}),
        (
            "a.jsonl",
            '{"image": "cat.png", "label": "cat"}',
            {"image": ([1, 1], ["data:image/*;base64,AAH/"])},
        ),
    ],
)
def test_rows_of_texts(
    plan: dict[str, Any], tmp_path: Path, name: str, line: str, found: dict[str, Any]
) -> None:
    """For models of tasks: a text a line, texts by tensor, an image beside the file."""
    (tmp_path / name).write_text(line + "\n", encoding="utf-8")
    (tmp_path / "cat.png").write_bytes(b"\0\1\xff")
    asked = {"kind": "tensors", "classes": [{"name": "x", "prompts": str(tmp_path / name)}]}
    body = first_body(grpc_wire.GrpcBodies, parse_plan(plan | asked))
    assert tensors(service_pb2.ModelInferRequest.FromString(body)) == {
        tensor: (
            "BYTES",
            shape,
            b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts),
        )
        for tensor, (shape, texts) in found.items()
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"text_input": 3}', "1: text_input: 3 is neither a text nor a list of texts"),
        ('{"text_input": []}', "1: text_input: [] is neither a text"),
        ('{"query": "q", "text_input": ["a", "b"]}', "1: different numbers of rows"),
        ('{"image": "gone.png"}', "gone.png: No such file"),
    ],
)
def test_rows_that_are_none(plan: dict[str, Any], tmp_path: Path, line: str, told: str) -> None:
    """Refused with the line, before anything is sent."""
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    asked = {"kind": "tensors", "classes": [{"name": "x", "prompts": str(path)}]}
    with pytest.raises(RunRefusedError) as caught:
        Workload(parse_plan(plan | asked))
    assert told in caught.value.problem
    assert str(path) in caught.value.problem


def test_a_stream_of_a_model_that_answers_once(plan: dict[str, Any]) -> None:
    """An embedding takes text_input as well, and has no text to stream."""
    signature = Signature({"text_input": ("BYTES", 2)}, ("embedding", "truncated"))
    with pytest.raises(
        RunRefusedError, match=r"text, but text answers embedding, truncated"
    ) as caught:
        check_inputs(parse_plan(plan), signature)
    assert "set kind to tensors" in caught.value.remedy


def test_http_requests(plan: dict[str, Any], tensor_plan: dict[str, Any]) -> None:
    """JSON for generate_stream, generate and infer."""
    plan["endpoint"]["protocol"] = tensor_plan["endpoint"]["protocol"] = "http"
    plan["classes"][0] |= {"order": "sequential", "parameters": {"temperature": 0.5}}
    text = parse_plan(plan)
    assert json.loads(first_body(http_wire.HttpBodies, text)) == {
        "text_input": "one two three",
        "max_tokens": 4,
        "stream": True,
        "temperature": 0.5,
    }
    assert http_wire.path(text, text.classes[0]) == "/v2/models/text/generate_stream"
    plan["classes"][0]["stream"] = False
    whole = parse_plan(plan)
    assert http_wire.path(whole, whole.classes[0]) == "/v2/models/text/generate"
    unary = parse_plan(tensor_plan)
    assert [
        one["name"] for one in json.loads(first_body(http_wire.HttpBodies, unary))["inputs"]
    ] == ["X", "S"]
    assert http_wire.path(unary, unary.classes[0]) == "/v2/models/text/infer"


def test_unknown_parameter(plan: dict[str, Any]) -> None:
    """Told before anything is sent, with the nearest input of the model."""
    plan["classes"][0]["parameters"] = {"temprature": 0}
    with pytest.raises(RunRefusedError, match=r"classes\[0\]\.parameters\.temprature") as caught:
        check_inputs(parse_plan(plan), SIGNATURE)
    assert '"temperature"' in caught.value.remedy


def test_text_for_a_model_of_tensors(plan: dict[str, Any]) -> None:
    """What it takes, and how to send that."""
    signature = Signature({"X": ("FP32", 2), "S": ("BYTES", 2)}, ("Y",))
    with pytest.raises(
        RunRefusedError, match=r"kind: text, but text takes tensors: S, X"
    ) as caught:
        check_inputs(parse_plan(plan), signature)
    assert "set kind to tensors" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_tensors_that_the_model_does_not_take(tensor_plan: dict[str, Any]) -> None:
    """Those of all prompts are looked at before anything is sent."""
    plan = parse_plan(tensor_plan)
    tensors = Workload(plan).tensors
    assert tensors == ["S", "X"]
    check_inputs(plan, Signature({"X": ("FP32", 2), "S": ("BYTES", 2)}, ("Y",)), tensors)
    with pytest.raises(RunRefusedError, match=r"inputs\.X: not an input of text"):
        check_inputs(plan, SIGNATURE, ["X"])


def streamed(outputs: dict[str, bytes], *, final: bool | None = None) -> bytes:
    """A serialised response."""
    response = service_pb2.ModelStreamInferResponse()
    for name, raw in outputs.items():
        response.infer_response.outputs.add(name=name)
        response.infer_response.raw_output_contents.append(raw)
    if final is not None:
        response.infer_response.parameters["triton_final_response"].bool_param = final
    return bytes(response.SerializeToString())


def text_of(text: str) -> bytes:
    """As a BYTES element."""
    return struct.pack("<I", len(text.encode())) + text.encode()


def test_counted_tokens() -> None:
    """num_output_tokens is of the whole stream: a response may bring several, or none."""
    reader = grpc_wire.StreamReader(keep_text=True)
    new = []
    for count, text in ((1, "a"), (4, "bé"), (4, "")):
        outputs = {"text_output": text_of(text), "num_output_tokens": struct.pack("<i", count)}
        outputs["num_input_tokens"] = struct.pack("<i", 9)
        new.append(reader.feed(streamed(outputs, final=False)))
    assert (new, reader.final) == ([1, 3, 0], False)
    assert reader.feed(streamed({}, final=True)) == 0
    assert (reader.final, reader.text, reader.input_tokens) == (True, "abé", 9)
    assert not reader.uncounted


def test_uncounted_tokens() -> None:
    """A model that does not count: each response with text is one token."""
    reader = grpc_wire.StreamReader()
    new = [reader.feed(streamed({"text_output": text_of(text)})) for text in ("a", "", "bc")]
    assert (new, reader.output_tokens, reader.input_tokens) == ([1, 0, 1], 2, None)
    assert reader.uncounted
    events = http_wire.EventReader()
    assert events.feed(b'data: {"text_output":"a"}\ndata: {"text_output":""}\n') == [1, 0]
    assert events.uncounted


def test_an_error_in_a_stream() -> None:
    """Triton's words, and the status they stand for."""
    message = "in ensemble 'm', Exceeds maximum queue size"
    content = service_pb2.ModelStreamInferResponse(error_message=message).SerializeToString()
    with pytest.raises(WireError) as caught:
        grpc_wire.StreamReader().feed(content)
    assert caught.value.failure == ("UNAVAILABLE", message)


class Refusing:
    """A call that answers with an error; `events` is what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def read(self) -> bytes:
        """Triton's words."""
        response = service_pb2.ModelStreamInferResponse(error_message="no")
        return bytes(response.SerializeToString())

    async def code(self) -> None:
        """The server has ended it."""
        self.events.append("ended")

    def cancel(self) -> None:
        """As grpc.aio's."""
        self.events.append("cancelled")


def test_a_refused_stream_is_ended_by_the_server(plan: dict[str, Any]) -> None:
    """A cancel at that moment stays in the memory of tritonserver 2.51."""

    class Listener:
        keeps_text = False
        stopped = False

    async def run() -> list[str]:
        transport = GrpcTransport(parse_plan(plan))
        call = Refusing()
        with pytest.raises(WireError):
            await transport._read_stream_text(
                call,
                Listener(),  # type: ignore[arg-type]
                grpc_wire.StreamReader(),
            )
        await transport.close()
        return call.events

    assert asyncio.run(run()) == ["ended", "cancelled"]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Request for unknown model: 'x' is not found", "NOT_FOUND"),
        ("in ensemble 'm', Request timeout expired", "UNAVAILABLE"),
        ("Failed to process the request(s) for model instance 'm_0'", "INTERNAL"),
        ("unexpected inference input 'bogus' for model 'm'", "INVALID_ARGUMENT"),
    ],
)
def test_words_of_triton(message: str, kind: str) -> None:
    """Kinds of what streams tell."""
    assert triton_failure(message).kind == kind


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: refused", "connection"),
        ("UNAVAILABLE", "Socket closed", "connection"),
        ("INTERNAL", "Received RST_STREAM with error code 2", "connection"),
        ("UNAVAILABLE", "Exceeds maximum queue size", "UNAVAILABLE"),
        ("INVALID_ARGUMENT", "Socket closed is no model", "INVALID_ARGUMENT"),
    ],
)
def test_statuses(status: str, message: str, kind: str) -> None:
    """A broken connection is not the server's answer."""
    assert grpc_failure(status, message).kind == kind


def test_events_in_pieces() -> None:
    """Bytes come as they come, also cut within an event or a character."""
    events = [{"text_output": "é", "num_output_tokens": 1, "num_input_tokens": 5}]
    events += [{"text_output": "b", "num_output_tokens": 4, "num_input_tokens": 5}]
    lines = "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events)
    for size in (1, 7, 1000):
        reader, content = http_wire.EventReader(keep_text=True), lines.encode()
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        assert [tokens for piece in pieces for tokens in reader.feed(piece)] == [1, 3]
        assert (reader.text, reader.input_tokens) == ("éb", 5)
        assert not reader.uncounted


def test_http_errors() -> None:
    """Triton's JSON, an error event, or whatever a proxy says."""
    assert http_wire.http_failure(200, b"") is None
    assert http_wire.http_failure(404, b'{"error":"no model"}') == ("NOT_FOUND", "no model")
    assert http_wire.http_failure(400, b'data: {"error":"bad"}\n\n') == ("INVALID_ARGUMENT", "bad")
    assert http_wire.http_failure(502, b"<html>") == ("HTTP 502", "<html>")
    with pytest.raises(WireError, match="broke"):
        http_wire.EventReader().feed(b'data: {"error":"the model broke"}\n')


class Refused(grpc.RpcError):  # type: ignore[misc]
    """As gRPC raises it."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__()
        self.code = lambda: status
        self.details = lambda: message


def test_rpc_errors() -> None:
    """Too late is a timeout; what gRPC drops without a reason gets one."""
    late = rpc_failure(Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
    assert late == ("timeout", "Deadline Exceeded")
    dropped = rpc_failure(Refused(grpc.StatusCode.CANCELLED, "CANCELLED"))
    assert dropped.kind == "CANCELLED"
    assert "1,000 requests wait" in dropped.message
