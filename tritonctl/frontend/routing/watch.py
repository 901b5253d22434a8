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
from tritonctl.frontend.routing.reports import read_report
from tritonctl.frontend.routing.router import Router
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.http import open_url

REPORT_SECONDS, READY_SECONDS, NAMES_SECONDS = 0.25, 1.0, 5.0
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
        say: Callable[[str], object],
    ) -> None:
        self._router = router
        self._client = client
        self._upstreams = upstreams
        self._say = say
        self._pages: Mapping[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Look once, then go on looking."""
        await self.look_up()
        await self.look_whether_ready()
        await self.read_reports()
        for look, seconds in (
            (self.look_up, NAMES_SECONDS),
            (self.look_whether_ready, READY_SECONDS),
            (self.read_reports, REPORT_SECONDS),
        ):
            self._tasks.append(asyncio.create_task(_again(look, seconds)))

    async def close(self) -> None:
        """Stop looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def look_up(self) -> None:
        """Which addresses the upstreams' names have."""
        pages: dict[str, str] = {}
        for upstream in self._upstreams:
            for host in await _addresses(upstream.host):
                port = upstream.metrics_port
                page = "" if port is None else f"http://{host}:{port}/metrics"
                pages[f"{host}:{upstream.port}"] = page
        if pages.keys() != self._pages.keys():
            self._router.set_replicas(list(pages))
        self._pages = pages

    async def look_whether_ready(self) -> None:
        """ServerReady of each; no answer within a second is a no."""
        await asyncio.gather(*(self._look(url) for url in list(self._router.replicas)))

    async def read_reports(self) -> None:
        """The metrics of each; a page that cannot be read leaves the report to grow stale."""
        await asyncio.gather(*(self._read(url) for url in list(self._router.replicas)))

    async def _look(self, url: str) -> None:
        try:
            ready = await self._client.at(url).server_ready(READY_SECONDS)
        except TritonctlError:
            ready = False
        replica = self._router.replicas.get(url)
        if replica is not None:
            before = replica.ready
            replica.said(ready, self._router.now())
            if replica.ready != before:
                self._say(f"replica {url} is {'ready' if replica.ready else 'not ready'}")

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
