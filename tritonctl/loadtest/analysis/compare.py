# SPDX-License-Identifier: Apache-2.0
"""Two load tests, or two sets of interleaved ones: what differs, beyond chance and by how much.

A side of several runs is judged by their union, never by an average of percentiles. Intervals of
ratios and differences come from those of both sides by the method of variance estimates recovery:
G. Zou, A. Donner, "Construction of confidence limits about effect measures", Statistics in Medicine
27 (2008). About ten figures are looked at, so the level is 99 %: else two equal servers would often
differ in one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonctl.errors import UsageError
from tritonctl.loadtest.analysis.binomial import student
from tritonctl.loadtest.analysis.bootstrap import block_length, long_run_variance, share_interval
from tritonctl.loadtest.analysis.columns import Columns, Floats, Mask
from tritonctl.loadtest.analysis.percentiles import Sample
from tritonctl.loadtest.analysis.series import measured
from tritonctl.loadtest.analysis.settings import SettingDifference, between, explain, within
from tritonctl.loadtest.analysis.slo import failed, good
from tritonctl.loadtest.analysis.summarise import Run, inside, problems_of, read_run, window_of
from tritonctl.loadtest.analysis.summary import P99_REQUESTS, Window

LEVEL = 0.99
NO_DIFFERENCE, UNKNOWN = "no difference", "too few requests to tell"
_PERCENTILES = {"ttft": (0.5, 0.99), "itl": (0.5, 0.99), "tpot": (0.5,), "e2e": (0.5, 0.99)}
_SECOND = 1_000_000
_Events = tuple[np.ndarray, np.ndarray | None]  # their times, and what each counts for


@dataclass(frozen=True)
class Estimate:
    """A figure with its 99 % interval; None: no bound on that side."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Change:
    """One figure on both sides. `change` is right / left - 1 for ms and 1/s, right - left of
    shares; `differs` when its interval holds no zero.
    """

    name: str
    unit: str
    left: Estimate
    right: Estimate
    change: float | None
    low: float | None
    high: float | None
    differs: bool
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Both sides by the names of their folders, what was set differently, what came out."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    settings: tuple[SettingDifference, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    verdict: str


@dataclass(frozen=True)
class _Side:
    """One side's runs, each with its window and the requests planned in it."""

    runs: tuple[Run, ...]
    windows: tuple[Window, ...]
    measured: tuple[Columns, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> _Side:
        runs = tuple(read_run(folder) for folder in folders)
        windows = tuple(window_of(run) for run in runs)
        pairs = zip(runs, windows, strict=True)
        return cls(runs, windows, tuple(inside(run.columns, window) for run, window in pairs))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(run.folder.name for run in self.runs)


def compare(left: Sequence[Path], right: Sequence[Path], *, force: bool = False) -> Comparison:
    """Compare the runs in the folders of both sides.

    Raises UsageError when their loads differ, or the settings within a side, unless forced;
    ConfigurationError when a folder cannot be read.
    """
    sides = _Side.of(left), _Side.of(right)
    refusals = [difference for side in sides for difference in within(side.runs)]
    settings = between(sides[0].runs[0], sides[1].runs[0])
    refusals += [difference for difference in settings if difference.load]
    if refusals and not force:
        raise UsageError(
            f"the runs cannot be compared: {explain(refusals)}",
            remedy="run both with the same scenario, or give --force",
        )
    changes = tuple(_changes(*sides))
    return Comparison(
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
        for run, window, columns in zip(side.runs, side.windows, side.measured, strict=True):
            for reason in problems_of(run, columns):
                yield f"{run.folder.name} is not a valid measurement: {reason}"
            if not len(columns):
                yield f"{run.folder.name} measured no request"
            if not window.stationary:
                yield f"{run.folder.name}: {window.why}"


def _notes(sides: tuple[_Side, _Side], changes: Sequence[Change]) -> Iterator[str]:
    if any(change.differs for change in changes) and min(len(side.runs) for side in sides) == 1:
        yield (
            "one run a side cannot tell the server's change from the machine's: compare several "
            "that took turns (A B B A), each side separated by commas"
        )


def _verdict(changes: Sequence[Change]) -> str:
    verdicts = [f"{change.name} {change.verdict}" for change in changes if change.differs]
    if verdicts:
        return "; ".join(verdicts)
    known = any(change.verdict == NO_DIFFERENCE for change in changes)
    return NO_DIFFERENCE if known else UNKNOWN


def _changes(left: _Side, right: _Side) -> Iterator[Change]:
    yield from _percentiles(left, right)
    events: dict[str, Callable[[Columns], _Events]] = {
        "requests": lambda columns: (columns.end[columns.ended("ok")], None),
        "tokens": lambda columns: (columns.response_at, columns.response_tokens),
    }
    for name, of in events.items():
        estimates = [_rate(_per_second(side, of)) for side in (left, right)]
        if all(estimate.value > 0 for estimate in estimates):
            yield ratio(f"{name}_per_s", "1/s", *estimates, words=("higher", "lower"))
    shares: dict[str, Callable[[Run, Columns], Mask]] = {
        "goodput_share": lambda run, columns: good(columns, run.slo),
        "error_share": lambda run, columns: failed(columns, run.cool_down_us),
    }
    for name, flags in shares.items():
        estimates = [_share(side, flags) for side in (left, right) if any(map(len, side.measured))]
        if len(estimates) == 2:  # noqa: PLR2004
            yield difference(name, *estimates)


def _percentiles(left: _Side, right: _Side) -> Iterator[Change]:
    samples = [_samples(side) for side in (left, right)]
    for metric, quantiles in _PERCENTILES.items():
        if not all(metric in sample for sample in samples):
            continue
        pair = [sample[metric] for sample in samples]
        for q in quantiles:
            # Fewer give no 99th percentile either.
            if q > 0.9 and min(len(sample) for sample in pair) < P99_REQUESTS:  # noqa: PLR2004
                continue
            percentiles = [sample.percentile(q, LEVEL) for sample in pair]
            estimates = [Estimate(p.ms, p.low_ms, p.high_ms) for p in percentiles]
            name = f"{metric}_p{round(100 * q)}_ms"
            yield ratio(name, "ms", *estimates, words=("slower", "faster"))


def _samples(side: _Side) -> dict[str, Sample]:
    runs = [
        measured(columns, run.cool_down_us)
        for run, columns in zip(side.runs, side.measured, strict=True)
    ]
    names = [name for name in _PERCENTILES if all(name in series for series in runs)]
    return {name: Sample.of(*(series[name] for series in runs)) for name in names}


def _per_second(side: _Side, events: Callable[[Columns], _Events]) -> Floats:
    """How many events each whole second of the windows has."""
    counts = []
    for run, window in zip(side.runs, side.windows, strict=True):
        times, weights = events(run.columns)
        begin, end = math.ceil(window.from_s), math.floor(window.to_s)
        edges = np.arange(begin, end + 1) * _SECOND
        if len(edges) > 1:
            counts.append(np.histogram(times, bins=edges, weights=weights)[0])
    return np.concatenate(counts).astype(np.float64) if counts else np.zeros(0)


def _rate(counts: Floats) -> Estimate:
    """The mean with Student's interval over blocks of seconds."""
    if len(counts) < 2:  # noqa: PLR2004
        return Estimate(float(counts.sum()), None, None)
    length = block_length(counts)
    freedom = max(len(counts) / length - 1, 1.0)
    mean = float(counts.mean())
    margin = student(freedom, LEVEL) * math.sqrt(long_run_variance(counts, length))
    return Estimate(mean, max(mean - margin, 0.0), mean + margin)


def _share(side: _Side, flags: Callable[[Run, Columns], Mask]) -> Estimate:
    pairs = list(zip(side.runs, side.measured, strict=True))
    over = np.concatenate([flags(run, columns) for run, columns in pairs]).astype(np.float64)
    place = np.repeat(np.arange(len(pairs)), [len(columns) for _, columns in pairs])
    interval = share_interval(
        over, np.ones(len(over)), runs=place if len(pairs) > 1 else None, level=LEVEL
    )
    return Estimate(interval.share, interval.low, interval.high)


def ratio(
    name: str, unit: str, left: Estimate, right: Estimate, *, words: tuple[str, str]
) -> Change:
    """The relative change of a positive figure; `words` for more and less of it."""
    if left.value <= 0 or right.value <= 0:
        return Change(name, unit, left, right, None, None, None, False, UNKNOWN)
    middle = math.log(right.value / left.value)
    low = middle - math.hypot(_log(right.value, right.low), _log(left.high, left.value))
    high = middle + math.hypot(_log(right.high, right.value), _log(left.value, left.low))
    change, low, high = (math.expm1(value) for value in (middle, low, high))
    return _change(name, unit, (left, right), (change, low, high), words)


def _log(more: float | None, less: float | None) -> float:
    """How far apart two bounds are; without end where one of them is unknown."""
    return math.log(more / less) if more and less else math.inf


def difference(name: str, left: Estimate, right: Estimate) -> Change:
    """The difference of two shares, whose bounds are always known."""
    a, b = left, right
    change = b.value - a.value
    low = change - math.hypot(b.value - (b.low or 0.0), (a.high or 0.0) - a.value)
    high = change + math.hypot((b.high or 0.0) - b.value, a.value - (a.low or 0.0))
    return _change(name, "share", (a, b), (change, low, high), ("higher", "lower"))


def _change(
    name: str,
    unit: str,
    sides: tuple[Estimate, Estimate],
    interval: tuple[float, float, float],
    words: tuple[str, str],
) -> Change:
    change, low, high = interval
    differs = low > 0 or high < 0
    verdict = _size_in_words(interval, words, " points" if unit == "share" else " %")
    # expm1 of minus infinity is -1, the least possible: not a bound.
    lower = None if low == -1 or math.isinf(low) else low
    higher = None if math.isinf(high) else high
    return Change(name, unit, *sides, change, lower, higher, differs, verdict)


def _size_in_words(interval: tuple[float, float, float], words: tuple[str, str], unit: str) -> str:
    """`faster by 12 % [8, 15]`, no difference, or unknown."""
    change, low, high = interval
    if low <= 0 <= high:
        return UNKNOWN if low == -1 or math.isinf(high) else NO_DIFFERENCE
    more, less = words
    bounds = sorted((abs(100 * low), abs(100 * high)))
    top = "?" if math.isinf(bounds[1]) else f"{bounds[1]:.3g}"
    size = f"by {abs(100 * change):.3g}{unit} [{bounds[0]:.3g}, {top}]"
    return f"{more if change > 0 else less} {size}"
