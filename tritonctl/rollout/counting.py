# SPDX-License-Identifier: Apache-2.0
"""Turn Triton's metrics into monotonic counters of one version.

A cancelled request counts as a failure: that reveals a version that hangs, and users who leave for
unrelated reasons leave both versions. Triton publishes the counters of an ensemble's models one
after another, so their sum may briefly fall by one; the tracker never falls. Histogram buckets are
published one after another, too: a page read in between has requests in a bucket that is far too
late, so its times are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tritonctl.rollout.judge import ITL, TTFT
from tritonctl.rollout.metrics import Counters, Histogram, counters_of
from tritonctl.top.counters import Reading, sum_known
from tritonctl.top.figures import ITL_SERIES, TTFT_SERIES, ModelLayout, figures

_SERIES = {TTFT: TTFT_SERIES, ITL: ITL_SERIES}
SUCCESS = "nv_inference_request_success"
_STALLED = "tritonctl_stalled_requests"
_NOTHING = Reading(0.0, {})
_NONE = Counters(0, 0)


class CounterTracker:
    """Tracks the counters of one version; `layout` names the steps of each ensemble."""

    def __init__(self, layout: ModelLayout) -> None:
        self._layout = layout
        self._raw_successes = 0.0
        self._previous: Counters | None = None

    def saved_state(self) -> dict[str, Any]:
        """Return the state for a later tracker, as JSON values."""
        return {"raw": self._raw_successes, "before": self._previous and asdict(self._previous)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from the `saved_state` of an earlier tracker. Raises as `counters_of`."""
        raw, self._previous = float(saved["raw"]), counters_of(saved["before"])
        self._raw_successes = raw

    def counters(self, reading: Reading) -> Counters:
        """Return the counts so far; they start from 0 again after a restart of the server."""
        raw = reading.total(SUCCESS) or 0.0
        if raw < self._raw_successes:
            self._previous = None
        self._raw_successes = raw
        models_load = figures([_NOTHING, Reading(1.0, reading.values)], self._layout).models
        failures = sum(sum(model.failures.values()) for model in models_load)
        requests = sum(model.requests_per_s for model in models_load) + failures
        models = {step for model in models_load for step in _step_models(model.model, self._layout)}
        previous = self._previous or _NONE
        seconds = _total_inter_token_seconds(reading, models)
        times = {}
        for name, series in _SERIES.items():
            histogram, is_whole = _histogram(reading, series, models)
            if not is_whole and name in previous.times:
                histogram = previous.times[name]
                seconds = previous.token_seconds if name == ITL else seconds
            if histogram is not None:
                times[name] = histogram
        stalled = sum_known(reading.total(_STALLED, model=model) for model in models)
        counters = Counters(
            round(requests),
            round(failures),
            times,
            reading.rss_bytes,
            None if stalled is None else round(stalled),
            seconds,
        )
        if self._previous is not None:
            counters = _monotonic(self._previous, counters)
        self._previous = counters
        return counters


def _step_models(model: str, layout: ModelLayout) -> Iterable[str]:
    return layout.steps.get(model) or (model,)


def _histogram(
    reading: Reading, names: Mapping[str, float], models: set[str]
) -> tuple[Histogram | None, bool]:
    """Merge the models' histograms of the first series that exists; return whether it is complete.

    This project's engines publish larger buckets first and the count last. Until then the buckets
    are partly new and partly old, so none is allowed to exceed the count.
    """
    for name in names:
        samples = [
            (float(labels["le"]), value)
            for model in models
            for labels, value in reading.series(f"{name}_bucket", model=model)
        ]
        count = sum_known(reading.total(f"{name}_count", model=model) for model in models)
        histogram = histogram_of_series(samples, max_count=math.inf if count is None else count)
        if histogram is not None:
            infinite_count = math.fsum(value for bound, value in samples if bound == math.inf)
            return histogram, count is None or count == infinite_count
    return None, True


def _total_inter_token_seconds(reading: Reading, models: set[str]) -> float | None:
    for name in ITL_SERIES:
        seconds = sum_known(reading.total(f"{name}_sum", model=model) for model in models)
        if seconds is not None:
            return seconds
    return None


def histogram_of_series(
    samples: Iterable[tuple[float, float]], max_count: float = math.inf
) -> Histogram | None:
    """Build a histogram from bounds and cumulative counts, adding servers; None without samples.

    max_count: the upper limit for every bucket.
    """
    buckets: dict[float, float] = {}
    for bound, value in samples:
        buckets[bound] = buckets.get(bound, 0.0) + value
    if not buckets:
        return None
    *bounds, _ = rising = sorted(buckets)
    # Buckets are published one after another: none holds less than its predecessor.
    counts, min_count = [], 0.0
    for bound in rising:
        min_count = max(min_count, min(max_count, buckets[bound]))
        counts.append(min_count)
    return Histogram.cumulative(bounds, counts)


def _monotonic(previous: Counters, now: Counters) -> Counters:
    failures = max(previous.failures, now.failures)
    times = dict(now.times)
    for name, earlier in previous.times.items():
        later = times.get(name)
        if later is None or later.bounds != earlier.bounds:
            continue
        pairs = zip(earlier.counts, later.counts, strict=True)
        times[name] = Histogram(later.bounds, tuple(max(pair) for pair in pairs))
    requests = max(previous.requests, now.requests, failures)
    stalled = now.stalled if previous.stalled is None else max(previous.stalled, now.stalled or 0)
    seconds = now.token_seconds
    if seconds is not None:
        seconds = max(previous.token_seconds or 0.0, seconds)
    return Counters(requests, failures, times, now.memory_bytes, stalled, seconds)
