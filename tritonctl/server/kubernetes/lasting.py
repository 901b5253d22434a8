# SPDX-License-Identifier: Apache-2.0
"""Counters of pods that come, go and start again: what one had counted stays in the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tritonctl.protocol.metrics import Metrics, Sample

_COUNTERS = ("_total", "_bucket", "_count", "_sum")  # the parser gives counters the first one

_Series = tuple[str, frozenset[tuple[str, str]]]


class Lost:
    """What counters had counted that are no more: of pods that are gone.

    fallen: also of a server that was started again in its pod, whose counters begin at 0. Who is to
    see that leaves it out.
    """

    def __init__(self, *, fallen: bool) -> None:
        self._fallen = fallen
        self._last: dict[str, dict[_Series, float]] = {}  # of each pod
        self._lost: dict[_Series, float] = {}

    def until(self, found: Mapping[str, Metrics]) -> Metrics:
        """Until now, when these pods have counted that."""
        now = {name: _counted(metrics) for name, metrics in found.items()}
        for name, before in self._last.items():
            if name in now and not self._fallen:
                continue
            after = now.get(name, {})
            for series, value in before.items():
                if after.get(series, 0.0) < value:
                    self._lost[series] = self._lost.get(series, 0.0) + value
        self._last = now
        return Metrics(self._samples())

    def kept(self) -> list[list[Any]]:
        """It, as JSON holds it."""
        return [[each.name, dict(each.labels), each.value] for each in self._samples()]

    def restore(self, kept: Sequence[Any]) -> None:
        """What an earlier one has kept."""
        self._lost = {(name, frozenset(labels.items())): value for name, labels, value in kept}

    def _samples(self) -> Iterator[Sample]:
        for (name, labels), value in self._lost.items():
            yield Sample(name, dict(labels), value)


def _counted(metrics: Metrics) -> dict[_Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in metrics
        if sample.name.endswith(_COUNTERS)
    }
