# SPDX-License-Identifier: Apache-2.0
"""Triton's gRPC protocol for callers: readiness and streamed text, synchronous and asynchronous.

    with TritonClient("127.0.0.1:8001") as client:
        for chunk in client.stream("speller", "7342 in English:"):
            print(chunk.text, end="")

Built on tritonclient's generated stubs rather than its stream helper: one call per stream can be
iterated, cancelled and run beside others, and works under asyncio and gevent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import RequestRejectedError, ServerError, TritonctlError
from tritonctl.triton.generation import (
    FIRST_COME,
    Chunk,
    Generation,
    Prompt,
    Queueing,
    SamplingParameters,
    generation_request,
    read_chunk,
)

# Text may be long; the default of 4 MiB is gRPC's, not Triton's.
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_PROBE_SECONDS = 5.0
_GREEDY = SamplingParameters()


class TritonClient:
    """A client for one endpoint, `host:port`. Safe to share between threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.insecure_channel(url, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; streams under way are cancelled."""
        self._channel.close()

    def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError when the endpoint cannot be reached."""
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            return bool(self._stub.ModelReady(request, timeout=_PROBE_SECONDS).ready)
        except grpc.RpcError as error:
            raise _explained(error, self.url) from error

    def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
    ) -> Iterator[Chunk]:
        """Yield the answer as it comes; leaving the loop early cancels the request.

        `prompt` is text to continue, or messages: `[{"role": "user", "content": "..."}]`.
        `timeout` is seconds for the whole stream; `queueing` says how the request waits for the
        engine. Raises RequestRejectedError when Triton refuses the request, ServerBusyError when
        too many wait or this one has waited too long, ServerError when Triton cannot be reached or
        goes away.
        """
        call = self._stub.ModelStreamInfer(
            iter([generation_request(model, prompt, sampling, queueing=queueing)]), timeout=timeout
        )
        final = False
        try:
            for response in call:
                chunk, final = read_chunk(response)
                if chunk is not None:
                    yield chunk
                if final:
                    return
        except grpc.RpcError as error:
            raise _explained(error, self.url) from error
        finally:
            call.cancel()  # without effect on a finished stream
        raise _broken_off(self.url)

    def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
    ) -> Generation:
        """The whole answer with its timing; errors as in `stream`."""
        sent_ns = time.monotonic_ns()
        chunks = list(self.stream(model, prompt, sampling, timeout=timeout, queueing=queueing))
        return Generation.of(sent_ns, chunks)


class AsyncTritonClient:
    """The same for asyncio; use it within one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.aio.insecure_channel(url, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; streams under way are cancelled."""
        await self._channel.close()

    async def model_ready(self, model: str) -> bool:
        """Whether the model can answer. Raises ServerError when the endpoint cannot be reached."""
        request = service_pb2.ModelReadyRequest(name=model)
        try:
            return bool((await self._stub.ModelReady(request, timeout=_PROBE_SECONDS)).ready)
        except grpc.RpcError as error:
            raise _explained(error, self.url) from error

    async def stream(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
    ) -> AsyncIterator[Chunk]:
        """Yield the answer as it comes; errors and cancellation as in `TritonClient.stream`."""
        call = self._stub.ModelStreamInfer(
            iter([generation_request(model, prompt, sampling, queueing=queueing)]), timeout=timeout
        )
        try:
            async for response in call:
                chunk, final = read_chunk(response)
                if chunk is not None:
                    yield chunk
                if final:
                    return
        except grpc.RpcError as error:
            raise _explained(error, self.url) from error
        finally:
            call.cancel()  # without effect on a finished stream
        raise _broken_off(self.url)

    async def generate(
        self,
        model: str,
        prompt: Prompt,
        sampling: SamplingParameters = _GREEDY,
        *,
        timeout: float | None = None,
        queueing: Queueing = FIRST_COME,
    ) -> Generation:
        """The whole answer with its timing; errors as in `stream`."""
        sent_ns = time.monotonic_ns()
        chunks = [
            c
            async for c in self.stream(model, prompt, sampling, timeout=timeout, queueing=queueing)
        ]
        return Generation.of(sent_ns, chunks)


_REJECTED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def _explained(error: Any, url: str) -> TritonctlError:
    code, detail = error.code(), error.details() or ""
    if code in _REJECTED:
        return RequestRejectedError(
            f"Triton refused the request: {detail}",
            remedy="change the request as the message says; the server goes on",
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerError(
            f"{url} did not answer in time", remedy="allow more time, or look at `tritonctl logs`"
        )
    return ServerError(
        f"no answer from Triton at {url}: {code.name}: {detail}",
        remedy="check that it runs with `tritonctl status`; start it with `tritonctl up`",
    )


def _broken_off(url: str) -> ServerError:
    return ServerError(
        f"{url} ended the stream before its final response",
        remedy="look at `tritonctl logs`, then send the request again",
    )
