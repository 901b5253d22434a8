# SPDX-License-Identifier: Apache-2.0
"""The servers behind the frontend: clients, router and prompt counter, built from its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.counting.expected_output import ExpectedOutput
from tritonctl.frontend.counting.prompts import PromptCounter
from tritonctl.frontend.routing.pools import ReplicaPool
from tritonctl.frontend.routing.router import Router, RoutingSettings
from tritonctl.frontend.routing.watch import ReplicaWatch, UpstreamServer
from tritonctl.host import bundled
from tritonctl.http2.channel import Channel
from tritonctl.protocol.channel import Endpoint, client_tls
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.connection import AsyncConnection

_LOG = logging.getLogger("tritonctl.frontend")
_MAX_RESPONSE_BYTES = 64 << 20
# url → a client for it.
ClientFactory = Callable[[str], AsyncTritonClient]


class StreamingClient(AsyncTritonClient):
    """A client with response limits. It uses no proxy: proxies belong in front of a frontend."""

    @staticmethod
    def _connect(endpoint: Endpoint) -> AsyncConnection:
        return AsyncConnection(endpoint, open_channel=_open_bounded_channel)


def _open_bounded_channel(endpoint: Endpoint) -> Channel:
    return Channel(endpoint, _MAX_RESPONSE_BYTES)


class TritonServers:
    """All replicas, with their router, prompt counter and health watch."""

    def __init__(self, config: FrontendConfig, connect: ClientFactory | None = None) -> None:
        self._client = (connect or client_factory(config))(config.servers[0])
        pools = {
            model: [
                ReplicaPool(name, frozenset(pool.upstreams), pool.most_tokens)
                for name, pool in model_pools.items()
            ]
            for model, model_pools in config.pools.items()
        }
        settings = RoutingSettings(
            affinity=config.settings.prefix_affinity,
            silence_seconds=config.settings.silence_seconds,
            fallbacks=frozenset(config.fallbacks),
        )
        urls = (*config.servers, *config.fallbacks)
        self.router = Router(self._client, urls, pools, settings)
        self.counter = PromptCounter(config.repository, _counting_library(), _LOG.warning)
        self.expected = ExpectedOutput()
        upstreams = [
            UpstreamServer(host, int(port), config.metrics_ports.get(url))
            for url in urls
            for host, _, port in [url.rpartition(":")]
        ]
        self._watch = ReplicaWatch(
            self.router, self._client, upstreams, config.models, self.counter, _LOG.info
        )

    async def open(self) -> None:
        """Resolve and check the replicas, then keep watching them."""
        await self._watch.start()

    async def close(self) -> None:
        """Close connections and end the counting processes."""
        await self._watch.close()
        await self.counter.close()
        await self._client.close()


def _counting_library() -> Path | None:
    """The folder that contains countlib; None if it is not installed."""
    try:
        return bundled.find("python_backends/countlib").parent
    except ConfigurationError:
        return None


def client_factory(config: FrontendConfig) -> ClientFactory:
    """Return a factory of clients for the configured servers."""
    tls = client_tls(config.tls)
    return lambda url: StreamingClient(url, tls=tls, api_key=config.api_key)
