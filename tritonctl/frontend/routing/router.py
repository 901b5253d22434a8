# SPDX-License-Identifier: Apache-2.0
"""Places requests on replicas, counts what they do there, and moves those whose replica breaks."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tritonctl.errors import ServerBusyError
from tritonctl.frontend.routing.choice import Ask, Choice, choose
from tritonctl.frontend.routing.pools import Pool, pool_of
from tritonctl.frontend.routing.prefixes import PrefixMemory, block_hashes
from tritonctl.frontend.routing.replicas import Replica
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.generation import Chunk, Prompt, SamplingParameters

# Once an answer has begun, a replica that crashed gets half a minute to come back.
_RESUMES = 30


@dataclass
class Settings:
    """stale_seconds: reports older than this are not believed. affinity: whether a prompt goes
    where its beginning was read before. silence_seconds: a replica that says nothing for so long is
    left; None: never. fallbacks: upstreams that serve another release, for when no other is
    ready."""

    stale_seconds: float = 1.0
    affinity: bool = False
    silence_seconds: float | None = None
    fallbacks: frozenset[str] = frozenset()


class Router:
    """Of all models; replicas come and go with `set_replicas`. `draw`, `clock`: injected."""

    def __init__(
        self,
        client: AsyncTritonClient,
        urls: Sequence[str],
        pools: Mapping[str, Sequence[Pool]] | None = None,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._pools = pools or {}
        self._settings = settings or Settings()
        self._clock = clock
        self._draw = draw
        self._prefixes = PrefixMemory()
        self.replicas: dict[str, Replica] = {}
        self.set_replicas({url: url for url in urls})

    def set_replicas(self, upstreams: Mapping[str, str]) -> None:
        """These are there now, each by the upstream that it is an address of.

        Requests on one that has gone go on there until they end.
        """
        for url in [gone for gone in self.replicas if gone not in upstreams]:
            del self.replicas[url]
            self._prefixes.forget(url)
        for url, upstream in upstreams.items():
            if url not in self.replicas:
                self._client.reach(url)
                self.replicas[url] = Replica(url, upstream, upstream in self._settings.fallbacks)

    @property
    def own(self) -> int:
        """How many replicas a request may go to; more only when all of these are gone."""
        return max(1, sum(not each.fallback for each in self.replicas.values()))

    @asynccontextmanager
    async def choose(
        self, model: str, *, work: float = 0.0, beginning: bytes = b""
    ) -> AsyncIterator[Placement]:
        """A place for a request of so many tokens, prompt and expected answer.

        beginning: the prompt as it is sent; equal beginnings go to one replica where load allows.
        """
        hashes = block_hashes(beginning, model) if self._settings.affinity else ()
        placement = Placement(self, model, work, hashes, self._client)
        placement.enter()
        try:
            yield placement
        finally:
            placement.leave()

    def place(self, model: str, work: float, hashes: Sequence[bytes], tried: set[str]) -> Choice:
        """The choice for one attempt; remembers what the replica reads."""
        now, stale = self._clock(), self._settings.stale_seconds
        pool = pool_of(self._pools.get(model, ()), work)
        views = [each.view(model, now, stale) for each in self.replicas.values()]
        upstreams = None if pool is None else pool.upstreams
        wanted = upstreams and {r.url for r in self.replicas.values() if r.upstream in upstreams}
        ask = Ask(wanted, self._prefixes.longest(hashes), tried)
        choice = choose(views, ask, self._draw)
        self._prefixes.read(hashes, choice.name)
        return choice

    def now(self) -> float:
        """Of the clock."""
        return self._clock()

    @property
    def silence_seconds(self) -> float | None:
        """How long a replica may be silent; None: for ever."""
        return self._settings.silence_seconds


@dataclass
class Placement:
    """A request at its replica, and at the next one when that breaks: an Itinerary."""

    _router: Router
    model: str
    work: float
    _hashes: Sequence[bytes]
    _client: AsyncTritonClient
    tried: set[str] = field(default_factory=set)
    choice: Choice | None = None
    _replica: Replica | None = None
    _first: tuple[float, int] | None = None  # when an answer's first tokens came, how many
    _left: int = 0  # silent replicas, the last one and those before it
    _is_left: bool = False

    @property
    def client(self) -> AsyncTritonClient:
        """A client for this replica."""
        return self._client.at(self.url)

    @property
    def url(self) -> str:
        """The replica's."""
        return self._at().url

    @property
    def reason(self) -> str:
        """Why it was chosen."""
        return "" if self.choice is None else str(self.choice.reason)

    @property
    def endpoints(self) -> int:
        """As Itinerary."""
        return max(1, len(self._router.replicas))

    def next(self, failed: Sequence[str]) -> str:
        """As Itinerary: another replica than those that failed, as long as there is one."""
        if failed:
            least = self.patience if self._is_left else None
            self._at().broke(self._router.now(), least or 0.0)
            self._is_left = False
            self._move()
        return self.url

    def most_resumes(self, tokens: int) -> int:
        """As Itinerary: before the first token each other replica once; no silent one twice."""
        if self._left >= self.endpoints:
            return 0
        return _RESUMES if tokens else self.endpoints - 1

    @property
    def patience(self) -> float | None:
        """As Itinerary."""
        return self._router.silence_seconds

    def leaves(self, tokens: int, seconds: float) -> bool:
        """As Itinerary. Before its first token an answer may wait for others', if those come."""
        if not tokens and self._router.now() - self._at().heard < seconds:
            return False
        self._left += 1
        self._is_left = True
        return True

    async def stream(
        self, prompt: Prompt, sampling: SamplingParameters, **options: Any
    ) -> AsyncGenerator[Chunk, None]:
        """As `AsyncTritonClient.stream`, from one replica after another where that is needed.

        A replica whose queue is full is left for another one, once each.
        """
        while True:
            begun = False
            try:
                stream = self._client.stream(self.model, prompt, sampling, route=self, **options)
                async with aclosing(stream):
                    async for chunk in stream:
                        begun = True
                        self.came(chunk)
                        yield chunk
                return
            except ServerBusyError:
                # A full queue is no reason to ask another release.
                if begun or len(self.tried) + 1 >= self._router.own:
                    raise
                self._move()

    def enter(self) -> None:
        """Choose, and count the request there."""
        self.choice = self._router.place(self.model, self.work, self._hashes, self.tried)
        self._replica = self._router.replicas[self.choice.name]
        self._first = None
        self._replica.enter(self.model, self.work)

    def leave(self) -> None:
        """It has ended, in whatever way."""
        if self._replica is not None:
            self._replica.leave(self.model, self.work)
            self._replica = None

    def came(self, chunk: Chunk) -> None:
        """Learn from a part of the answer how fast the replica is."""
        now = self._at().heard = self._router.now()
        if self._first is None and chunk.num_output_tokens:
            self._first = now, chunk.num_output_tokens
        if chunk.finish_reason and self._first is not None:
            since, had = self._first
            if chunk.num_output_tokens > had:
                self._at().answered((now - since) / (chunk.num_output_tokens - had), now)

    def _at(self) -> Replica:
        if self._replica is None:
            raise RuntimeError("the request has left its replica")
        return self._replica

    def _move(self) -> None:
        self.tried.add(self.url)
        if len(self.tried) >= self.endpoints:
            self.tried.clear()  # a new round
        self.leave()
        self.enter()
