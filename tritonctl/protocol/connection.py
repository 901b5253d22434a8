# SPDX-License-Identifier: Apache-2.0
"""A connection to a Triton server: channel, stub, metadata, and errors with remedies.

    with Connection(Endpoint("127.0.0.1:8001")) as connection:
        answer = connection.ask(service_pb2.ModelReadyRequest(name="speller"), seconds=5.0)

All of tritonctl's gRPC calls to Triton use it. The request's type determines the call: the protocol
names them ModelReady and ModelReadyRequest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tritonctl.errors import TritonctlError, UsageError
from tritonctl.http2.blocking import BlockingChannel
from tritonctl.http2.channel import Channel
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.error_map import PROJECT_SERVER, Advice, from_rpc_error

Metadata = Sequence[tuple[str, str]]

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

# W3C Trace Context: version, trace, parent, flags.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

# A server ends a call within milliseconds of its last response, unless it has lost the call.
_END_SECONDS = 1.0


def trace_metadata(traceparent: str | None) -> Metadata:
    """Return the metadata that makes a call part of a trace. Raises UsageError."""
    if traceparent is None:
        return ()
    if not _TRACEPARENT.fullmatch(traceparent):
        raise UsageError(
            f"traceparent {traceparent!r} is not of the form version-trace-parent-flags",
            remedy="give for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
    return (("traceparent", traceparent),)


def await_end(call: Any) -> None:
    """Wait briefly until the server ends a stream whose last response has arrived.

    tritonserver 2.51 leaks 8 to 20 KB, and may crash, if a call is cancelled while the server is
    about to end it (decision 7).
    """
    with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
        call.exception(timeout=_END_SECONDS)


async def await_end_async(call: Any) -> None:
    """As `await_end`, for a call of grpc.aio."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await call.code()


class _Connection:
    def __init__(self, endpoint: Endpoint, advice: Advice, channel: Any, streams: Any) -> None:
        self.url = endpoint.url
        self._advice = advice
        self._metadata = endpoint.metadata
        self._admin_metadata = endpoint.admin_metadata
        self._channel, self._streams = channel, streams
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        # Our streams have one request each. Declared as unary_stream, gRPC sends header, message
        # and end in one operation instead of three, without a thread; the wire format is the same.
        self._stream = streams.unary_stream(
            f"/{_SERVICE.full_name}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    def to_tritonctl_error(self, error: Any, model: str = "") -> TritonctlError:
        """Convert a grpc.RpcError of this connection; `model`: of an inference request."""
        return from_rpc_error(error, self.url, self._advice, model)

    def send(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """Start a call with one response; return the stub's result. Raises grpc.RpcError.

        admin: send the server's token, for restricted protocols.
        """
        return self._method(request)(
            request, timeout=seconds, metadata=self._call_metadata(admin, metadata)
        )

    def stream(self, request: Any, *, seconds: float | None, metadata: Metadata = ()) -> Any:
        """Start a stream of responses. Iterate over it or cancel it; it raises grpc.RpcError."""
        return self._stream(request, timeout=seconds, metadata=self._call_metadata(False, metadata))

    def _method(self, request: Any) -> Any:
        return getattr(self._stub, type(request).__name__.removesuffix("Request"))

    def _call_metadata(self, admin: bool, metadata: Metadata) -> Metadata:
        return (*(self._admin_metadata if admin else self._metadata), *metadata)


class Connection(_Connection):
    """A synchronous connection. Safe to share between threads; close it when done.

    `advice`: remedies for an unreachable server.
    """

    def __init__(self, endpoint: Endpoint, advice: Advice = PROJECT_SERVER) -> None:
        channel = endpoint.channel()
        streams = BlockingChannel(endpoint) if endpoint.is_direct else channel
        super().__init__(endpoint, advice, channel, streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channels and cancel running calls."""
        self._streams.close()
        self._channel.close()

    def ask(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """Return the response to a request. Raises the TritonctlError of the error map."""
        try:
            return self.send(request, seconds=seconds, admin=admin, metadata=metadata)
        except grpc.RpcError as error:
            model = getattr(request, "model_name", "")  # of ModelInferRequest only
            raise self.to_tritonctl_error(error, model) from error

    def start(self, request: Any, *, seconds: float | None, metadata: Metadata = ()) -> Any:
        """Start a call: its `result()` raises grpc.RpcError, `cancel()` ends it."""
        sent = self._call_metadata(False, metadata)
        return self._method(request).future(request, timeout=seconds, metadata=sent)


def cheapest_channel(endpoint: Endpoint) -> Any:
    """Open our own HTTP/2 channel, or grpc.aio's, which supports proxies and other addresses."""
    return Channel(endpoint) if endpoint.is_direct else endpoint.aio_channel()


class AsyncConnection(_Connection):
    """A connection for asyncio; use it within one event loop.

    open_channel: opens a grpc.aio channel, or a compatible object.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        advice: Advice = PROJECT_SERVER,
        open_channel: Callable[[Endpoint], Any] = cheapest_channel,
    ) -> None:
        channel = open_channel(endpoint)
        super().__init__(endpoint, advice, channel, channel)

    async def close(self) -> None:
        """Close the channel and cancel running calls."""
        await self._channel.close()

    async def ask(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """As `Connection.ask`."""
        try:
            return await self.send(request, seconds=seconds, admin=admin, metadata=metadata)
        except grpc.RpcError as error:
            model = getattr(request, "model_name", "")  # of ModelInferRequest only
            raise self.to_tritonctl_error(error, model) from error
