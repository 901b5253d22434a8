# SPDX-License-Identifier: Apache-2.0
"""Counters that a reloaded model or a restarted server counts from zero again.

For a second or more after a load Triton names a model with some of its counters only: a counter
that is absent is unknown, not zero. Counts between the last scrape and the reset are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

# Endings of the names of counters; other metrics are gauges.
COUNTER_SUFFIXES = ("_total", "_count", "_sum", "_us", "_success", "_failure")
_SUCCESSES = "success"


def counter_increase(values: Iterable[float | None]) -> float:
    """Add up a counter's growth, as Prometheus' `increase` does; skip unknown values."""
    known = [float(value) for value in values if value is not None]
    return sum(growth(earlier, later) for earlier, later in pairwise(known))


def growth(earlier: float, later: float) -> float:
    """Return the growth between two readings; a counter that fell started from zero again."""
    return later - earlier if later >= earlier else later


def is_counter(metric: str) -> bool:
    """Whether a metric's name, with or without labels in braces, is that of a counter."""
    return metric.partition("{")[0].endswith(COUNTER_SUFFIXES)


def reload_times(scrapes: Sequence[Mapping[str, Any]], model: str) -> list[tuple[float, float]]:
    """Return the spans (from, to) in which a model was loaded again, in seconds of the run.

    A span starts with the last scrape before it and ends with the first that has the model's
    counters again.
    """
    spans: list[tuple[float, float]] = []
    readings = [
        (float(scrape["t"]), float(value))
        for scrape in scrapes
        if (value := (scrape.get("models") or {}).get(model, {}).get(_SUCCESSES)) is not None
    ]
    for (start, earlier), (end, later) in pairwise(readings):
        if later < earlier:
            spans.append((start, end))
    return spans
