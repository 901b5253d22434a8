# SPDX-License-Identifier: Apache-2.0
"""Place requests on replicas, count them there, and move them when a replica breaks."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tritonctl.errors import ServerBusyError
from tritonctl.frontend.routing.choice import ReplicaChoice, RoutingRequest, choose
from tritonctl.frontend.routing.pools import ReplicaPool, pool_of
from tritonctl.frontend.routing.prefixes import PrefixMemory, block_hashes
from tritonctl.frontend.routing.replicas import Replica
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.generation import Chunk, Prompt, SamplingParameters

# Once an answer has begun, a replica that crashed gets half a minute to come back.
_RESUMES = 30


@dataclass
class RoutingSettings:
    """Settings of a router."""

    stale_seconds: float = 1.0  # older reports do not count
    affinity: bool = False  # prefer the replica that read the prompt's prefix before
    silence_seconds: float | None = None  # leave a replica that is silent this long; None: never
    # Upstreams that serve another release, used if no other is ready.
    fallbacks: frozenset[str] = frozenset()


class Router:
    """Routes the requests of all models. `draw`, `clock`: injected for tests."""

    def __init__(
        self,
        client: AsyncTritonClient,
        urls: Sequence[str],
        pools: Mapping[str, Sequence[ReplicaPool]] | None = None,
        settings: RoutingSettings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._pools = pools or {}
        self._settings = settings or RoutingSettings()
        self._clock = clock
        self._draw = draw
        self._prefixes = PrefixMemory()
        self.replicas: dict[str, Replica] = {}
        self.set_replicas({url: url for url in urls})

    def set_replicas(self, upstreams: Mapping[str, str]) -> None:
        """Set the current replicas. upstreams: each replica's upstream, by the replica's URL.

        Requests continue on a removed replica until they end.
        """
        for url in [removed for removed in self.replicas if removed not in upstreams]:
            del self.replicas[url]
            self._prefixes.forget(url)
        for url, upstream in upstreams.items():
            if url not in self.replicas:
                self._client.reach(url)
                self.replicas[url] = Replica(url, upstream, upstream in self._settings.fallbacks)

    @property
    def primary_count(self) -> int:
        """Number of replicas that are not fallbacks, at least 1."""
        return max(1, sum(not each.fallback for each in self.replicas.values()))

    @asynccontextmanager
    async def choose(
        self, model: str, *, work: float = 0.0, prompt: bytes = b""
    ) -> AsyncIterator[ReplicaPlacement]:
        """Place a request on a replica for the duration of the block.

        work: tokens of the prompt and the expected answer. prompt: as it is sent; requests with
        equal prefixes go to one replica if its load allows.
        """
        hashes = block_hashes(prompt, model) if self._settings.affinity else ()
        placement = ReplicaPlacement(self, model, work, hashes, self._client)
        placement.enter()
        try:
            yield placement
        finally:
            placement.leave()

    def place(
        self, model: str, work: float, hashes: Sequence[bytes], tried: set[str]
    ) -> ReplicaChoice:
        """Choose a replica for one attempt, and remember the prompt that it reads."""
        now, stale = self._clock(), self._settings.stale_seconds
        pool = pool_of(self._pools.get(model, ()), work)
        views = [each.view(model, now, stale) for each in self.replicas.values()]
        upstreams = None if pool is None else pool.upstreams
        pool_urls = upstreams and {r.url for r in self.replicas.values() if r.upstream in upstreams}
        ask = RoutingRequest(pool_urls, self._prefixes.best_match(hashes), tried)
        choice = choose(views, ask, self._draw)
        self._prefixes.read(hashes, choice.name)
        return choice

    def now(self) -> float:
        """Return the clock's time."""
        return self._clock()

    @property
    def silence_seconds(self) -> float | None:
        """How long a replica may be silent; None: without limit."""
        return self._settings.silence_seconds


@dataclass
class ReplicaPlacement:
    """A request's current replica, and the next one when it breaks. Implements Itinerary."""

    _router: Router
    model: str
    work: float
    _hashes: Sequence[bytes]
    _client: AsyncTritonClient
    tried: set[str] = field(default_factory=set)
    choice: ReplicaChoice | None = None
    _replica: Replica | None = None
    _first: tuple[float, int] | None = None  # time and number of an answer's first tokens
    _silent_count: int = 0  # replicas that were left because of silence
    _was_silent: bool = False

    @property
    def client(self) -> AsyncTritonClient:
        """A client for the current replica."""
        return self._client.at(self.url)

    def is_frozen(self, model: str) -> bool:
        """Whether the model makes no progress at the current replica."""
        return self._current().is_frozen(model)

    @property
    def url(self) -> str:
        """The current replica's address."""
        return self._current().url

    @property
    def reason(self) -> str:
        """Why the replica was chosen."""
        return "" if self.choice is None else str(self.choice.reason)

    @property
    def endpoints(self) -> int:
        """As Itinerary."""
        return max(1, len(self._router.replicas))

    def next(self, failed: Sequence[str]) -> str:
        """As Itinerary: prefer replicas that have not failed."""
        if failed:
            min_pause = self.silence_limit if self._was_silent else None
            self._current().mark_broken(self._router.now(), min_pause or 0.0)
            self._was_silent = False
            self._move()
        return self.url

    def resume_limit(self, tokens: int) -> int:
        """As Itinerary: before the first token try each replica once; silent ones never twice."""
        if self._silent_count >= self.endpoints:
            return 0
        return _RESUMES if tokens else self.endpoints - 1

    @property
    def silence_limit(self) -> float | None:
        """As Itinerary."""
        return self._router.silence_seconds

    def should_leave(self, tokens: int, seconds: float) -> bool:
        """As Itinerary. Before its first token an answer may wait while other answers progress."""
        if not tokens and self._router.now() - self._current().last_chunk_at < seconds:
            return False
        self._silent_count += 1
        self._was_silent = True
        return True

    async def stream(
        self, prompt: Prompt, sampling: SamplingParameters, **options: Any
    ) -> AsyncGenerator[Chunk, None]:
        """As `AsyncTritonClient.stream`, moving to other replicas if necessary.

        A full queue moves the request to another replica, at most once per replica.
        """
        while True:
            started = False
            try:
                stream = self._client.stream(self.model, prompt, sampling, route=self, **options)
                async with aclosing(stream):
                    async for chunk in stream:
                        started = True
                        self.record_chunk(chunk)
                        yield chunk
                return
            except ServerBusyError:
                # A full queue is no reason to use the fallback release.
                if started or len(self.tried) + 1 >= self._router.primary_count:
                    raise
                self._move()

    def enter(self) -> None:
        """Choose a replica and count the request there."""
        self.choice = self._router.place(self.model, self.work, self._hashes, self.tried)
        self._replica = self._router.replicas[self.choice.name]
        self._first = None
        self._replica.enter(self.model, self.work)

    def leave(self) -> None:
        """Remove the request from its replica."""
        if self._replica is not None:
            self._replica.leave(self.model, self.work)
            self._replica = None

    def record_chunk(self, chunk: Chunk) -> None:
        """Learn the replica's pace from a chunk."""
        now = self._current().last_chunk_at = self._router.now()
        if self._first is None and chunk.num_output_tokens:
            self._first = now, chunk.num_output_tokens
        if chunk.finish_reason and self._first is not None:
            since, first_tokens = self._first
            if chunk.num_output_tokens > first_tokens:
                self._current().record_pace(
                    (now - since) / (chunk.num_output_tokens - first_tokens), now
                )

    def _current(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("the request has left its replica")
        return self._replica

    def _move(self) -> None:
        self.tried.add(self.url)
        if len(self.tried) >= self.endpoints:
            self.tried.clear()  # a new round
        self.leave()
        self.enter()
