# SPDX-License-Identifier: Apache-2.0
"""Asks the replicas how they are, again and again: ready or not, how busy, and which there are.

Nothing here decides; the router does, with what it was told last.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tritonctl.errors import TritonctlError
from tritonctl.frontend.counting.prompts import PromptCounter
from tritonctl.frontend.routing.replicas import Replica, slots_of
from tritonctl.frontend.routing.reports import read_report
from tritonctl.frontend.routing.router import Router
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.http import open_url
from tritonctl.protocol.model_config import Config, steps_of

REPORT_SECONDS, READY_SECONDS, NAMES_SECONDS, CONFIGURATION_SECONDS = 0.25, 1.0, 5.0, 10.0
_MOST_PAGE_BYTES = 4_000_000


@dataclass(frozen=True)
class Upstream:
    """A server, or a DNS name that stands for several. metrics_port: None: its page is not read."""

    host: str
    port: int
    metrics_port: int | None = None

    @property
    def url(self) -> str:
        """`host:port` of gRPC."""
        return f"{self.host}:{self.port}"


class Watch:
    """Runs beside the router until it is closed. `say` hears of replicas that come and go."""

    def __init__(
        self,
        router: Router,
        client: AsyncTritonClient,
        upstreams: Sequence[Upstream],
        models: Sequence[str],
        counter: PromptCounter,
        say: Callable[[str], object],
    ) -> None:
        self._router = router
        self._client = client
        self._upstreams = upstreams
        self._models = models
        self._counter = counter
        self._say = say
        self._pages: Mapping[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Look once, then go on looking."""
        await self.look_up()
        await self.look_whether_ready()
        await self.read_reports()
        self._tasks.append(asyncio.create_task(self._counter.start()))
        for look, seconds in (
            (self.look_up, NAMES_SECONDS),
            (self.look_whether_ready, READY_SECONDS),
            (self.read_configurations, CONFIGURATION_SECONDS),
        ):
            self._tasks.append(asyncio.create_task(_again(look, seconds)))
        self._tasks.append(asyncio.create_task(self._keep_reading_reports()))

    async def close(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look_up(self) -> None:
        """Which addresses the upstreams' names have."""
        pages: dict[str, str] = {}
        replicas: dict[str, str] = {}
        for upstream in self._upstreams:
            for host in await _addresses(upstream.host):
                port = upstream.metrics_port
                page = "" if port is None else f"http://{host}:{port}/metrics"
                url = f"{host}:{upstream.port}"
                pages[url], replicas[url] = page, upstream.url
        if replicas.keys() != self._router.replicas.keys():
            self._say(f"replicas: {', '.join(replicas)}")
        self._router.set_replicas(replicas)
        self._pages = pages

    async def look_whether_ready(self) -> None:
        """ServerReady of each; no answer within a second is a no."""
        news = await asyncio.gather(*(self._look(url) for url in list(self._router.replicas)))
        if any(news):
            await self.read_configurations()

    async def read_reports(self) -> None:
        """The metrics of each; a page that cannot be read leaves the report to grow stale.

        A choice of one needs none, and a page costs both sides a few milliseconds.
        """
        if self._router.own > 1:
            await asyncio.gather(*(self._read(url) for url in list(self._router.replicas)))

    async def _keep_reading_reports(self) -> None:
        while True:
            # One alone has company once names have been looked up again.
            several = self._router.own > 1
            await asyncio.sleep(REPORT_SECONDS if several else NAMES_SECONDS)
            await self.read_reports()

    async def read_configurations(self) -> None:
        """Of each model at each replica: how many requests it takes at once, what its steps are."""
        replicas = [each for each in self._router.replicas.values() if each.ready]
        await asyncio.gather(*(self._configure(model, replicas) for model in self._models))

    async def _configure(self, model: str, replicas: Sequence[Replica]) -> None:
        found = await asyncio.gather(*(self._configs(model, replica) for replica in replicas))
        known = [configs for configs in found if configs is not None]
        for replica, configs in zip(replicas, found, strict=True):
            if configs is not None:
                replica.slots[model] = slots_of(configs.values())
        if known:
            await self._counter.configure(model, known[0])

    async def _configs(self, model: str, replica: Replica) -> dict[str, Config] | None:
        """A model's and its steps'; None where the server does not say."""
        client = self._client.at(replica.url)
        configs: dict[str, Config] = {}
        waiting = [model]
        try:
            while waiting:
                name = waiting.pop()
                configs[name] = await client.model_config(name)
                waiting += [step for step in steps_of(configs[name]) if step not in configs]
        except TritonctlError:
            return None
        return configs

    async def _look(self, url: str) -> bool:
        """Whether it is ready now, and was not before, or was never asked."""
        try:
            ready = await self._client.at(url).server_ready(READY_SECONDS)
        except TritonctlError:
            ready = False
        replica = self._router.replicas.get(url)
        if replica is None:
            return False
        before = replica.ready
        replica.said(ready, self._router.now())
        if replica.ready != before:
            self._say(f"replica {url} is {'ready' if replica.ready else 'not ready'}")
        return replica.ready and not (before and replica.slots)

    async def _read(self, url: str) -> None:
        page = self._pages.get(url)
        if not page:
            return
        asked = self._router.now()
        try:
            text = await asyncio.to_thread(_fetch, page)
        except (OSError, ValueError):
            return
        if replica := self._router.replicas.get(url):
            replica.reported(read_report(text, asked))


async def _again(look: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await look()


def _fetch(page: str) -> str:
    with open_url(page, REPORT_SECONDS * 2) as answer:
        content: bytes = answer.read(_MOST_PAGE_BYTES)
    return content.decode("utf-8", "replace")


async def _addresses(host: str) -> list[str]:
    """What a name stands for, where that is more than one; else itself, as certificates have it."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return [host]
    addresses = sorted({str(address[0]) for *_, address in found})
    return addresses if len(addresses) > 1 else [host]
