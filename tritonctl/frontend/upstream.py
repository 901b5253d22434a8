# SPDX-License-Identifier: Apache-2.0
"""The servers behind the frontend: clients, router, counters of prompts, made from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.counting.expected import ExpectedOutput
from tritonctl.frontend.counting.prompts import PromptCounter
from tritonctl.frontend.routing.pools import Pool
from tritonctl.frontend.routing.router import Router, Settings
from tritonctl.frontend.routing.watch import Upstream, Watch
from tritonctl.host import bundled
from tritonctl.protocol.channel import Endpoint, client_tls
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.connection import AsyncConnection
from tritonctl.protocol.http2.channel import Channel

_LOG = logging.getLogger("tritonctl.frontend")
_MOST_RESPONSE_BYTES = 64 << 20
# url → a client for it.
Connect = Callable[[str], AsyncTritonClient]


class StreamingClient(AsyncTritonClient):
    """As everybody's, with bounds; it never asks a proxy, which stands in front of a frontend."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return AsyncConnection(endpoint, open_channel=_bounded)


def _bounded(endpoint: Endpoint) -> Channel:
    return Channel(endpoint, _MOST_RESPONSE_BYTES)


class Servers:
    """All replicas: which one takes a request, how long its prompt is there, how they are."""

    def __init__(self, config: FrontendConfig, connect: Connect | None = None) -> None:
        self._client = (connect or connecting(config))(config.servers[0])
        pools = {
            model: [
                Pool(name, frozenset(pool.upstreams), pool.most_tokens)
                for name, pool in named.items()
            ]
            for model, named in config.pools.items()
        }
        settings = Settings(
            affinity=config.settings.prefix_affinity,
            silence_seconds=config.settings.silence_seconds,
            fallbacks=frozenset(config.fallbacks),
        )
        urls = (*config.servers, *config.fallbacks)
        self.router = Router(self._client, urls, pools, settings)
        self.counter = PromptCounter(config.repository, _library(), _LOG.warning)
        self.expected = ExpectedOutput()
        upstreams = [
            Upstream(host, int(port), config.metrics_ports.get(url))
            for url in urls
            for host, _, port in [url.rpartition(":")]
        ]
        self._watch = Watch(
            self.router, self._client, upstreams, config.models, self.counter, _LOG.info
        )

    async def open(self) -> None:
        """Look at them for the first time."""
        await self._watch.start()

    async def close(self) -> None:
        """Close connections, end processes."""
        await self._watch.close()
        await self.counter.close()
        await self._client.close()


def _library() -> Path | None:
    """What counts prompts; None where it was not installed."""
    try:
        return bundled.find("python_backends/countlib").parent
    except ConfigurationError:
        return None


def connecting(config: FrontendConfig) -> Connect:
    """Clients for the configured servers."""
    tls = client_tls(config.tls)
    return lambda url: StreamingClient(url, tls=tls, api_key=config.api_key)
