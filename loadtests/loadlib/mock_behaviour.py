# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's behaviour, and its draws for each request.

The draws of request i depend only on the seed and on i, not on timing or other requests. So a test
can predict how long each request must take.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadlib.mock_distributions import MockDistribution

_MS = 1e-3
_ERROR_DRAW = 1 << 62  # a separate random stream: errors do not change the latencies


@dataclass(frozen=True)
class Batching:
    """A batch of k requests takes `base` + `each` × k milliseconds; k is at most `max_size`."""

    base: float
    each: float
    max_size: int

    @classmethod
    def parse(cls, text: str) -> Batching:
        """Read `10:2:8`. Raises ValueError."""
        try:
            base, each, max_size = text.split(":")
            batching = cls(float(base), float(each), int(max_size))
        except ValueError:
            raise ValueError(f"invalid batching {text!r}; expected BASE:EACH:MOST") from None
        if batching.base < 0 or batching.each < 0 or batching.max_size < 1:
            raise ValueError(f"{text!r}: times must be 0 or more, the maximum batch 1 or more")
        return batching

    def seconds(self, size: int) -> float:
        """Return the service time of a batch of `size` requests."""
        return (self.base + self.each * size) * _MS


@dataclass(frozen=True)
class Stall:
    """A pause of all work for `seconds`, `at` seconds after the first request."""

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
class DrawnWork:
    """The work drawn for a request. A unary request has one response and no tokens."""

    steps: tuple[float, ...]  # seconds until the first response, then between responses
    tokens: tuple[int, ...] = ()  # of each response
    error: bool = False

    @property
    def seconds(self) -> float:
        """The total seconds of work."""
        return sum(self.steps)


_SINGLE_TOKEN = MockDistribution("constant", (1.0,))


@dataclass(frozen=True)
class Behaviour:
    """The options of the mock endpoint. Times in milliseconds."""

    ttft: MockDistribution
    itl: MockDistribution
    tokens: MockDistribution
    latency: MockDistribution
    tokens_per_response: MockDistribution = _SINGLE_TOKEN
    stalls: tuple[Stall, ...] = ()
    servers: int | None = None  # None: unlimited
    queue_size: int | None = None
    batching: Batching | None = None
    error_share: float = 0.0
    seed: int = 0
    _generator: random.Random = field(
        default_factory=random.Random, init=False, repr=False, compare=False
    )

    def draw_stream(self, index: int, max_tokens: int | None, all_at_once: bool) -> DrawnWork:
        """Draw a streamed response; `all_at_once` sends all tokens in one response at the end."""
        generator = self._seeded(index)
        ttft = self.ttft.draw(generator) * _MS
        tokens = max(1, round(self.tokens.draw(generator)))
        sizes = self._sizes(min(tokens, max_tokens or tokens), generator)
        gaps = [self.itl.draw(generator) * _MS for _ in sizes[1:]]
        error = self._fails(index)
        if all_at_once:
            return DrawnWork((ttft + sum(gaps),), (sum(sizes),), error)
        return DrawnWork((ttft, *gaps), tuple(sizes), error)

    def draw_unary(self, index: int) -> DrawnWork:
        """Draw a unary response."""
        return DrawnWork((self.latency.draw(self._seeded(index)) * _MS,), (), self._fails(index))

    def _sizes(self, tokens: int, generator: random.Random) -> Sequence[int]:
        if self.tokens_per_response == _SINGLE_TOKEN:
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
