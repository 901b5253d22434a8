# SPDX-License-Identifier: Apache-2.0
"""Synchronous and asynchronous clients of Triton's gRPC protocol: streamed text and tensors.

    with TritonClient("127.0.0.1:8001") as client:
        for chunk in client.stream("speller", "7342 in English:"):
            print(chunk.text, end="")

With `resume_on`, another endpoint continues an answer whose server dies, with the same text as an
unbroken stream: `TritonClient("a:8001", resume_on=["b:8001"])`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import grpc
from tritonclient.grpc import service_pb2

from tritonctl.errors import RequestRejectedError, ServerError, StepGoneError, TritonctlError
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls, Endpoint, header_metadata
from tritonctl.protocol.connection import (
    AsyncConnection,
    Connection,
    Metadata,
    await_end,
    await_end_async,
    trace_metadata,
)
from tritonctl.protocol.error_map import connection_broke
from tritonctl.protocol.generation import (
    DEFAULT_QUEUEING,
    Chunk,
    Generation,
    Prompt,
    Queueing,
    SamplingParameters,
)
from tritonctl.protocol.resuming import Itinerary, ResumableAnswer, Route
from tritonctl.protocol.silence import SilentServerError, watch_silence
from tritonctl.protocol.task_client import AsyncTaskCalls, TaskCalls
from tritonctl.protocol.text_signature import TextSignature, is_mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tritonctl.protocol.tasks import ServedTask

_PROBE_SECONDS = 5.0
_GREEDY = SamplingParameters()
_C = TypeVar("_C", Connection, AsyncConnection)


class _Client(ABC, Generic[_C]):
    """The parts of both clients that do not wait."""

    def __init__(
        self,
        url: str,
        *,
        tls: ClientTls | None = None,
        api_key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        resume_on: str | Sequence[str] = (),
        max_resumes: int | None = None,
    ) -> None:
        self.url = url
        self._tls, self._api_key, self._headers = tls, api_key, header_metadata(headers)
        self._route = Route.of(url, resume_on, max_resumes)
        self._connections: dict[str, _C] = {
            each: self._connect(self._endpoint(each)) for each in self._route.urls
        }
        self._served_tasks: dict[str, ServedTask] = {}
        self._signatures: dict[str, TextSignature] = {}  # of text models of other makers

    def _endpoint(self, url: str) -> Endpoint:
        return Endpoint(url, self._tls, api_key=self._api_key, headers=self._headers)

    def _task_connection(self) -> _C:
        return self._connections[self.url]

    @staticmethod
    @abstractmethod
    def _connect(endpoint: Endpoint) -> _C: ...

    @contextmanager
    def _attempt(self, answer: ResumableAnswer, metadata: Metadata) -> Iterator[Any]:
        """Start the call for one endpoint's part of the answer, and report its end to `answer`."""
        connection = self._connections[answer.url]
        call = connection.stream(answer.request(), seconds=answer.seconds_left, metadata=metadata)
        try:
            yield call
            if not answer.complete:
                early = ServerError(
                    f"{answer.url} ended the stream before its final response",
                    remedy="look at `tritonctl logs`, then send the request again",
                )
                answer.on_break(early, resumable=True)
        except (StepGoneError, SilentServerError) as error:
            answer.on_break(error, resumable=True)
        except grpc.RpcError as error:
            # The status of a stream is the connection's: a model's error comes in a response.
            answer.on_break(connection.to_tritonctl_error(error), resumable=connection_broke(error))
        finally:
            call.cancel()  # without effect on a finished call


class TritonClient(_Client[Connection], TaskCalls):
    """A client for one endpoint, `host:port`. Safe to share between threads.

    `tls`: certificates for all endpoints. `api_key`: a gateway's key; other machines get it only
    over TLS, unless the key allows more. `headers`: sent with each call, such as the user's name
    (`rollout.user_header`).

    `resume_on`: further endpoints that serve the same model. If a connection breaks, the next
    endpoint continues the answer, in a cycle, at most `max_resumes` times. The default is once per
    endpoint, or 30 times for the same endpoint: half a minute, in which a crashed server restarts.
    After all endpoints have failed, the client pauses for up to a second. It does not resume
    answers that were refused, cancelled, timed out, or ended by the server with an error. Greedy
    text equals that of an unbroken stream; sampled text continues with new draws, with any seed.
    """

    @staticmethod
    def _connect(endpoint: Endpoint) -> Connection:
        return Connection(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and cancel running streams."""
        for connection in self._connections.values():
            connection.close()

    def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError if the endpoint is unreachable."""
        request = service_pb2.ModelReadyRequest(name=model)
        answer = self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        return bool(answer.ready)

    def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = DEFAULT_QUEUEING,
        traceparent: str | None = None,
    ) -> Iterator[Chunk]:
        """Yield the answer's chunks as they arrive; leaving the loop early cancels the request.

        `prompt` is text to continue, or messages: `[{"role": "user", "content": "..."}]`.
        `timeout` is seconds for the whole stream; `queueing` controls waiting for the engine;
        `traceparent` (W3C) makes the request part of a trace if the server traces. Raises
        RequestRejectedError if Triton refuses the request, ServerBusyError if the queue is full or
        the request waited too long, ServerError if Triton is unreachable or dies.
        """
        answer = ResumableAnswer(self._route, model, prompt, sampling, queueing, timeout)
        metadata = trace_metadata(traceparent)
        answer.signature = self._signatures.get(model)
        try:
            yield from self._chunks(answer, metadata)
        except RequestRejectedError as error:
            if answer.signature is not None or not is_mismatch(error):
                raise
            # Refused before it ran: ask again with the tensors that the model declares.
            answer.signature = self._read_signature(model, error)
            yield from self._chunks(answer, metadata)

    def _read_signature(self, model: str, refusal: RequestRejectedError) -> TextSignature:
        """Read a text model's tensors. Raises `refusal` if it has no text or does not tell."""
        request = service_pb2.ModelMetadataRequest(name=model)
        try:
            described = self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        except TritonctlError as error:
            raise refusal from error
        signature = TextSignature.of(described)
        if signature is None:
            raise refusal
        self._signatures[model] = signature
        return signature

    def _chunks(self, answer: ResumableAnswer, metadata: Metadata) -> Iterator[Chunk]:
        while not answer.complete:
            time.sleep(answer.pause)
            with self._attempt(answer, metadata) as call:
                try:
                    for response in call:
                        chunk = answer.read(response)
                        if chunk is not None:
                            yield chunk
                        if answer.complete:
                            break
                finally:
                    if answer.is_ending:
                        await_end(call)

    def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = DEFAULT_QUEUEING,
        traceparent: str | None = None,
    ) -> Generation:
        """Return the complete answer with its timing. Errors as in `stream`."""
        sent_ns = time.monotonic_ns()
        stream = self.stream(
            model, prompt, sampling, timeout=timeout, queueing=queueing, traceparent=traceparent
        )
        return Generation.of(sent_ns, list(stream))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str] = (),
        *,
        timeout: float | None = None,
        traceparent: str | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs of a model that answers once, by name, batch dimension first.

        `outputs`: names; all when empty. Texts are bytes objects. Errors as in `stream`.
        """
        from tritonctl.protocol.tensors import infer_request, infer_response

        request = infer_request(model, inputs, outputs)
        response = self._connections[self.url].ask(
            request, seconds=timeout, metadata=trace_metadata(traceparent)
        )
        return infer_response(response)


class AsyncTritonClient(_Client[AsyncConnection], AsyncTaskCalls):
    """A client for asyncio; use it within one event loop."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return AsyncConnection(endpoint)

    def reach(self, url: str) -> None:
        """Add an endpoint with the TLS settings and key of the others."""
        if url not in self._connections:
            self._connections[url] = self._connect(self._endpoint(url))

    def at(self, url: str) -> Self:
        """Return a copy that calls another endpoint; both share their connections."""
        client = copy(self)
        client.url = url
        client._route = replace(self._route, urls=(url, *(u for u in self._route.urls if u != url)))
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections and cancel running streams."""
        for connection in self._connections.values():
            await connection.close()

    async def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError if the endpoint is unreachable."""
        request = service_pb2.ModelReadyRequest(name=model)
        answer = await self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        return bool(answer.ready)

    async def model_config(self, model: str) -> dict[str, Any]:
        """Return the current configuration in ModelConfig's JSON form. Errors as in `stream`."""
        from google.protobuf.json_format import MessageToDict

        request = service_pb2.ModelConfigRequest(name=model)
        answer = await self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        config: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    async def server_ready(self, seconds: float = _PROBE_SECONDS) -> bool:
        """Whether the server accepts requests. Raises ServerError without an answer in time."""
        request = service_pb2.ServerReadyRequest()
        answer = await self._connections[self.url].ask(request, seconds=seconds)
        return bool(answer.ready)

    async def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = DEFAULT_QUEUEING,
        traceparent: str | None = None,
        route: Itinerary | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the answer's chunks; errors and cancellation as in `TritonClient.stream`.

        `route`: chooses among the client's endpoints, instead of `url` and `resume_on`.
        """
        answer = ResumableAnswer(route or self._route, model, prompt, sampling, queueing, timeout)
        metadata = trace_metadata(traceparent)
        while not answer.complete:
            if pause := answer.pause:  # skip a needless turn of the event loop
                await asyncio.sleep(pause)
            with self._attempt(answer, metadata) as call:
                try:
                    with watch_silence(
                        call, answer.url, answer.silence_limit, answer.should_leave
                    ) as silence:
                        async for response in call:
                            if silence:
                                silence.on_response()
                            chunk = answer.read(response)
                            if chunk is not None:
                                yield chunk
                            if answer.complete:
                                break
                            if silence:
                                silence.wait()
                finally:
                    if answer.is_ending:
                        await await_end_async(call)

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = DEFAULT_QUEUEING,
        traceparent: str | None = None,
    ) -> Generation:
        """Return the complete answer with its timing. Errors as in `stream`."""
        sent_ns = time.monotonic_ns()
        stream = self.stream(
            model, prompt, sampling, timeout=timeout, queueing=queueing, traceparent=traceparent
        )
        return Generation.of(sent_ns, [chunk async for chunk in stream])

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str] = (),
        *,
        timeout: float | None = None,
        traceparent: str | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return the outputs by name; as `TritonClient.infer`."""
        from tritonctl.protocol.tensors import infer_request, infer_response

        request = infer_request(model, inputs, outputs)
        response = await self._connections[self.url].ask(
            request, seconds=timeout, metadata=trace_metadata(traceparent)
        )
        return infer_response(response)
