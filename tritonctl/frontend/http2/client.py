# SPDX-License-Identifier: Apache-2.0
"""A client whose calls cost little: over our own HTTP/2 in place of grpc.aio's channels.

gRPC for Python hands each response from a thread of its own to the event loop, which costs more
than all that the frontend does with it: docs/explanation/decisions/20-the-frontends-own-http2.md.
"""

from __future__ import annotations

from tritonctl.frontend.http2.channel import Channel
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.connection import AsyncConnection


class StreamingClient(AsyncTritonClient):
    """AsyncTritonClient, for a process that does nothing but pass on what streams bring."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return AsyncConnection(endpoint, open_channel=Channel)
