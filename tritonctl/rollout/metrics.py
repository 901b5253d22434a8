# SPDX-License-Identifier: Apache-2.0
"""The judge's input: one scrape of both versions per second, and the interval between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Times in buckets, counted since the version started."""

    bounds: tuple[float, ...]  # upper ends of the buckets, rising
    counts: tuple[int, ...]  # requests per bucket (not cumulative), one more beyond the last bound

    def __post_init__(self) -> None:
        """Raise ValueError for counts that do not fit the bounds."""
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds")
        if any(low >= high for low, high in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError("bounds do not rise")

    @classmethod
    def cumulative(cls, bounds: Sequence[float], counts: Sequence[float]) -> Histogram:
        """Convert from Prometheus' cumulative `le` buckets, with +Inf last."""
        bucket_counts = [int(high - low) for low, high in zip([0, *counts], counts, strict=False)]
        return cls(tuple(bounds), tuple(bucket_counts))


@dataclass(frozen=True)
class Counters:
    """The counters of one version since it started. None: its servers do not count this."""

    requests: int
    failures: int
    times: Mapping[str, Histogram] = field(default_factory=dict)  # ttft, itl or response
    memory_bytes: int | None = None
    stalled: int | None = None  # requests without a token for some seconds
    token_seconds: float | None = None  # the sum of all `itl` times


def counters_of(record: Any) -> Counters | None:
    """Restore counters from JSON of `dataclasses.asdict`; None from None.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    if record is None:
        return None
    times = {
        str(name): Histogram(
            tuple(map(float, histogram["bounds"])), tuple(map(int, histogram["counts"]))
        )
        for name, histogram in record["times"].items()
    }
    memory, stalled = (
        None if record[name] is None else int(record[name]) for name in ("memory_bytes", "stalled")
    )
    seconds = record["token_seconds"]
    return Counters(
        int(record["requests"]),
        int(record["failures"]),
        times,
        memory,
        stalled,
        None if seconds is None else float(seconds),
    )


@dataclass(frozen=True)
class Distances:
    """The distances of one shadowed question, 0 to 1."""

    noise: float  # between stable's two answers
    candidate: float  # mean of both to the candidate's answer


@dataclass(frozen=True)
class Scrape:
    """The metrics of both versions at one time. None: no answer, unknown."""

    at: float  # seconds of a monotonic clock
    stable: Counters | None
    candidate: Counters | None
    # Requests from Envoy to the candidate since Envoy started. They distinguish stalled metrics
    # from a time without requests.
    sent: int | None = None
    answers: Sequence[Distances] = ()  # shadowed questions since the last scrape
    stable_ready: bool | None = None  # whether the gateway has a healthy server of stable


@dataclass(frozen=True)
class ScrapeInterval:
    """The activity of one version between two scrapes."""

    requests: int
    failures: int
    times: Mapping[str, tuple[tuple[float, ...], tuple[int, ...]]]
    stalled: int = 0
    token_seconds: float = 0.0

    @property
    def stalled_of_seen(self) -> tuple[int, int]:
        """Newly stalled requests, and all that finished or stalled."""
        return self.stalled, self.requests + self.stalled


def interval_between(previous: Counters, now: Counters) -> ScrapeInterval | None:
    """Return the difference of two counters; None after a reset, such as a restart."""
    if now.requests < previous.requests or now.failures < previous.failures:
        return None
    times: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {}
    for name, histogram in now.times.items():
        earlier = previous.times.get(name)
        if earlier is None or earlier.bounds != histogram.bounds:
            continue
        counts = tuple(b - a for a, b in zip(earlier.counts, histogram.counts, strict=True))
        if min(counts) < 0:
            return None
        times[name] = (histogram.bounds, counts)
    stalled = max(0, (now.stalled or 0) - (previous.stalled or 0))
    token_seconds = max(0.0, (now.token_seconds or 0.0) - (previous.token_seconds or 0.0))
    return ScrapeInterval(
        now.requests - previous.requests,
        now.failures - previous.failures,
        times,
        stalled,
        token_seconds,
    )
