# SPDX-License-Identifier: Apache-2.0
"""From Triton's metrics to the counters of one version, which only grow.

A request that its client gave up counts as a failure: that is how a version that hangs is seen, and
where people leave for reasons of their own they leave both. Triton's figures of an ensemble, put
together of several models' counters that are published one after another, may fall by one for a
moment; what has been counted stays counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tritonctl.rollout.judge import ITL, TTFT
from tritonctl.rollout.metrics import Counters, Histogram
from tritonctl.server.top.counters import Reading, sum_known
from tritonctl.server.top.figures import ITL_SERIES, TTFT_SERIES, Layout, figures

_SERIES = {TTFT: TTFT_SERIES, ITL: ITL_SERIES}
SUCCESS = "nv_inference_request_success"
_STALLED = "tritonctl_stalled_requests"
_NOTHING = Reading(0.0, {})


class Counting:
    """Of one version, scrape by scrape. `layout`: which models are steps of which."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._raw = 0.0
        self._before: Counters | None = None

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
        times = {
            name: histogram
            for name, series in _SERIES.items()
            if (histogram := _histogram(reading, series, models)) is not None
        }
        stalled = sum_known(reading.total(_STALLED, model=model) for model in models)
        now = Counters(
            round(requests),
            round(failures),
            times,
            reading.rss_bytes,
            None if stalled is None else round(stalled),
            _token_seconds(reading, models),
        )
        if self._before is not None:
            now = _never_less(self._before, now)
        self._before = now
        return now


def _workers(model: str, layout: Layout) -> Iterable[str]:
    return layout.steps.get(model) or (model,)


def _histogram(reading: Reading, names: Mapping[str, float], models: set[str]) -> Histogram | None:
    """Of the first of these series that the server has, all models together."""
    for name in names:
        found = of_series(
            (float(labels["le"]), value)
            for model in models
            for labels, value in reading.series(f"{name}_bucket", model=model)
        )
        if found is not None:
            return found
    return None


def _token_seconds(reading: Reading, models: set[str]) -> float | None:
    for name in ITL_SERIES:
        found = sum_known(reading.total(f"{name}_sum", model=model) for model in models)
        if found is not None:
            return found
    return None


def of_series(samples: Iterable[tuple[float, float]]) -> Histogram | None:
    """Of bounds and cumulative counts, those of several servers added; None without any."""
    buckets: dict[float, float] = {}
    for bound, value in samples:
        buckets[bound] = buckets.get(bound, 0.0) + value
    if not buckets:
        return None
    *bounds, _ = rising = sorted(buckets)
    # Published one after another: a bucket never holds less than the one before it.
    counts, most = [], 0.0
    for bound in rising:
        most = max(most, buckets[bound])
        counts.append(most)
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
