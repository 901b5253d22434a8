# SPDX-License-Identifier: Apache-2.0
"""Copies of requests: how they come in, and what they ask, whatever way they were asked."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.unit.frontend.conftest import config_of
from tritonctl.errors import HostError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.protocol.generation import ChatPrompt, SamplingParameters, generation_request
from tritonctl.protocol.tensors import infer_request
from tritonctl.rollout.shadow.listening import (
    MAX_BYTES,
    CopyListener,
    GrpcFrames,
    RequestCopy,
    read_head,
)
from tritonctl.rollout.shadow.questions import (
    MAX_TOKENS,
    ServedModelFacts,
    question_of,
    shadow_request,
)
from tritonctl.rollout.shadow.recording import prompt_record
from tritonctl.rollout.shadow.rest_requests import NotUnderstoodError

GRPC = {"content-type": "application/grpc"}
JSON = {"content-type": "application/json"}
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def facts(
    inputs: dict[str, str], outputs: list[str], *, rows: int = 8, text: bool = False
) -> ServedModelFacts:
    """Of a model with these tensors."""
    metadata = service_pb2.ModelMetadataResponse(name="m", versions=["1"])
    for name, datatype in inputs.items():
        metadata.inputs.add(name=name, datatype=datatype, shape=[-1, 1])
    for name in outputs:
        metadata.outputs.add(name=name, datatype="FP32", shape=[-1, 1])
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=rows)
    config.model_transaction_policy.decoupled = text
    return ServedModelFacts.of(metadata, service_pb2.ModelConfigResponse(config=config))


SPELLER = facts(
    {
        "text_input": "BYTES",
        "messages": "BYTES",
        "max_tokens": "INT32",
        "temperature": "FP32",
        "stop_words": "BYTES",
        "stream": "BOOL",
        "random_seed": "UINT64",
        "return_log_probs": "BOOL",
    },
    [
        *("text_output", "output_ids", "num_input_tokens", "num_output_tokens", "finish_reason"),
        *("cum_log_probs", "output_log_probs"),
    ],
    rows=1,
    text=True,
)
ENCODER = facts({"text_input": "BYTES", "truncate": "BOOL"}, ["embedding"])
RERANKER = facts({"query": "BYTES", "text_input": "BYTES"}, ["score"])


def frame(message: bytes, *, compressed: bool = False) -> bytes:
    """As gRPC sends it."""
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def asked(
    copy: RequestCopy, known: ServedModelFacts, frontend: FrontendConfig | None = None
) -> dict[str, Any]:
    """What is asked again, by the names of its inputs."""
    question = question_of(copy, frontend)
    assert question is not None
    return prompt_record(shadow_request(question.request(known), known, seed=7), known)


class Envoy:
    """Speaks to a listener as Envoy does."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def send(self, *parts: bytes) -> bytes:
        """What is answered to these bytes, up to the end."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.005)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer


def taken(folder: Path, *parts: bytes) -> tuple[list[RequestCopy], bytes]:
    """The copies that a listener hands on, and what it answers."""
    copies: list[RequestCopy] = []

    async def go() -> bytes:
        socket = folder / "shadow" / "s"
        listener = CopyListener(socket, copies.append)
        await listener.start()
        assert socket.stat().st_mode & 0o777 == 0o600
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        answer = await Envoy(socket).send(*parts)
        await listener.close()
        assert not socket.exists()
        return answer

    return copies, asyncio.run(go())


def test_a_stream_of_grpc(tmp_path: Path) -> None:
    """Messages in pieces, chunked; each is a copy as soon as it is whole. Then the next request."""
    body = frame(b"one") + frame(b"two" * 100) + frame(gzip.compress(b"three"), compressed=True)
    pieces = [body[:2], body[2:7], body[7:40], body[40:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"POST /a HTTP/1.1\r\nContent-Type: application/grpc\r\ngrpc-encoding: gzip\r\n"
    request = head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    copies, answer = taken(tmp_path, request[:90], request[90:200], request[200:] + request)
    assert [copy.content for copy in copies] == [b"one", b"two" * 100, b"three"] * 2
    assert all(copy.is_grpc and copy.path == "/a" for copy in copies)
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_a_body_of_rest(tmp_path: Path) -> None:
    """With its length, or compressed."""
    packed = gzip.compress(b"{}")
    copies, _ = taken(
        tmp_path,
        b"POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        b"POST /y HTTP/1.1\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b"
        b"POST /z HTTP/1.1\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx"
        % (len(packed), packed),
    )
    assert [(copy.path, copy.content) for copy in copies] == [
        ("/x", b"abc"),
        ("/y", b"{}"),
        ("/z", None),
    ]


def test_what_is_too_long_is_read_and_dropped(tmp_path: Path) -> None:
    """It never stops reading: that would hold up the user's own stream."""
    long = b"x" * (MAX_BYTES + 1)
    bomb = frame(gzip.compress(b"0" * (2 * MAX_BYTES)), compressed=True)
    body = frame(long) + frame(b"after") + bomb
    head = b"content-type: application/grpc\r\ngrpc-encoding: gzip\r\n"
    copies, answer = taken(
        tmp_path,
        b"POST /x HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(long), long),
        b"POST /y HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body),
    )
    assert [copy.content for copy in copies] == [None, None, b"after", None]
    assert answer.count(b"200 OK") == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"POST /x HTTP/1.1\r\ncontent-length: many\r\n\r\n",
        b"POST /x HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /x HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc",
        b"G" * (200 << 10),
    ],
)
def test_what_is_no_http_is_hung_up_on(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is handed on; the log says so, without what was sent, and not of a hang-up."""
    assert taken(tmp_path, sent) == ([], b"")
    hung_up = sent.endswith(b"abc")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == (
        [] if hung_up else ["closed"]
    )
    assert not any(word in caplog.text for word in ("hello", "many", "zz", "GG"))


def test_frames_that_are_too_long_are_not_kept() -> None:
    """Whatever the pieces in which they come."""
    for size in (1, 1000, MAX_BYTES, 4 * MAX_BYTES):
        data = frame(b"a") + frame(b"b" * (MAX_BYTES + 5)) + frame(b"c")
        frames = GrpcFrames()
        pieces = [data[at : at + size] for at in range(0, len(data), size)] if size > 1 else [data]
        found = [message for piece in pieces for message in frames.feed(piece)]
        assert found == [(False, b"a"), None, (False, b"c")]


def test_heads() -> None:
    """Names in lower case."""
    path, headers = read_head(b"POST /p?q HTTP/1.1\r\nHost: a:b\r\nX-User: c \r\n\r\n")
    assert (path, headers) == ("/p?q", {"host": "a:b", "x-user": "c"})


def test_a_socket_whose_name_is_too_long(tmp_path: Path) -> None:
    """Said before Envoy says it."""
    listener = CopyListener(tmp_path / ("x" * 120), lambda _: None)
    with pytest.raises(HostError, match="at most 107 bytes"):
        asyncio.run(listener.start())


def test_a_text_by_grpc() -> None:
    """Without what was the asker's own; of a bounded length, with a seed, and with its tokens."""
    request = generation_request("m", "hello", SamplingParameters(max_tokens=999, temperature=0.5))
    request.id, request.model_version = "theirs", "3"
    request.parameters["priority"].uint64_param = 1
    question = question_of(RequestCopy(STREAM, GRPC, request.SerializeToString()), None)
    assert question is not None
    again = shadow_request(question.request(SPELLER), SPELLER, seed=7)
    assert (again.id, again.model_version, {*again.parameters}) == (
        "",
        "",
        {"tritonctl_shadow", "triton_enable_empty_final_response"},
    )
    assert prompt_record(again, SPELLER) == {
        "model": "m",
        "text_input": "hello",
        "stream": True,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.5,
        "random_seed": 7,
        "return_log_probs": True,
    }
    outputs = {output.name for output in again.outputs}
    assert outputs == {*SPELLER.outputs}


def test_a_seed_of_ones_own() -> None:
    """Is kept, and so is a shorter answer."""
    request = generation_request("m", "x", SamplingParameters(max_tokens=3, random_seed=5))
    found = asked(RequestCopy(STREAM, GRPC, request.SerializeToString()), SPELLER)
    assert (found["max_tokens"], found["random_seed"]) == (3, 5)


def test_a_text_by_generate() -> None:
    """A value or a list for each tensor; what is no tensor is left out."""
    body = {"text_input": "é", "max_tokens": 4, "stop_words": ["a", "b"], "parameters": {"x": 1}}
    for verb in ("generate", "generate_stream"):
        copy = RequestCopy(f"/v2/models/m/versions/3/{verb}", JSON, json.dumps(body).encode())
        found = asked(copy, SPELLER)
        assert found["text_input"] == "é"
        assert found["stop_words"] == ["a", "b"]
        assert found["max_tokens"] == 4


def test_rows_by_infer() -> None:
    """As JSON, and with binary tensors behind it."""
    texts: dict[str, Any] = {"name": "text_input", "datatype": "BYTES", "shape": [2, 1]}
    texts["data"] = [["a"], ["b"]]
    copy = RequestCopy("/v2/models/m/infer", JSON, json.dumps({"inputs": [texts]}).encode())
    assert asked(copy, ENCODER) == {"model": "m", "text_input": ["a", "b"]}
    del texts["data"]
    raw = b"".join(struct.pack("<I", 1) + one for one in (b"a", b"b"))
    texts["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [texts]}).encode()
    lengths = {**JSON, "inference-header-content-length": str(len(head))}
    copy = RequestCopy("/v2/models/m/infer", lengths, head + raw)
    assert asked(copy, ENCODER) == {"model": "m", "text_input": ["a", "b"]}


def test_rows_by_grpc() -> None:
    """Of a rerank a query with documents; only the task's outputs are asked for."""
    inputs = {
        "query": np.array([["q"], ["q"]], dtype=object),
        "text_input": np.array([["a"], ["b"]], dtype=object),
    }
    request = infer_request("m", inputs, ["score", "num_input_tokens"])
    copy = RequestCopy(INFER, GRPC, request.SerializeToString())
    assert asked(copy, RERANKER) == {"model": "m", "query": "q", "documents": ["a", "b"]}
    question = question_of(copy, None)
    assert question is not None
    again = shadow_request(question.request(RERANKER), RERANKER, seed=1)
    assert [output.name for output in again.outputs] == ["score"]


def test_a_conversation_of_the_frontend() -> None:
    """As the frontend would ask it: aliases, the chat template's variables, the sampling."""
    config = config_of("m", aliases={"gpt": "m"})
    body = {
        "model": "gpt",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.25,
        "n": 2,
        "stream": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    copy = RequestCopy("/v1/chat/completions", JSON, json.dumps(body).encode())
    found = asked(copy, SPELLER, config)
    assert found["messages"] == {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert (found["max_tokens"], found["temperature"]) == (5, 0.25)


@pytest.mark.parametrize(
    ("path", "body", "known", "wanted"),
    [
        (
            "/v1/responses",
            {"input": "hi", "instructions": "Be brief.", "max_output_tokens": 5},
            SPELLER,
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hi"},
                ],
                "max_tokens": 5,
            },
        ),
        (
            "/v1/completions",
            {"prompt": ["a", "b"]},
            SPELLER,
            {"text_input": "a", "max_tokens": 16},
        ),
        (
            "/v1/embeddings",
            {"input": ["a", "b"], "truncate": True},
            ENCODER,
            {"text_input": ["a", "b"], "truncate": [True, True]},
        ),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a", {"text": "b"}]},
            RERANKER,
            {"query": "q", "documents": ["a", "b"]},
        ),
    ],
)
def test_other_questions_of_the_frontend(
    path: str, body: dict[str, Any], known: ServedModelFacts, wanted: dict[str, Any]
) -> None:
    """Each as its tensors."""
    copy = RequestCopy(path, JSON, json.dumps({"model": "m", **body}).encode())
    found = asked(copy, known, config_of("m"))
    assert {name: found[name] for name in wanted} == wanted


def test_what_asks_no_model() -> None:
    """Metadata, the list of models; the frontend's paths where the project has none."""
    assert question_of(RequestCopy("/v1/models", JSON, b""), config_of("m")) is None
    assert question_of(RequestCopy("/v1/completions", JSON, b"{}"), None) is None
    assert question_of(RequestCopy("/v2/models/m/ready", JSON, b""), None) is None
    assert question_of(RequestCopy("/inference.X/ModelReady", GRPC, b""), None) is None


def sequence() -> bytes:
    """Of a model with a state."""
    request = generation_request("m", "x", SamplingParameters())
    request.parameters["sequence_id"].int64_param = 1
    return bytes(request.SerializeToString())


def in_memory() -> bytes:
    """Whose input is in shared memory."""
    request = service_pb2.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    tensor.parameters["shared_memory_region"].string_param = "r"
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("copy", "known", "why"),
    [
        (RequestCopy(STREAM, GRPC, None), SPELLER, "too long"),
        (RequestCopy(STREAM, GRPC, b"\xff\xff\xff"), SPELLER, "not a ModelInferRequest"),
        (RequestCopy(STREAM, GRPC, sequence()), SPELLER, "sequence"),
        (RequestCopy(STREAM, GRPC, in_memory()), SPELLER, "shared memory"),
        (RequestCopy("/v2/models/m/infer", JSON, b"["), ENCODER, "not JSON"),
        (RequestCopy("/v2/models/m/infer", JSON, b"[" * 100_000), ENCODER, "not JSON"),
        (RequestCopy("/v2/models/m/infer", JSON, b"{}"), ENCODER, "no inputs"),
        (RequestCopy("/v2/models/m/infer", JSON, b'{"inputs": [{}]}'), ENCODER, "without name"),
        (RequestCopy("/v2/models/m/generate", JSON, b'{"max_tokens": "x"}'), SPELLER, "not INT32"),
        (
            RequestCopy("/v2/models/m/infer", {"inference-header-content-length": "9"}, b"{}"),
            ENCODER,
            "declared length",
        ),
        (
            RequestCopy("/v2/models/m/infer", {"inference-header-content-length": "x"}, b"{}"),
            ENCODER,
            "invalid JSON length",
        ),
    ],
)
def test_what_cannot_be_asked_again(copy: RequestCopy, known: ServedModelFacts, why: str) -> None:
    """Is left, in words that quote nothing."""
    with pytest.raises(NotUnderstoodError, match=why):
        asked(copy, known)


def test_what_the_frontend_would_refuse() -> None:
    """Is left, too: another model, a field that nobody knows."""
    for body in (b'{"model": "other", "input": "x"}', b'{"model": "m", "input": 1}', b"["):
        with pytest.raises(NotUnderstoodError, match="the frontend refuses it"):
            question_of(RequestCopy("/v1/embeddings", JSON, body), config_of("m"))


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}],
)
def test_what_does_not_come_as_json(headers: dict[str, str]) -> None:
    """The frontend refuses it, whatever it says: its asker has no answer to compare with."""
    body = b'{"model": "m", "input": "x"}'
    with pytest.raises(NotUnderstoodError, match="the frontend refuses it: media_type"):
        question_of(RequestCopy("/v1/embeddings", headers, body), config_of("m"))
    also = {"content-type": "Application/JSON; charset=utf-8"}
    assert question_of(RequestCopy("/v1/embeddings", also, body), config_of("m")) is not None


def test_conversations_are_recorded_as_they_are() -> None:
    """Not as a text within a text."""
    request = generation_request("m", ChatPrompt([{"role": "user"}]), SamplingParameters())
    assert prompt_record(request, SPELLER)["messages"] == {"messages": [{"role": "user"}]}
