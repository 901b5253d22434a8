# SPDX-License-Identifier: Apache-2.0
"""Compare two load tests, or two sets of interleaved ones: differences beyond chance.

A side of several runs is judged by their union, never by an average of percentiles. Intervals of
ratios and differences combine both sides' intervals by the method of variance estimates recovery:
G. Zou, A. Donner, "Construction of confidence limits about effect measures", Statistics in Medicine
27 (2008). The comparison has about ten figures, so the level is 99 %: with 95 %, two equal servers
would often differ in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonctl.errors import UsageError
from tritonctl.loadtest.analysis.binomial import student_t
from tritonctl.loadtest.analysis.bootstrap import block_length, long_run_variance, share_interval
from tritonctl.loadtest.analysis.columns import Columns, Floats, Mask
from tritonctl.loadtest.analysis.percentiles import DurationSample
from tritonctl.loadtest.analysis.series import duration_series
from tritonctl.loadtest.analysis.settings import (
    SettingDifference,
    differences_within,
    setting_differences,
    summarise_differences,
)
from tritonctl.loadtest.analysis.slo import failed_requests, meets_slo
from tritonctl.loadtest.analysis.summarise import (
    RecordedRun,
    find_window,
    read_run,
    run_problems,
    select_window,
)
from tritonctl.loadtest.analysis.summary import P99_REQUESTS, Window

LEVEL = 0.99
NO_DIFFERENCE, TOO_FEW_REQUESTS = "no difference", "too few requests to tell"
_PERCENTILES = {"ttft": (0.5, 0.99), "itl": (0.5, 0.99), "tpot": (0.5,), "e2e": (0.5, 0.99)}
_SECOND = 1_000_000
_Events = tuple[np.ndarray, np.ndarray | None]  # times and weights


@dataclass(frozen=True)
class Estimate:
    """A figure with its 99 % interval; None means unbounded on that side."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Change:
    """One figure on both sides."""

    name: str
    unit: str
    left: Estimate
    right: Estimate
    change: float | None  # right / left - 1 for ms and 1/s, right - left for shares
    low: float | None
    high: float | None
    differs: bool  # the interval excludes zero
    verdict: str


@dataclass(frozen=True)
class LoadComparison:
    """The comparison of two sides."""

    left: tuple[str, ...]  # folder names
    right: tuple[str, ...]
    settings: tuple[SettingDifference, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    verdict: str


@dataclass(frozen=True)
class _Side:
    """One side's runs, each with its window and the requests planned in it."""

    runs: tuple[RecordedRun, ...]
    windows: tuple[Window, ...]
    columns: tuple[Columns, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> _Side:
        runs = tuple(read_run(folder) for folder in folders)
        windows = tuple(find_window(run) for run in runs)
        pairs = zip(runs, windows, strict=True)
        return cls(
            runs, windows, tuple(select_window(run.columns, window) for run, window in pairs)
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.folder.name for run in self.runs)


def compare(
    baseline: Sequence[Path], candidate: Sequence[Path], *, force: bool = False
) -> LoadComparison:
    """Compare the runs in the folders of both sides.

    Raises UsageError, unless forced, when their loads differ or the settings within a side;
    ConfigurationError when a folder cannot be read.
    """
    sides = _Side.of(baseline), _Side.of(candidate)
    mismatches = [difference for side in sides for difference in differences_within(side.runs)]
    settings = setting_differences(sides[0].runs[0], sides[1].runs[0])
    mismatches += [difference for difference in settings if difference.load]
    if mismatches and not force:
        raise UsageError(
            f"the runs cannot be compared: {summarise_differences(mismatches)}",
            remedy="run both with the same scenario, or give --allow-different-loads",
        )
    changes = tuple(_compare_figures(*sides))
    return LoadComparison(
        left=sides[0].names,
        right=sides[1].names,
        settings=tuple(settings),
        warnings=tuple(_warnings(sides)),
        notes=tuple(_notes(sides, changes)),
        changes=changes,
        verdict=_verdict(changes),
    )


def _warnings(sides: tuple[_Side, _Side]) -> Iterator[str]:
    for side in sides:
        for run, window, columns in zip(side.runs, side.windows, side.columns, strict=True):
            for reason in run_problems(run, columns):
                yield f"{run.folder.name} is not a valid measurement: {reason}"
            if not len(columns):
                yield f"{run.folder.name} measured no request"
            if not window.stationary:
                yield f"{run.folder.name}: {window.why}"


def _notes(sides: tuple[_Side, _Side], changes: Sequence[Change]) -> Iterator[str]:
    if any(change.differs for change in changes) and min(len(side.runs) for side in sides) == 1:
        yield (
            "one run per side cannot separate the server's change from the machine's: compare "
            "several interleaved runs (A B B A), separated by commas on each side"
        )


def _verdict(changes: Sequence[Change]) -> str:
    verdicts = [f"{change.name} {change.verdict}" for change in changes if change.differs]
    if verdicts:
        return "; ".join(verdicts)
    any_decided = any(change.verdict == NO_DIFFERENCE for change in changes)
    return NO_DIFFERENCE if any_decided else TOO_FEW_REQUESTS


def _compare_figures(baseline: _Side, candidate: _Side) -> Iterator[Change]:
    yield from _compare_percentiles(baseline, candidate)
    events: dict[str, Callable[[Columns], _Events]] = {
        "requests": lambda columns: (columns.end[columns.has_outcome("ok")], None),
        "tokens": lambda columns: (columns.response_at, columns.response_tokens),
    }
    for name, event_times in events.items():
        estimates = [
            _rate_estimate(_counts_per_second(side, event_times)) for side in (baseline, candidate)
        ]
        if all(estimate.value > 0 for estimate in estimates):
            yield ratio_change(f"{name}_per_s", "1/s", *estimates, words=("higher", "lower"))
    shares: dict[str, Callable[[RecordedRun, Columns], Mask]] = {
        "goodput_share": lambda run, columns: meets_slo(columns, run.slo),
        "error_share": lambda run, columns: failed_requests(columns, run.cool_down_us),
    }
    for name, flags in shares.items():
        estimates = [
            _share_estimate(side, flags)
            for side in (baseline, candidate)
            if any(map(len, side.columns))
        ]
        if len(estimates) == 2:  # noqa: PLR2004
            yield share_change(name, *estimates)


def _compare_percentiles(baseline: _Side, candidate: _Side) -> Iterator[Change]:
    samples = [_samples(side) for side in (baseline, candidate)]
    for metric, quantiles in _PERCENTILES.items():
        if not all(metric in sample for sample in samples):
            continue
        pair = [sample[metric] for sample in samples]
        for q in quantiles:
            # Summaries need as many for a 99th percentile.
            if q > 0.9 and min(len(sample) for sample in pair) < P99_REQUESTS:  # noqa: PLR2004
                continue
            percentiles = [sample.percentile(q, LEVEL) for sample in pair]
            estimates = [Estimate(p.ms, p.low_ms, p.high_ms) for p in percentiles]
            name = f"{metric}_p{round(100 * q)}_ms"
            yield ratio_change(name, "ms", *estimates, words=("slower", "faster"))


def _samples(side: _Side) -> dict[str, DurationSample]:
    runs = [
        duration_series(columns, run.cool_down_us)
        for run, columns in zip(side.runs, side.columns, strict=True)
    ]
    names = [name for name in _PERCENTILES if all(name in series for series in runs)]
    return {name: DurationSample.from_series(*(series[name] for series in runs)) for name in names}


def _counts_per_second(side: _Side, events: Callable[[Columns], _Events]) -> Floats:
    """Count the events in each whole second of the windows."""
    counts = []
    for run, window in zip(side.runs, side.windows, strict=True):
        times, weights = events(run.columns)
        first_second, end = math.ceil(window.from_s), math.floor(window.to_s)
        edges = np.arange(first_second, end + 1) * _SECOND
        if len(edges) > 1:
            counts.append(np.histogram(times, bins=edges, weights=weights)[0])
    return np.concatenate(counts).astype(np.float64) if counts else np.zeros(0)


def _rate_estimate(counts: Floats) -> Estimate:
    """Return the mean with Student's interval over blocks of seconds."""
    if len(counts) < 2:  # noqa: PLR2004
        return Estimate(float(counts.sum()), None, None)
    length = block_length(counts)
    freedom = max(len(counts) / length - 1, 1.0)
    mean = float(counts.mean())
    margin = student_t(freedom, LEVEL) * math.sqrt(long_run_variance(counts, length))
    return Estimate(mean, max(mean - margin, 0.0), mean + margin)


def _share_estimate(side: _Side, flags: Callable[[RecordedRun, Columns], Mask]) -> Estimate:
    pairs = list(zip(side.runs, side.columns, strict=True))
    over = np.concatenate([flags(run, columns) for run, columns in pairs]).astype(np.float64)
    run_index = np.repeat(np.arange(len(pairs)), [len(columns) for _, columns in pairs])
    interval = share_interval(
        over, np.ones(len(over)), runs=run_index if len(pairs) > 1 else None, level=LEVEL
    )
    return Estimate(interval.share, interval.low, interval.high)


def ratio_change(
    name: str, unit: str, baseline: Estimate, candidate: Estimate, *, words: tuple[str, str]
) -> Change:
    """Return the relative change of a positive figure; `words` name a rise and a fall."""
    if baseline.value <= 0 or candidate.value <= 0:
        return Change(name, unit, baseline, candidate, None, None, None, False, TOO_FEW_REQUESTS)
    log_ratio = math.log(candidate.value / baseline.value)
    low = log_ratio - math.hypot(
        _log_distance(candidate.value, candidate.low), _log_distance(baseline.high, baseline.value)
    )
    high = log_ratio + math.hypot(
        _log_distance(candidate.high, candidate.value), _log_distance(baseline.value, baseline.low)
    )
    change, low, high = (math.expm1(value) for value in (log_ratio, low, high))
    return _build_change(name, unit, (baseline, candidate), (change, low, high), words)


def _log_distance(upper: float | None, lower: float | None) -> float:
    """Return the log ratio of two bounds; infinite if one is None."""
    return math.log(upper / lower) if upper and lower else math.inf


def share_change(name: str, baseline: Estimate, candidate: Estimate) -> Change:
    """Return the difference of two shares, which always have bounds."""
    a, b = baseline, candidate
    change = b.value - a.value
    low = change - math.hypot(b.value - (b.low or 0.0), (a.high or 0.0) - a.value)
    high = change + math.hypot((b.high or 0.0) - b.value, a.value - (a.low or 0.0))
    return _build_change(name, "share", (a, b), (change, low, high), ("higher", "lower"))


def _build_change(
    name: str,
    unit: str,
    sides: tuple[Estimate, Estimate],
    interval: tuple[float, float, float],
    words: tuple[str, str],
) -> Change:
    change, low, high = interval
    differs = low > 0 or high < 0
    verdict = _describe_change(interval, words, " points" if unit == "share" else " %")
    # expm1 of minus infinity is -1, the smallest possible value: no bound.
    lower = None if low == -1 or math.isinf(low) else low
    higher = None if math.isinf(high) else high
    return Change(name, unit, *sides, change, lower, higher, differs, verdict)


def _describe_change(
    interval: tuple[float, float, float], words: tuple[str, str], unit: str
) -> str:
    """Describe a change: `faster by 12 % [8, 15]`, no difference, or too few requests."""
    change, low, high = interval
    if low <= 0 <= high:
        return TOO_FEW_REQUESTS if low == -1 or math.isinf(high) else NO_DIFFERENCE
    more, less = words
    bounds = sorted((abs(100 * low), abs(100 * high)))
    top = "?" if math.isinf(bounds[1]) else f"{bounds[1]:.3g}"
    size = f"by {abs(100 * change):.3g}{unit} [{bounds[0]:.3g}, {top}]"
    return f"{more if change > 0 else less} {size}"
