# SPDX-License-Identifier: Apache-2.0
"""Carry over the counts of removed and restarted pods, so that sums never fall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritonctl.protocol.metrics import Metrics, MetricSample

_COUNTERS = ("_total", "_bucket", "_count", "_sum")  # the parser adds `_total` to counters

_Series = tuple[str, frozenset[tuple[str, str]]]


class CounterCarryover:
    """Sums the counts of removed pods.

    count_resets: also those of servers restarted in their pod, whose counters start at 0. Callers
    that must see resets pass False.
    """

    def __init__(self, *, count_resets: bool) -> None:
        self._count_resets = count_resets
        self._last: dict[str, dict[_Series, float]] = {}  # by pod
        self._carried: dict[_Series, float] = {}

    def update(self, pod_metrics: Mapping[str, Metrics]) -> Metrics:
        """Return the carried counts after an update with the pods' current metrics."""
        current = {name: _counter_values(metrics) for name, metrics in pod_metrics.items()}
        for name, previous in self._last.items():
            if name in current and not self._count_resets:
                continue
            updated = current.get(name, {})
            for series, value in previous.items():
                if updated.get(series, 0.0) < value:
                    self._carried[series] = self._carried.get(series, 0.0) + value
        self._last = current
        return Metrics(self._samples())

    def to_record(self) -> list[list[Any]]:
        """Return the carried counts as JSON data."""
        return [[each.name, dict(each.labels), each.value] for each in self._samples()]

    def restore(self, record: Sequence[Any]) -> None:
        """Restore the result of `to_record`."""
        self._carried = {(name, frozenset(labels.items())): value for name, labels, value in record}

    def _samples(self) -> Iterator[MetricSample]:
        for (name, labels), value in self._carried.items():
            yield MetricSample(name, dict(labels), value)


def _counter_values(metrics: Metrics) -> dict[_Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in metrics
        if sample.name.endswith(_COUNTERS)
    }
