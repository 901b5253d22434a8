# SPDX-License-Identifier: Apache-2.0
"""What the judge is told every second about both versions, and what happened in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Histogram:
    """Times in buckets, counted since the version began.

    bounds: upper ends of the buckets, rising; counts: requests in each bucket by itself, and in
    one more beyond the last bound.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for counts that do not fit the bounds."""
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} counts for {len(self.bounds)} bounds")
        if any(low >= high for low, high in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError("bounds do not rise")

    @classmethod
    def cumulative(cls, bounds: Sequence[float], counts: Sequence[float]) -> Histogram:
        """From Prometheus' `le` buckets, each of which counts those before it, too; +Inf last."""
        alone = [int(high - low) for low, high in zip([0, *counts], counts, strict=False)]
        return cls(tuple(bounds), tuple(alone))


@dataclass(frozen=True)
class Counters:
    """Of one version, since it began. `times`: ttft, itl or response, by name.

    stalled: requests that had no token for some seconds; None where servers do not count them.
    token_seconds: all times of `itl` together, None likewise.
    """

    requests: int
    failures: int
    times: Mapping[str, Histogram] = field(default_factory=dict)
    memory_bytes: int | None = None
    stalled: int | None = None
    token_seconds: float | None = None


def counters_of(record: Any) -> Counters | None:
    """What `dataclasses.asdict` made of them, and JSON of that; None of None.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    if record is None:
        return None
    times = {
        str(name): Histogram(tuple(map(float, one["bounds"])), tuple(map(int, one["counts"])))
        for name, one in record["times"].items()
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
    """One shadowed question: of stable's two answers, and of both to the candidate's; 0 to 1."""

    noise: float
    candidate: float


@dataclass(frozen=True)
class Scrape:
    """What is known at a moment. `at`: seconds of a monotonic clock. None: no answer, unknown.

    stable, candidate: what a version's servers count. sent: requests that Envoy has sent to the
    candidate since it began, None where that is not known: they tell metrics that stand still from
    a time without requests. answers: shadowed questions since the last scrape.
    stable_ready: whether the gateway has a server of stable that can answer; None likewise.
    """

    at: float
    stable: Counters | None
    candidate: Counters | None
    sent: int | None = None
    answers: Sequence[Distances] = ()
    stable_ready: bool | None = None


@dataclass(frozen=True)
class Moment:
    """What one version did between two scrapes."""

    requests: int
    failures: int
    times: Mapping[str, tuple[tuple[float, ...], tuple[int, ...]]]
    stalled: int = 0
    token_seconds: float = 0.0


def moment(before: Counters, now: Counters) -> Moment | None:
    """The difference; None when the counting began anew, as after a restart."""
    if now.requests < before.requests or now.failures < before.failures:
        return None
    times: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {}
    for name, histogram in now.times.items():
        earlier = before.times.get(name)
        if earlier is None or earlier.bounds != histogram.bounds:
            continue
        counts = tuple(b - a for a, b in zip(earlier.counts, histogram.counts, strict=True))
        if min(counts) < 0:
            return None
        times[name] = (histogram.bounds, counts)
    stalled = max(0, (now.stalled or 0) - (before.stalled or 0))
    token_seconds = max(0.0, (now.token_seconds or 0.0) - (before.token_seconds or 0.0))
    return Moment(
        now.requests - before.requests,
        now.failures - before.failures,
        times,
        stalled,
        token_seconds,
    )
