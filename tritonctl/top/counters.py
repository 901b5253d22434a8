# SPDX-License-Identifier: Apache-2.0
"""Scrapes as readings of time series, and how much each counter rose over several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from tritonctl.protocol.metrics import Metrics

Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Reading:
    """One scrape."""

    at: float  # seconds of a monotonic clock
    values: Mapping[Key, float]
    cpu_seconds: float | None = None  # of the server's processes, if they run on this machine
    rss_bytes: int | None = None  # likewise

    @classmethod
    def of(
        cls,
        metrics: Metrics,
        at: float,
        cpu_seconds: float | None = None,
        rss_bytes: int | None = None,
    ) -> Self:
        """Index the series by name and labels, without the parser's `_total` suffix."""
        values = {
            (sample.name.removesuffix("_total"), frozenset(sample.labels.items())): sample.value
            for sample in metrics
            if not math.isnan(sample.value)  # quantiles of a summary before its first request
        }
        return cls(at, values, cpu_seconds, rss_bytes)

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of each series of that name that carries these labels."""
        return _matching(self.values, name, labels)

    def total(self, name: str, **labels: str) -> float | None:
        """Sum the series of that name with these labels; None without any."""
        return sum_known(value for _, value in self.series(name, **labels))

    def label_values(self, label: str, series_prefix: str = "") -> set[str]:
        """Return the values of a label in series whose name starts with `series_prefix`."""
        return {
            value
            for name, labels in self.values
            if name.startswith(series_prefix)
            for key, value in labels
            if key == label
        }


class Increases:
    """The increase of every counter from the first to the last of several readings.

    A counter that fell was reset by a restart of its server or model. It and a new counter count
    from zero. Increases before the reset are unknown.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._rises: dict[Key, float] = {}
        self.reset: set[Key] = set()
        for earlier, later in pairwise(readings):
            self._add(earlier, later)

    def _add(self, earlier: Reading, later: Reading) -> None:
        for key, value in later.values.items():
            previous = earlier.values.get(key, 0.0)
            if value < previous:
                self.reset.add(key)
                previous = 0.0
            self._rises[key] = self._rises.get(key, 0.0) + value - previous

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and rise of each series of that name that carries these labels."""
        return _matching(self._rises, name, labels)

    def total(self, name: str, **labels: str) -> float | None:
        """Sum the increases of the series with that name and these labels; None without any."""
        return sum_known(value for _, value in self.series(name, **labels))


def _matching(
    values: Mapping[Key, float], series_name: str, labels: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], float]]:
    pairs = frozenset(labels.items())
    for (name, carried), value in values.items():
        if name == series_name and pairs <= carried:
            yield dict(carried), value


def sum_known(values: Iterable[float | None]) -> float | None:
    """Sum the values that are not None; None without any."""
    known_values = [value for value in values if value is not None]
    return math.fsum(known_values) if known_values else None
