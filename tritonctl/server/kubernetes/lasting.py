# SPDX-License-Identifier: Apache-2.0
"""Counters of pods that come, go and start again: what one had counted stays in the sum."""

from __future__ import annotations

from collections.abc import Mapping

from tritonctl.protocol.metrics import Metrics, Sample

COUNTERS = ("_total", "_bucket", "_count", "_sum")  # the parser gives counters the first one

_Series = tuple[str, frozenset[tuple[str, str]]]


class Lost:
    """What counters had counted that are no more: of pods that are gone, of servers that ended."""

    def __init__(self) -> None:
        self._last: dict[str, dict[_Series, float]] = {}  # of each pod
        self._lost: dict[_Series, float] = {}

    def until(self, found: Mapping[str, Metrics]) -> Metrics:
        """Until now, when these pods have counted that."""
        now = {name: _counted(metrics) for name, metrics in found.items()}
        for name, before in self._last.items():
            after = now.get(name, {})
            for series, value in before.items():
                if after.get(series, 0.0) < value:
                    self._lost[series] = self._lost.get(series, 0.0) + value
        self._last = now
        return Metrics(Sample(name, dict(labels), v) for (name, labels), v in self._lost.items())


def _counted(metrics: Metrics) -> dict[_Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in metrics
        if sample.name.endswith(COUNTERS)
    }
