# SPDX-License-Identifier: Apache-2.0
"""A connection to a Triton server: channel, stub, metadata, and errors that say what to do.

    with Connection(Endpoint("127.0.0.1:8001")) as connection:
        answer = connection.ask(service_pb2.ModelReadyRequest(name="speller"), seconds=5.0)

Whatever tritonctl asks of Triton over gRPC goes through here. A call's name is that of its request:
the protocol names them ModelReady and ModelReadyRequest.
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
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.error_map import PROJECT_SERVER, Advice, explained
from tritonctl.protocol.http2.blocking import BlockingChannel
from tritonctl.protocol.http2.channel import open_channel as cheapest_channel

Metadata = Sequence[tuple[str, str]]

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

# W3C Trace Context: version, trace, parent, flags.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

# A server ends a call within milliseconds of its last response, unless it has lost track of it.
_END_SECONDS = 1.0


def traced(traceparent: str | None) -> Metadata:
    """What makes a call part of a trace. Raises UsageError."""
    if traceparent is None:
        return ()
    if not _TRACEPARENT.fullmatch(traceparent):
        raise UsageError(
            f"traceparent {traceparent!r} is not of the form version-trace-parent-flags",
            remedy="give for example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
    return (("traceparent", traceparent),)


def await_end(call: Any) -> None:
    """Wait, not for long, until the server ends a stream whose last response has come.

    tritonserver 2.51 keeps 8 to 20 KB of each call that is cancelled while it is about to end it,
    and may crash in it (decision 7).
    """
    with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
        call.exception(timeout=_END_SECONDS)


async def await_end_async(call: Any) -> None:
    """The same for a call of grpc.aio."""
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
        # A stream of ours has one request. Declared so, gRPC sends its header, message and end in
        # one operation instead of three, with a thread for none; on the wire it is the same.
        self._stream = streams.unary_stream(
            f"/{_SERVICE.full_name}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    def explained(self, error: Any) -> TritonctlError:
        """Our error for a grpc.RpcError of this connection."""
        return explained(error, self.url, self._advice)

    def send(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """Start a call that has one response; the stub's own result, and its grpc.RpcError.

        admin: with the server's token, for what Triton restricts.
        """
        return self._method(request)(request, timeout=seconds, metadata=self._all(admin, metadata))

    def stream(self, request: Any, *, seconds: float | None, metadata: Metadata = ()) -> Any:
        """Start a stream of responses: iterate over it, cancel it; it raises grpc.RpcError."""
        return self._stream(request, timeout=seconds, metadata=self._all(False, metadata))

    def _method(self, request: Any) -> Any:
        return getattr(self._stub, type(request).__name__.removesuffix("Request"))

    def _all(self, admin: bool, metadata: Metadata) -> Metadata:
        return (*(self._admin_metadata if admin else self._metadata), *metadata)


class Connection(_Connection):
    """A synchronous connection. Safe to share between threads; close it when done.

    `advice`: what an error tells the user to do when the server cannot be reached.
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
        """Close the channels; calls under way are cancelled."""
        self._streams.close()
        self._channel.close()

    def ask(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """The response to a request. Raises the TritonctlError that the error map has for it."""
        try:
            return self.send(request, seconds=seconds, admin=admin, metadata=metadata)
        except grpc.RpcError as error:
            raise self.explained(error) from error

    def start(self, request: Any, *, seconds: float | None, metadata: Metadata = ()) -> Any:
        """A call under way: its `result()` raises grpc.RpcError, `cancel()` ends it."""
        sent = self._all(False, metadata)
        return self._method(request).future(request, timeout=seconds, metadata=sent)


class AsyncConnection(_Connection):
    """The same for asyncio; use it within one event loop.

    open_channel: makes one of grpc.aio's channels, or what can be used as one.
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
        """Close the channel; calls under way are cancelled."""
        await self._channel.close()

    async def ask(
        self, request: Any, *, seconds: float | None, admin: bool = False, metadata: Metadata = ()
    ) -> Any:
        """As `Connection.ask`."""
        try:
            return await self.send(request, seconds=seconds, admin=admin, metadata=metadata)
        except grpc.RpcError as error:
            raise self.explained(error) from error
