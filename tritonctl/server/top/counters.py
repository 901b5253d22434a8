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
    """One scrape. `at`: seconds of a clock that only goes forward.

    cpu_seconds, rss_bytes: of the server's own processes, where they are on this machine.
    """

    at: float
    values: Mapping[Key, float]
    cpu_seconds: float | None = None
    rss_bytes: int | None = None

    @classmethod
    def of(
        cls,
        metrics: Metrics,
        at: float,
        cpu_seconds: float | None = None,
        rss_bytes: int | None = None,
    ) -> Self:
        """The series by name and labels; the parser's `_total` is left out of the names."""
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
        """The sum of such series; None without any."""
        return sum_known(value for _, value in self.series(name, **labels))

    def names(self, label: str, prefix: str = "") -> set[str]:
        """The values of a label in series whose name begins with `prefix`."""
        return {
            value
            for name, labels in self.values
            if name.startswith(prefix)
            for key, value in labels
            if key == label
        }


class Increases:
    """How much every counter rose from the first to the last of some readings.

    A counter that fell was reset (its server or model was restarted) and has counted from zero
    since; so has a new one. What was counted before the reset is unknown.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._grown: dict[Key, float] = {}
        self.fallen: set[Key] = set()
        for earlier, later in pairwise(readings):
            self._add(earlier, later)

    def _add(self, earlier: Reading, later: Reading) -> None:
        for key, value in later.values.items():
            before = earlier.values.get(key, 0.0)
            if value < before:
                self.fallen.add(key)
                before = 0.0
            self._grown[key] = self._grown.get(key, 0.0) + value - before

    def series(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and rise of each series of that name that carries these labels."""
        return _matching(self._grown, name, labels)

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of their rises; None without any."""
        return sum_known(value for _, value in self.series(name, **labels))


def _matching(
    values: Mapping[Key, float], wanted: str, labels: Mapping[str, str]
) -> Iterator[tuple[dict[str, str], float]]:
    pairs = frozenset(labels.items())
    for (name, carried), value in values.items():
        if name == wanted and pairs <= carried:
            yield dict(carried), value


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None
