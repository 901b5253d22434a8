# SPDX-License-Identifier: Apache-2.0
"""Decide whether a service meets its SLO, by the shares of requests over each limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.loadtest.analysis.bootstrap import ShareEstimate, share_interval
from tritonctl.loadtest.analysis.columns import NEVER, Columns, Floats, Mask, sum_by_index
from tritonctl.loadtest.analysis.percentiles import DurationSample
from tritonctl.loadtest.analysis.series import Series, duration_series, given_up_requests
from tritonctl.loadtest.analysis.stationarity import will_exceed
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    MET,
    MISSED,
    UNDECIDED,
    SloVerdict,
)

ERROR_RATE = "error_rate"
_TOKEN_METRICS = ("ttft", "itl", "tpot")
_LATENCY = re.compile(r"(ttft|itl|tpot|e2e)_p(\d\d\d?)_ms")
_CLUSTERING_QUANTILE = 0.9
# Level of a bound chosen by the data. With autocorrelation 0.95, it calls 1 % of runs exactly at
# the limit met; 95 % would call 4 % met.
_STRICT_LEVEL = 0.99


@dataclass(frozen=True)
class SloLimit:
    """An SLO target for a duration: at most `allowed_share` of the values exceed `ms`."""

    name: str
    metric: str
    ms: float
    allowed_share: float

    @property
    def us(self) -> float:
        """The limit in microseconds."""
        return self.ms * 1000


def latency_limits(slo: Mapping[str, float | None]) -> list[SloLimit]:
    """Return the duration limits of an SLO. Raises ConfigurationError for an unknown name."""
    durations = []
    for name, value in slo.items():
        if name == ERROR_RATE or value is None:
            continue
        match = _LATENCY.fullmatch(name)
        if match is None:
            raise ConfigurationError(
                f"slo.{name} is not an SLO target",
                remedy=f"use a name like ttft_p99_ms, itl_p99_ms, e2e_p99_ms or {ERROR_RATE}",
            )
        # p999 means 0.999: the digits follow the decimal point.
        allowed = 1 - int(match[2]) / 10 ** len(match[2])
        durations.append(SloLimit(name, match[1], float(value), round(allowed, 6)))
    return durations


def judge(
    columns: Columns, slo: Mapping[str, float | None], *, cool_down_us: int, growth: float = 0.0
) -> tuple[SloVerdict, ...]:
    """Return a verdict for each SLO target.

    `growth` (`Window.growth`) above 0 leaves a target undecided unless its times stay far below
    the limit.
    """
    series = duration_series(columns, cool_down_us)
    verdicts = [
        _latency_verdict(limit, columns, series.get(limit.metric), cool_down_us, growth)
        for limit in latency_limits(slo)
    ]
    allowed = slo.get(ERROR_RATE)
    if allowed is not None:
        verdicts.append(_error_rate_verdict(columns, float(allowed), cool_down_us))
    return tuple(verdicts)


def overall_verdict(verdicts: Iterable[SloVerdict]) -> str | None:
    """Return missed if any target is, else undecided if any is, else met; None without targets."""
    words = {verdict.verdict for verdict in verdicts}
    return next((v for v in (MISSED, UNDECIDED, MET) if v in words), None)


def failed_requests(columns: Columns, cool_down_us: int) -> Mask:
    """Return a mask of failed requests, which count as over every limit."""
    return np.asarray(columns.has_outcome("error") | given_up_requests(columns, cool_down_us))


def _latency_verdict(
    limit: SloLimit, columns: Columns, series: Series | None, cool_down_us: int, growth: float
) -> SloVerdict:
    failures = failed_requests(columns, cool_down_us)
    empty_count = 0
    if limit.metric in _TOKEN_METRICS:
        # No token ever came, so every limit on tokens is exceeded.
        empty_count = int(columns.is_empty.sum())
        failures = failures | columns.is_empty
    if series is None and not failures.any():
        return _slo_verdict(limit, None, f"no request has a value of {limit.metric}", UNDECIDED)
    sample = None if series is None else DurationSample.from_series(series)
    share = _share_over(limit, len(columns), series, sample, failures)
    if sample is not None and not failures.any():
        share = _cap_by_percentile(share, sample, limit)
    verdict, explanation = decide_verdict(
        share, limit.allowed_share, f"take longer than {limit.ms:g} ms"
    )
    explanation = _counted_as_over(int(failures.sum()) - empty_count, empty_count) + explanation
    if verdict == MET and sample is not None:
        quantile = sample.quantile(1 - limit.allowed_share)
        if will_exceed(quantile, limit.ms * 1000, growth):
            verdict = UNDECIDED
            explanation += "; but response times rose until the end: a longer run may miss it"
    if limit.metric not in _TOKEN_METRICS:
        verdict, explanation = _doubt_empty_answers(
            columns, limit.allowed_share, verdict, explanation
        )
    return _slo_verdict(limit, share, explanation, verdict)


def _counted_as_over(failed: int, empty: int) -> str:
    """Return the start of an explanation; empty without such requests."""
    parts = [
        f"{count} {words}"
        for count, words in ((failed, "failed requests"), (empty, "answers without tokens"))
        if count
    ]
    return f"{' and '.join(parts)} count as over the limit: " if parts else ""


def _doubt_empty_answers(
    columns: Columns, allowed: float, verdict: str, explanation: str
) -> tuple[str, str]:
    """Leave a met target undecided if answers without tokens could be more than is allowed.

    They end early and without an error, so they flatter times and error rates.
    """
    count, n = int(columns.is_empty.sum()), len(columns)
    if verdict != MET or not count or share_bounds(count, n)[1] <= allowed:
        return verdict, explanation
    doubt = f"but {count} of {n} answers had no tokens: see the model's log for the reason"
    return UNDECIDED, f"{explanation}; {doubt}"


def _share_over(
    limit: SloLimit,
    requests: int,
    series: Series | None,
    sample: DurationSample | None,
    failures: Mask,
) -> ShareEstimate:
    """Estimate the share over the limit from per-request weights; failed requests are all over."""
    total = over = reference_over = np.zeros(requests)
    min_block_length = 1
    if series is not None and sample is not None:
        min_block_length = sample.min_block_length
        total = sum_by_index(series.owner, series.weights, requests)
        over = _weight_over(series, limit.ms * 1000, requests)
        reference_over = _weight_over(series, sample.quantile(_CLUSTERING_QUANTILE), requests)
    # A failed request gets the mean number of tokens.
    mean_weight = total[total > 0].mean() if total.any() else 1.0
    total, over, reference_over = (
        np.where(failures, mean_weight, column) for column in (total, over, reference_over)
    )
    has_weight = total > 0
    return share_interval(
        over[has_weight],
        total[has_weight],
        reference_over=reference_over[has_weight],
        min_block_length=min_block_length,
    )


def _cap_by_percentile(
    share: ShareEstimate, sample: DurationSample, limit: SloLimit
) -> ShareEstimate:
    """Cap the share's upper bound if the percentile's interval ends below the limit.

    When no value comes near the limit, the share itself says little: the clustering of such rare
    values is unknown.
    """
    high = sample.percentile(1 - limit.allowed_share, _STRICT_LEVEL).high_ms
    if high is None or high > limit.ms:
        return share
    return replace(share, high=min(share.high, limit.allowed_share))


def _weight_over(series: Series, limit: float, requests: int) -> Floats:
    return sum_by_index(series.owner, series.weights * (series.values > limit), requests)


def decide_verdict(share: ShareEstimate, allowed: float, verb: str) -> tuple[str, str]:
    """Return (verdict, reason): met or missed if the interval lies on one side of `allowed`.

    `verb` completes "x % of the requests ..." in the reason.
    """
    interval = f"[{100 * share.low:.3g}, {100 * share.high:.3g}]"
    measured_share = (
        f"{format_percent(share.share)} {interval} {verb}, {format_percent(allowed)} allowed"
    )
    if share.high <= allowed:
        return MET, measured_share
    if share.low > allowed:
        return MISSED, measured_share
    too_few = share.effective < DECISIVE_REQUESTS
    reason = "too few independent requests" if too_few else "too close to the limit"
    return UNDECIDED, f"{measured_share}: {reason} to decide, run longer"


def format_percent(share: float) -> str:
    """Format a share: `0.95 %`."""
    return f"{100 * share:.3g} %"


def _slo_verdict(
    limit: SloLimit, share: ShareEstimate | None, explanation: str, verdict: str
) -> SloVerdict:
    return SloVerdict(
        name=limit.name,
        limit_ms=limit.ms,
        allowed_share=limit.allowed_share,
        share_over=share.share if share else None,
        low=share.low if share else None,
        high=share.high if share else None,
        verdict=verdict,
        why=explanation,
    )


def _error_rate_verdict(columns: Columns, allowed: float, cool_down_us: int) -> SloVerdict:
    target = SloLimit(ERROR_RATE, ERROR_RATE, 0.0, allowed)
    if not len(columns):
        verdict = _slo_verdict(target, None, "no request was sent", UNDECIDED)
    else:
        n, count = len(columns), int(failed_requests(columns, cool_down_us).sum())
        share = ShareEstimate(count / n, *share_bounds(count, n), n)
        decided, explanation = decide_verdict(share, allowed, "fail")
        decided, explanation = _doubt_empty_answers(columns, allowed, decided, explanation)
        verdict = _slo_verdict(target, share, f"{count} of {n} failed: {explanation}", decided)
    return replace(verdict, limit_ms=None)


def meets_slo(columns: Columns, slo: Mapping[str, float | None]) -> Mask:
    """Return a mask of requests that are shown to be within every limit, for goodput.

    An answer without tokens is never good, nor is one without a value where there is a limit.
    itl limits apply to a request's mean gap between tokens (tpot), as in GenAI-Perf, AIPerf and
    vLLM.
    """
    within_limits = columns.has_outcome("ok") & ~columns.is_empty
    for limit in latency_limits(slo):
        # False for NaN.
        within_limits = within_limits & (_request_durations(columns, limit.metric) <= limit.us)
    return np.asarray(within_limits)


def _request_durations(columns: Columns, metric: str) -> Floats:
    """Return each request's duration in microseconds; NaN without one.

    Tokens of a single response were made since the request was due: their mean gap is at most that
    time divided among them. A single token has no gap to wait for.
    """
    if metric == "e2e":
        return (columns.end - columns.planned).astype(np.float64)
    if metric == "ttft":
        waited = (columns.first - columns.planned).astype(np.float64)
        return np.where(columns.first == NEVER, np.nan, waited)
    since = np.where(columns.responses > 1, columns.first, columns.planned)
    gap = (columns.last - since) / np.maximum(columns.tokens - 1, 1)
    gap = np.where(columns.tokens > 1, gap, 0.0)
    return np.where(columns.first == NEVER, np.nan, gap)
