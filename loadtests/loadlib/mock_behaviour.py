# SPDX-License-Identifier: Apache-2.0
"""How the mock endpoint is to behave, and what it draws for each request.

The draws of request number i depend on the seed and on i alone: not on timing, not on what else
runs. So a test can say beforehand what each request must take.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadlib.mock_distributions import Distribution

_MS = 1e-3
_ERROR_DRAW = 1 << 62  # its own stream of draws: errors on or off, the latencies stay the same


@dataclass(frozen=True)
class Batching:
    """A batch of k takes `base` + `each` × k milliseconds; k is at most `most`."""

    base: float
    each: float
    most: int

    @classmethod
    def parse(cls, text: str) -> Batching:
        """Read `10:2:8`. Raises ValueError."""
        try:
            base, each, most = text.split(":")
            batching = cls(float(base), float(each), int(most))
        except ValueError:
            raise ValueError(f"invalid batching {text!r}; expected BASE:EACH:MOST") from None
        if batching.base < 0 or batching.each < 0 or batching.most < 1:
            raise ValueError(f"{text!r}: times must be 0 or more, the largest batch 1 or more")
        return batching

    def seconds(self, size: int) -> float:
        """The service time of a batch of that size."""
        return (self.base + self.each * size) * _MS


@dataclass(frozen=True)
class Stall:
    """Work stands still for `seconds`, from `at` seconds after the first request."""

    at: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Stall:
        """Read `5:2`. Raises ValueError."""
        try:
            at, seconds = map(float, text.split(":"))
        except ValueError:
            raise ValueError(f"invalid stall {text!r}; expected AT:FOR in seconds") from None
        if at < 0 or seconds < 0:
            raise ValueError(f"{text!r}: a stall's times must be 0 or more")
        return cls(at, seconds)


@dataclass(frozen=True)
class Drawn:
    """Seconds of work: until the first response, and of each response after the one before.

    `tokens` of each response. A unary request has one response and no tokens.
    """

    steps: tuple[float, ...]
    tokens: tuple[int, ...] = ()
    error: bool = False

    @property
    def seconds(self) -> float:
        """The whole work."""
        return sum(self.steps)


_ONE = Distribution("constant", (1.0,))


@dataclass(frozen=True)
class Behaviour:
    """Times in milliseconds. `servers` None: every request is worked on at once."""

    ttft: Distribution
    itl: Distribution
    tokens: Distribution
    latency: Distribution
    tokens_per_response: Distribution = _ONE
    stalls: tuple[Stall, ...] = ()
    servers: int | None = None
    queue_size: int | None = None
    batching: Batching | None = None
    error_share: float = 0.0
    seed: int = 0
    _generator: random.Random = field(
        default_factory=random.Random, init=False, repr=False, compare=False
    )

    def draw_stream(self, index: int, max_tokens: int | None, whole: bool) -> Drawn:
        """A streamed answer; `whole`: all its tokens come at once, with the last one."""
        generator = self._seeded(index)
        ttft = self.ttft.draw(generator) * _MS
        tokens = max(1, round(self.tokens.draw(generator)))
        sizes = self._sizes(min(tokens, max_tokens or tokens), generator)
        gaps = [self.itl.draw(generator) * _MS for _ in sizes[1:]]
        error = self._fails(index)
        if whole:
            return Drawn((ttft + sum(gaps),), (sum(sizes),), error)
        return Drawn((ttft, *gaps), tuple(sizes), error)

    def draw_unary(self, index: int) -> Drawn:
        """One answer."""
        return Drawn((self.latency.draw(self._seeded(index)) * _MS,), (), self._fails(index))

    def _sizes(self, tokens: int, generator: random.Random) -> Sequence[int]:
        if self.tokens_per_response == _ONE:
            return [1] * tokens
        sizes = []
        while tokens:
            size = min(tokens, max(1, round(self.tokens_per_response.draw(generator))))
            sizes.append(size)
            tokens -= size
        return sizes

    def _seeded(self, index: int) -> random.Random:
        self._generator.seed(self.seed << 40 | index)
        return self._generator

    def _fails(self, index: int) -> bool:
        if not self.error_share:
            return False
        return self._seeded(index | _ERROR_DRAW).random() < self.error_share
