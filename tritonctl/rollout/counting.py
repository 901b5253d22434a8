# SPDX-License-Identifier: Apache-2.0
"""From Triton's metrics to the counters of one version, which only grow.

A request that its client gave up counts as a failure: that is how a version that hangs is seen, and
where people leave for reasons of their own they leave both. Triton's figures of an ensemble, put
together of several models' counters that are published one after another, may fall by one for a
moment; what has been counted stays counted. So are the buckets of a histogram: a page that is read
in between has requests in a bucket that is far too late. Such a page says nothing of these times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tritonctl.rollout.judge import ITL, TTFT
from tritonctl.rollout.metrics import Counters, Histogram, counters_of
from tritonctl.server.top.counters import Reading, sum_known
from tritonctl.server.top.figures import ITL_SERIES, TTFT_SERIES, Layout, figures

_SERIES = {TTFT: TTFT_SERIES, ITL: ITL_SERIES}
SUCCESS = "nv_inference_request_success"
_STALLED = "tritonctl_stalled_requests"
_NOTHING = Reading(0.0, {})
_NONE = Counters(0, 0)


class Counting:
    """Of one version, scrape by scrape. `layout`: which models are steps of which."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._raw = 0.0
        self._before: Counters | None = None

    def kept(self) -> dict[str, Any]:
        """What a later one needs to go on with it, as JSON holds it."""
        return {"raw": self._raw, "before": self._before and asdict(self._before)}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on with what an earlier one has kept. Raises as `counters_of` for anything else."""
        raw, self._before = float(kept["raw"]), counters_of(kept["before"])
        self._raw = raw

    def counters(self, reading: Reading) -> Counters:
        """What has been counted until now; from 0 again after a restart of the server."""
        raw = reading.total(SUCCESS) or 0.0
        if raw < self._raw:
            self._before = None
        self._raw = raw
        found = figures([_NOTHING, Reading(1.0, reading.values)], self._layout).models
        failures = sum(sum(model.failures.values()) for model in found)
        requests = sum(model.requests_per_s for model in found) + failures
        models = {step for model in found for step in _workers(model.model, self._layout)}
        before = self._before or _NONE
        seconds = _token_seconds(reading, models)
        times = {}
        for name, series in _SERIES.items():
            histogram, is_whole = _histogram(reading, series, models)
            if not is_whole and name in before.times:
                histogram = before.times[name]
                seconds = before.token_seconds if name == ITL else seconds
            if histogram is not None:
                times[name] = histogram
        stalled = sum_known(reading.total(_STALLED, model=model) for model in models)
        now = Counters(
            round(requests),
            round(failures),
            times,
            reading.rss_bytes,
            None if stalled is None else round(stalled),
            seconds,
        )
        if self._before is not None:
            now = _never_less(self._before, now)
        self._before = now
        return now


def _workers(model: str, layout: Layout) -> Iterable[str]:
    return layout.steps.get(model) or (model,)


def _histogram(
    reading: Reading, names: Mapping[str, float], models: set[str]
) -> tuple[Histogram | None, bool]:
    """Of the first of these series that the server has, all models together; whether it is whole.

    Our engines publish the larger buckets first, and the count after all of them: until then some
    buckets are new, others old. No bucket of the histogram has more than that count.
    """
    for name in names:
        samples = [
            (float(labels["le"]), value)
            for model in models
            for labels, value in reading.series(f"{name}_bucket", model=model)
        ]
        count = sum_known(reading.total(f"{name}_count", model=model) for model in models)
        found = of_series(samples, most=math.inf if count is None else count)
        if found is not None:
            every = math.fsum(value for bound, value in samples if bound == math.inf)
            return found, count is None or count == every
    return None, True


def _token_seconds(reading: Reading, models: set[str]) -> float | None:
    for name in ITL_SERIES:
        found = sum_known(reading.total(f"{name}_sum", model=model) for model in models)
        if found is not None:
            return found
    return None


def of_series(samples: Iterable[tuple[float, float]], most: float = math.inf) -> Histogram | None:
    """Of bounds and cumulative counts, those of several servers added; None without any.

    most: what no bucket has more than.
    """
    buckets: dict[float, float] = {}
    for bound, value in samples:
        buckets[bound] = buckets.get(bound, 0.0) + value
    if not buckets:
        return None
    *bounds, _ = rising = sorted(buckets)
    # Published one after another: a bucket never holds less than the one before it.
    counts, least = [], 0.0
    for bound in rising:
        least = max(least, min(most, buckets[bound]))
        counts.append(least)
    return Histogram.cumulative(bounds, counts)


def _never_less(before: Counters, now: Counters) -> Counters:
    failures = max(before.failures, now.failures)
    times = dict(now.times)
    for name, earlier in before.times.items():
        later = times.get(name)
        if later is None or later.bounds != earlier.bounds:
            continue
        pairs = zip(earlier.counts, later.counts, strict=True)
        times[name] = Histogram(later.bounds, tuple(max(pair) for pair in pairs))
    requests = max(before.requests, now.requests, failures)
    stalled = now.stalled if before.stalled is None else max(before.stalled, now.stalled or 0)
    seconds = now.token_seconds
    if seconds is not None:
        seconds = max(before.token_seconds or 0.0, seconds)
    return Counters(requests, failures, times, now.memory_bytes, stalled, seconds)
