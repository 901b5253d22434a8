# SPDX-License-Identifier: Apache-2.0
"""The servers behind the frontend, and how one is chosen for a request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from tritonctl.frontend.config import FrontendConfig
from tritonctl.protocol.channel import client_tls
from tritonctl.protocol.client import AsyncTritonClient

# url → a client for it, which goes on at the others when a stream breaks.
Connect = Callable[[str], AsyncTritonClient]


@dataclass(frozen=True)
class Replica:
    """A server that answers."""

    url: str
    client: AsyncTritonClient


class Router(Protocol):
    """Chooses a replica for each request, and counts the request's work while it lasts."""

    def choose(
        self, model: str, *, work: float = 0.0, prefix_hash: int | None = None
    ) -> AbstractAsyncContextManager[Replica]:
        """For a request of so much work: tokens of its prompt and of the expected answer."""

    async def close(self) -> None:
        """Close the connections."""


class FirstServer:
    """The first server takes everything; broken streams go on at the others, or at itself."""

    def __init__(self, config: FrontendConfig, connect: Connect | None = None) -> None:
        url = config.servers[0]
        self._replica = Replica(url, (connect or connecting(config))(url))

    @asynccontextmanager
    async def choose(
        self,
        model: str,  # noqa: ARG002 - there is no choice
        *,
        work: float = 0.0,  # noqa: ARG002
        prefix_hash: int | None = None,  # noqa: ARG002
    ) -> AsyncIterator[Replica]:
        """The one."""
        yield self._replica

    async def close(self) -> None:
        """Close its connections."""
        await self._replica.client.close()


def connecting(config: FrontendConfig) -> Connect:
    """Clients for the configured servers."""
    tls = client_tls(config.tls)

    def connect(url: str) -> AsyncTritonClient:
        others = tuple(each for each in config.servers if each != url)
        return AsyncTritonClient(url, tls=tls, api_key=config.api_key, resume_on=others or url)

    return connect
