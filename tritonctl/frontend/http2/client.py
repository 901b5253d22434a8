# SPDX-License-Identifier: Apache-2.0
"""A client whose streams of text cost little: those over our own HTTP/2, all else over grpc.aio.

gRPC for Python hands each response from a thread of its own to the event loop, which costs more
than all that the frontend does with it: docs/explanation/decisions/20-the-frontends-own-http2.md.
"""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from tritonctl.frontend.http2.call import Call
from tritonctl.frontend.http2.channel import Channel
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.connection import STREAM_METHOD, AsyncConnection, Metadata


class StreamingConnection(AsyncConnection):
    """Streams go out on a connection of their own."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        read = service_pb2.ModelStreamInferResponse.FromString
        self._streams = Channel(endpoint, STREAM_METHOD, read)

    def stream(self, request: Any, *, seconds: float | None, metadata: Metadata = ()) -> Call:
        """As AsyncConnection's."""
        return self._streams.call(
            request.SerializeToString(), seconds=seconds, metadata=self._all(False, metadata)
        )

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled."""
        await self._streams.close()
        await super().close()


class StreamingClient(AsyncTritonClient):
    """AsyncTritonClient, for a process that does nothing but pass on what streams bring."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return StreamingConnection(endpoint)
