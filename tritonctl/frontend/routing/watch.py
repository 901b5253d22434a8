# SPDX-License-Identifier: Apache-2.0
"""Poll the replicas: addresses, readiness, load and configurations.

It makes no decisions; the router decides with the latest results.
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
from tritonctl.supervision.progress import POLL_SECONDS, describe_change

REPORT_SECONDS, READY_SECONDS, NAMES_SECONDS, CONFIGURATION_SECONDS = 0.25, 1.0, 5.0, 10.0
_MAX_PAGE_BYTES = 4_000_000


@dataclass(frozen=True)
class UpstreamServer:
    """A server, or a DNS name of several servers."""

    host: str
    port: int
    metrics_port: int | None = None  # None: its metrics are not read

    @property
    def url(self) -> str:
        """`host:port` of the gRPC endpoint."""
        return f"{self.host}:{self.port}"


class ReplicaWatch:
    """Polls the replicas until it is closed. `log`: receives messages about their changes."""

    def __init__(
        self,
        router: Router,
        client: AsyncTritonClient,
        upstreams: Sequence[UpstreamServer],
        models: Sequence[str],
        counter: PromptCounter,
        log: Callable[[str], object],
    ) -> None:
        self._router = router
        self._client = client
        self._upstreams = upstreams
        self._models = models
        self._counter = counter
        self._log = log
        self._pages: Mapping[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Poll once, then continue in the background."""
        await self.resolve_names()
        await self.check_readiness()
        await self.read_reports()
        self._tasks.append(asyncio.create_task(self._counter.start()))
        for check, seconds in (
            (self.resolve_names, NAMES_SECONDS),
            (self.check_readiness, READY_SECONDS),
            (self.read_configurations, CONFIGURATION_SECONDS),
        ):
            self._tasks.append(asyncio.create_task(_repeat(check, seconds)))
        self._tasks.append(asyncio.create_task(self._keep_reading_reports()))

    async def close(self) -> None:
        """Stop polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def resolve_names(self) -> None:
        """Resolve the upstreams' names and update the replicas."""
        pages: dict[str, str] = {}
        replicas: dict[str, str] = {}
        for upstream in self._upstreams:
            for host in await _addresses(upstream.host):
                port = upstream.metrics_port
                page = "" if port is None else f"http://{host}:{port}/metrics"
                url = f"{host}:{upstream.port}"
                pages[url], replicas[url] = page, upstream.url
        if replicas.keys() != self._router.replicas.keys():
            self._log(f"replicas: {', '.join(replicas)}")
        self._router.set_replicas(replicas)
        self._pages = pages

    async def check_readiness(self) -> None:
        """Call ServerReady on each replica; no answer within a second means not ready."""
        newly_ready = await asyncio.gather(
            *(self._check_ready(url) for url in list(self._router.replicas))
        )
        if any(newly_ready):
            await self.read_configurations()

    async def read_reports(self) -> None:
        """Read the metrics of each replica; an unreadable page lets the report become stale."""
        await asyncio.gather(*(self._read(url) for url in list(self._router.replicas)))

    async def _keep_reading_reports(self) -> None:
        while True:
            # A page costs both sides a few milliseconds. A single replica needs no report of its
            # load, only of its progress; it may get company when the names are resolved again.
            has_choice = self._router.primary_count > 1
            await asyncio.sleep(REPORT_SECONDS if has_choice else POLL_SECONDS)
            await self.read_reports()

    async def read_configurations(self) -> None:
        """Read each model's slots and steps from its configurations at each replica."""
        replicas = [each for each in self._router.replicas.values() if each.ready]
        await asyncio.gather(*(self._configure(model, replicas) for model in self._models))

    async def _configure(self, model: str, replicas: Sequence[Replica]) -> None:
        configs_by_replica = await asyncio.gather(
            *(self._configs(model, replica) for replica in replicas)
        )
        available = [configs for configs in configs_by_replica if configs is not None]
        for replica, configs in zip(replicas, configs_by_replica, strict=True):
            if configs is not None:
                replica.slots[model] = slots_of(configs.values())
                replica.steps[model] = frozenset(configs)
        if available:
            await self._counter.configure(model, available[0])

    async def _configs(self, model: str, replica: Replica) -> dict[str, Config] | None:
        """Read the configurations of a model and its steps; None if the server refuses."""
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

    async def _check_ready(self, url: str) -> bool:
        """Check readiness. True: it has become ready, or its configuration is still unknown."""
        try:
            ready = await self._client.at(url).server_ready(READY_SECONDS)
        except TritonctlError:
            ready = False
        replica = self._router.replicas.get(url)
        if replica is None:
            return False
        was_ready = replica.ready
        replica.set_ready(ready, self._router.now())
        if replica.ready != was_ready:
            self._log(f"replica {url} is {'ready' if replica.ready else 'not ready'}")
        return replica.ready and not (was_ready and replica.slots)

    async def _read(self, url: str) -> None:
        page = self._pages.get(url)
        if not page:
            return
        requested_at = self._router.now()
        try:
            text = await asyncio.to_thread(_fetch, page)
        except (OSError, ValueError):
            return
        if (replica := self._router.replicas.get(url)) is None:
            return
        replica.update_report(read_report(text, requested_at))
        previous = replica.frozen
        replica.update_progress(text, self._router.now())
        if replica.frozen != previous:
            self._log(f"replica {url}: {describe_change(replica.frozen)}")


async def _repeat(check: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await check()


def _fetch(page: str) -> str:
    with open_url(page, REPORT_SECONDS * 2) as answer:
        content: bytes = answer.read(_MAX_PAGE_BYTES)
    return content.decode("utf-8", "replace")


async def _addresses(host: str) -> list[str]:
    """Resolve a name with several addresses; else return the name, as certificates contain it."""
    loop = asyncio.get_running_loop()
    try:
        results = await loop.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return [host]
    addresses = sorted({str(address[0]) for *_, address in results})
    return addresses if len(addresses) > 1 else [host]
