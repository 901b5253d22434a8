# SPDX-License-Identifier: Apache-2.0
"""The clients against a gRPC server that plays Triton: streams, refusals, broken connections."""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import RequestRejectedError, ServerBusyError, ServerError, StepGoneError
from tritonctl.protocol import connection
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import Generation, Queueing, SamplingParameters

pytestmark = pytest.mark.timed

Answer = Callable[[Any, Any], Iterator[Any]]


@dataclass
class Actor(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Plays Triton; `answer` is what it does with a stream."""

    url: str = ""
    requests: list[Any] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """One request in, responses out."""
        context.add_callback(self.cancelled.set)
        request = next(requests)
        self.requests.append(request)
        assert self.answer is not None
        yield from self.answer(request, context)

    def ModelReady(self, request: Any, _: Any) -> Any:  # noqa: N802
        """Only `speller` is ready."""
        return service_pb2.ModelReadyResponse(ready=request.name == "speller")


@pytest.fixture
def actor() -> Iterator[Actor]:
    """A server on a port of its own."""
    actor = Actor()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(actor, server)
    actor.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield actor
    server.stop(0).wait()


def _response(text: str, tokens: int, reason: str = "") -> Any:
    response = service_pb2.ModelStreamInferResponse()
    answer = response.infer_response
    for name, raw in (
        ("text_output", struct.pack("<I", len(text.encode())) + text.encode()),
        ("num_input_tokens", struct.pack("<i", 3)),
        ("num_output_tokens", struct.pack("<i", tokens)),
        ("finish_reason", struct.pack("<I", len(reason)) + reason.encode()),
    ):
        answer.outputs.add(name=name)
        answer.raw_output_contents.append(raw)
    return response


def _final() -> Any:
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


def _seven(request: Any, context: Any) -> Iterator[Any]:
    yield _response("se", 1)
    yield _response("ven", 2, "stop")
    yield _final()


def _sync(url: str, **options: Any) -> Generation:
    with TritonClient(url) as client:
        return client.generate("speller", "7", SamplingParameters(), **options)


def _async(url: str, **options: Any) -> Generation:
    async def run() -> Generation:
        async with AsyncTritonClient(url) as client:
            return await client.generate("speller", "7", SamplingParameters(), **options)

    return asyncio.run(run())


both = pytest.mark.parametrize("generate", [_sync, _async])
Generate = Callable[..., Generation]


@both
def test_generate(actor: Actor, generate: Generate) -> None:
    """Text, counts, reason and timing of a whole stream."""
    actor.answer = _seven
    whole = generate(actor.url)
    assert (whole.text, whole.num_output_tokens, whole.finish_reason) == ("seven", 2, "stop")
    assert whole.timing.ttft_ms is not None
    assert 0 < whole.timing.ttft_ms <= whole.timing.e2e_ms
    assert [tensor.name for tensor in actor.requests[0].inputs] == ["text_input", "stream"]


@both
def test_refusal_inside_the_stream(actor: Actor, generate: Generate) -> None:
    """Triton's message in an error of exit code 2."""
    actor.answer = lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message="too long")])
    with pytest.raises(RequestRejectedError, match="Triton refused the request: too long"):
        generate(actor.url)


@both
@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (
            "in ensemble 'speller', [request id: <id_unknown>] Exceeds maximum queue size",
            "UNAVAILABLE: speller has a full queue",
            "raise serving.queue.max_queue_size",
        ),
        (
            "[request id: <id_unknown>] Exceeds maximum queue size",
            "UNAVAILABLE: the model has a full queue",
            "send the request again later",
        ),
        (
            "in ensemble 'speller', Request timeout expired",
            "UNAVAILABLE: the request waited for speller until its queue timeout",
            "serving.queue.default_timeout_microseconds",
        ),
    ],
)
def test_the_queue_s_refusals(
    actor: Actor, generate: Generate, words: str, problem: str, remedy: str
) -> None:
    """Exit code 7: nothing is wrong with the request, and another time it will be answered."""
    actor.answer = lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=words)])
    with pytest.raises(ServerBusyError) as caught:
        generate(actor.url)
    assert caught.value.exit_code == 7
    assert caught.value.problem.startswith(problem)
    assert remedy in caught.value.remedy


@both
@pytest.mark.parametrize(
    "words",
    [
        "in ensemble 'speller', Stub process 'speller_engine_0_0' is not healthy.",
        "in ensemble 'speller', the client left: nothing receives its responses",
    ],
)
def test_a_step_whose_process_is_gone(actor: Actor, generate: Generate, words: str) -> None:
    """The server's fault, not the request's: exit code 7."""
    actor.answer = lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=words)])
    with pytest.raises(StepGoneError, match="lost a process of speller") as caught:
        generate(actor.url)
    assert caught.value.exit_code == 7
    assert "tritonctl logs" in caught.value.remedy


@both
def test_a_server_that_is_ending(actor: Actor, generate: Generate) -> None:
    """It refuses the steps of ensembles: nothing that the request could do better."""
    words = (
        "in ensemble 'speller', [request id: <id_unknown>] Server is stopping, scheduler for model "
        "has stopped accepting new inference requests"
    )
    actor.answer = lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=words)])
    with pytest.raises(StepGoneError, match="the server is ending") as caught:
        generate(actor.url)
    assert "another server" in caught.value.remedy


@both
def test_priority_and_queue_timeout_are_triton_s_parameters(
    actor: Actor, generate: Generate
) -> None:
    """Sent only where they are asked for; the timeout in microseconds, rounded up."""
    actor.answer = _seven
    generate(actor.url)
    generate(actor.url, queueing=Queueing(priority=2, timeout=0.0000011, tenant="alice"))
    plain, special = (request.parameters for request in actor.requests)
    assert not {"priority", "timeout", "tritonctl_tenant"} & set(plain)
    assert special["tritonctl_tenant"].string_param == "alice"
    assert (special["priority"].uint64_param, special["timeout"].int64_param) == (2, 2)


@both
@pytest.mark.parametrize(
    ("queueing", "problem"),
    [
        (Queueing(priority=0), "priority is 0, expected 1 or more"),
        (Queueing(priority=2**32), "priority is 4294967296"),
        (Queueing(timeout=0), "the queue timeout is 0 seconds"),
        (Queueing(timeout=-1.5), "the queue timeout is -1.5 seconds"),
        (Queueing(timeout=float("nan")), "the queue timeout is nan seconds"),
        (Queueing(timeout=86401), "at most 86400"),
    ],
)
def test_impossible_queueing(
    actor: Actor, generate: Generate, queueing: Queueing, problem: str
) -> None:
    """Refused before it is sent: Triton would take some of these for "none"."""
    with pytest.raises(RequestRejectedError, match=problem):
        generate(actor.url, queueing=queueing)
    assert actor.requests == []


@both
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Request for unknown model: 'x' is not found", "tritonctl status"),
        ("unexpected inference output 'finish_reason' for model 'x'", "tritonctl infer"),
        ("[request id: <id_unknown>] out of bounds index 0: request has 0 inputs", "text_input"),
        ("unexpected inference input 'text_input' for model 'x'", "tritonctl infer"),
        ("max_tokens is 0, expected at least 1.", "as the message says"),
    ],
)
def test_a_refusal_s_remedy(actor: Actor, generate: Generate, words: str, remedy: str) -> None:
    """For a wrong name it is another one; a request may fail by its stream and by its status."""

    def refuse(request: Any, context: Any) -> Iterator[Any]:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        yield

    for answer in (
        refuse,
        lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=words)]),
    ):
        actor.answer = answer
        with pytest.raises(RequestRejectedError, match=re.escape(words)) as caught:
            generate(actor.url)
        assert remedy in caught.value.remedy


@both
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "NOT_FOUND"])
def test_refusal_by_status(actor: Actor, generate: Generate, code: str) -> None:
    """An unknown model comes as a gRPC status."""

    def refuse(request: Any, context: Any) -> Iterator[Any]:
        context.abort(grpc.StatusCode[code], "unknown model 'x'")
        yield

    actor.answer = refuse
    with pytest.raises(RequestRejectedError, match="unknown model 'x'"):
        generate(actor.url)


@both
def test_a_tenant_beyond_its_limit(actor: Actor, generate: Generate) -> None:
    """Envoy's words: it is not that nobody answers, and later it will do."""

    def refuse(request: Any, context: Any) -> Iterator[Any]:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "local_rate_limited")
        yield

    actor.answer = refuse
    with pytest.raises(ServerBusyError, match="RESOURCE_EXHAUSTED: the gateway at") as caught:
        generate(actor.url)
    assert "requests_per_minute" in caught.value.remedy


@both
def test_server_error(actor: Actor, generate: Generate) -> None:
    """Anything else is the server's fault: exit code 7, code and words."""

    def fail(request: Any, context: Any) -> Iterator[Any]:
        context.abort(grpc.StatusCode.INTERNAL, "the engine is gone")
        yield

    actor.answer = fail
    with pytest.raises(ServerError, match="INTERNAL: the engine is gone") as caught:
        generate(actor.url)
    assert caught.value.exit_code == 7
    assert not isinstance(caught.value, RequestRejectedError)


@both
def test_stream_that_ends_too_early(actor: Actor, generate: Generate) -> None:
    """Half an answer is not passed off as a whole one."""
    actor.answer = lambda *_: iter([_response("se", 1)])
    with pytest.raises(ServerError, match="ended the stream before its final response"):
        generate(actor.url)


@both
def test_timeout(actor: Actor, generate: Generate) -> None:
    """A deadline for the whole stream, told as such; the request is cancelled."""

    def hang(request: Any, context: Any) -> Iterator[Any]:
        yield _response("se", 1)
        actor.cancelled.wait(60)

    actor.answer = hang
    for seconds in (1.0, 20.0):  # on a starved machine the first may be over before it is sent
        with pytest.raises(ServerError, match="did not answer in time"):
            generate(actor.url, timeout=seconds)
        if actor.requests:
            break
    assert actor.cancelled.wait(60)


@both
def test_nobody_there(generate: Generate) -> None:
    """A closed port: the address and what to start."""
    with pytest.raises(ServerError, match=r"no answer from Triton at 127\.0\.0\.1:1: ") as caught:
        generate("127.0.0.1:1")
    assert "tritonctl up" in caught.value.remedy


@both
@pytest.mark.parametrize("refused", [False, True])
def test_a_call_is_not_cancelled_while_the_server_ends_it(
    actor: Actor, generate: Generate, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tritonserver 2.51 keeps memory of each call that is, and crashes now and then."""
    monkeypatch.setattr(connection, "_END_SECONDS", 60.0)
    cancelled = []

    def dawdle(request: Any, context: Any) -> Iterator[Any]:
        if refused:
            yield service_pb2.ModelStreamInferResponse(error_message="too long")
        else:
            yield from _seven(request, context)
        cancelled.append(actor.cancelled.wait(0.3))

    actor.answer = dawdle
    with pytest.raises(RequestRejectedError) if refused else nullcontext():
        assert generate(actor.url).text == "seven"
    assert cancelled == [False]


@both
def test_a_call_that_its_server_does_not_end(
    actor: Actor, generate: Generate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is whole: the client waits no longer than a moment."""
    monkeypatch.setattr(connection, "_END_SECONDS", 0.1)

    def forget(request: Any, context: Any) -> Iterator[Any]:
        yield from _seven(request, context)
        actor.cancelled.wait(60)

    actor.answer = forget
    assert generate(actor.url).text == "seven"
    assert actor.cancelled.wait(60)


def test_leaving_the_loop_cancels_the_request(actor: Actor) -> None:
    """`break` frees the server at once."""

    def endless(request: Any, context: Any) -> Iterator[Any]:
        tokens = 0
        while not actor.cancelled.wait(0.01):
            tokens += 1
            yield _response("x", tokens)

    actor.answer = endless
    with TritonClient(actor.url) as client:
        stream = client.stream("speller", "7")
        assert next(iter(stream)).text == "x"
        stream.close()  # type: ignore[attr-defined]
        assert actor.cancelled.wait(60)


def test_model_ready(actor: Actor) -> None:
    """Readiness of one model, synchronous and asynchronous."""

    async def ask(model: str) -> bool:
        async with AsyncTritonClient(actor.url) as client:
            return await client.model_ready(model)

    with TritonClient(actor.url) as client:
        assert client.model_ready("speller")
        assert not client.model_ready("other")
    assert asyncio.run(ask("speller"))
    assert not asyncio.run(ask("other"))


def test_model_ready_of_nobody() -> None:
    """An endpoint that is not there is an error, not "not ready"."""
    with TritonClient("127.0.0.1:1") as client, pytest.raises(ServerError, match="no answer"):
        client.model_ready("speller")
