# SPDX-License-Identifier: Apache-2.0
"""Triton's gRPC protocol for callers, synchronous and asynchronous: text as it comes, tensors.

    with TritonClient("127.0.0.1:8001") as client:
        for chunk in client.stream("speller", "7342 in English:"):
            print(chunk.text, end="")

With `resume_on` an answer whose server dies goes on at another endpoint, with the same text as an
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

from tritonctl.errors import ServerError, StepGoneError
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls, Endpoint, headers_of
from tritonctl.protocol.connection import (
    AsyncConnection,
    Connection,
    Metadata,
    await_end,
    await_end_async,
    traced,
)
from tritonctl.protocol.error_map import connection_broke
from tritonctl.protocol.generation import (
    FIRST_COME,
    Chunk,
    Generation,
    Prompt,
    Queueing,
    SamplingParameters,
)
from tritonctl.protocol.resuming import Itinerary, ResumableAnswer, Route
from tritonctl.protocol.silence import SilentServerError, listening
from tritonctl.protocol.task_client import AsyncTaskCalls, TaskCalls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tritonctl.protocol.tasks import ServedTask

_PROBE_SECONDS = 5.0
_GREEDY = SamplingParameters()
_C = TypeVar("_C", Connection, AsyncConnection)


class _Client(ABC, Generic[_C]):
    """What both clients share: everything but waiting."""

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
        self._tls, self._api_key, self._headers = tls, api_key, headers_of(headers)
        self._route = Route.of(url, resume_on, max_resumes)
        self._connections: dict[str, _C] = {
            each: self._connect(self._endpoint(each)) for each in self._route.urls
        }
        self._served: dict[str, ServedTask] = {}

    def _endpoint(self, url: str) -> Endpoint:
        return Endpoint(url, self._tls, api_key=self._api_key, headers=self._headers)

    def _task_connection(self) -> _C:
        return self._connections[self.url]

    @staticmethod
    @abstractmethod
    def _connect(endpoint: Endpoint) -> _C: ...

    @contextmanager
    def _attempt(self, answer: ResumableAnswer, metadata: Metadata) -> Iterator[Any]:
        """The call for one endpoint's part of the answer, which learns how it ends."""
        connection = self._connections[answer.url]
        call = connection.stream(answer.request(), seconds=answer.seconds_left, metadata=metadata)
        try:
            yield call
            if not answer.complete:
                early = ServerError(
                    f"{answer.url} ended the stream before its final response",
                    remedy="look at `tritonctl logs`, then send the request again",
                )
                answer.broken(early, resumable=True)
        except (StepGoneError, SilentServerError) as error:
            answer.broken(error, resumable=True)
        except grpc.RpcError as error:
            answer.broken(connection.explained(error), resumable=connection_broke(error))
        finally:
            call.cancel()  # without effect on a finished call


class TritonClient(_Client[Connection], TaskCalls):
    """A client for one endpoint, `host:port`. Safe to share between threads.

    `tls`: certificates, for this endpoint and those of `resume_on`. `api_key`: the key of a
    gateway; it goes to other machines over TLS only, unless the key allows more. `headers`: go with
    each call, such as who asks (`rollout.user_header`).

    `resume_on`: further endpoints that serve the same model. An answer whose connection breaks goes
    on at the next one, round and round, at most `max_resumes` times (by default once for each; 30
    times on the same endpoint alone, half a minute in which a crashed server is started again),
    with pauses of up to a second once all have failed. An answer that was refused, cancelled, late,
    or ended by its server with an error does not. Greedy text is the text of an unbroken stream;
    sampled text goes on with fresh draws, whatever the seed.
    """

    @staticmethod
    def _connect(endpoint: Endpoint) -> Connection:
        return Connection(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; streams under way are cancelled."""
        for connection in self._connections.values():
            connection.close()

    def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError when the endpoint cannot be reached."""
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
        queueing: Queueing = FIRST_COME,
        traceparent: str | None = None,
    ) -> Iterator[Chunk]:
        """Yield the answer as it comes; leaving the loop early cancels the request.

        `prompt` is text to continue, or messages: `[{"role": "user", "content": "..."}]`.
        `timeout` is seconds for the whole stream; `queueing` says how the request waits for the
        engine; `traceparent` (W3C) makes it part of a trace where the server traces. Raises
        RequestRejectedError when Triton refuses the request, ServerBusyError when too many requests
        wait or this one waited too long, ServerError when Triton cannot be reached or dies.
        """
        answer = ResumableAnswer(self._route, model, prompt, sampling, queueing, timeout)
        metadata = traced(traceparent)
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
                    if answer.ended:
                        await_end(call)

    def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
        traceparent: str | None = None,
    ) -> Generation:
        """The whole answer with its timing; errors as in `stream`."""
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
        """The outputs of a model that answers once, by name, batch dimension first.

        `outputs`: only these. Texts come as bytes objects. Errors as in `stream`.
        """
        from tritonctl.protocol.tensors import infer_request, infer_response

        request = infer_request(model, inputs, outputs)
        response = self._connections[self.url].ask(
            request, seconds=timeout, metadata=traced(traceparent)
        )
        return infer_response(response)


class AsyncTritonClient(_Client[AsyncConnection], AsyncTaskCalls):
    """The same for asyncio; use it within one event loop."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return AsyncConnection(endpoint)

    def reach(self, url: str) -> None:
        """One more endpoint, with the TLS and the key of the others."""
        if url not in self._connections:
            self._connections[url] = self._connect(self._endpoint(url))

    def at(self, url: str) -> Self:
        """This client, asking another of its endpoints; they share their connections."""
        other = copy(self)
        other.url = url
        other._route = replace(self._route, urls=(url, *(u for u in self._route.urls if u != url)))
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; streams under way are cancelled."""
        for connection in self._connections.values():
            await connection.close()

    async def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError when the endpoint cannot be reached."""
        request = service_pb2.ModelReadyRequest(name=model)
        answer = await self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        return bool(answer.ready)

    async def model_config(self, model: str) -> dict[str, Any]:
        """The configuration that the server runs, ModelConfig's JSON form. Errors as `stream`."""
        from google.protobuf.json_format import MessageToDict

        request = service_pb2.ModelConfigRequest(name=model)
        answer = await self._connections[self.url].ask(request, seconds=_PROBE_SECONDS)
        config: dict[str, Any] = MessageToDict(answer.config, preserving_proto_field_name=True)
        return config

    async def server_ready(self, seconds: float = _PROBE_SECONDS) -> bool:
        """Whether the server takes requests. Raises ServerError without an answer in time."""
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
        queueing: Queueing = FIRST_COME,
        traceparent: str | None = None,
        route: Itinerary | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it comes; errors and cancellation as in `TritonClient.stream`.

        `route`: where to ask for this answer, among the client's endpoints, instead of at `url` and
        then those of `resume_on`.
        """
        answer = ResumableAnswer(route or self._route, model, prompt, sampling, queueing, timeout)
        metadata = traced(traceparent)
        while not answer.complete:
            if pause := answer.pause:  # else the loop would make a turn for nothing
                await asyncio.sleep(pause)
            with self._attempt(answer, metadata) as call:
                try:
                    with listening(call, answer.url, answer.patience, answer.leaves) as silence:
                        async for response in call:
                            if silence:
                                silence.heard()
                            chunk = answer.read(response)
                            if chunk is not None:
                                yield chunk
                            if answer.complete:
                                break
                            if silence:
                                silence.wait()
                finally:
                    if answer.ended:
                        await await_end_async(call)

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
        traceparent: str | None = None,
    ) -> Generation:
        """The whole answer with its timing; errors as in `stream`."""
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
        """The outputs of one answer, by name; as in `TritonClient.infer`."""
        from tritonctl.protocol.tensors import infer_request, infer_response

        request = infer_request(model, inputs, outputs)
        response = await self._connections[self.url].ask(
            request, seconds=timeout, metadata=traced(traceparent)
        )
        return infer_response(response)
