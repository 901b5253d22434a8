# SPDX-License-Identifier: Apache-2.0
"""Whether a service meets its SLO: shares of requests over a limit, with their intervals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.loadtest.analysis.bootstrap import Share, share_interval
from tritonctl.loadtest.analysis.columns import NEVER, Columns, Floats, Mask, summed
from tritonctl.loadtest.analysis.percentiles import Sample
from tritonctl.loadtest.analysis.series import Series, gave_up, measured
from tritonctl.loadtest.analysis.stationarity import outgrows
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    MET,
    MISSED,
    UNDECIDED,
    SloVerdict,
)

ERROR_RATE = "error_rate"
_LATENCY = re.compile(r"(ttft|itl|tpot|e2e)_p(\d\d\d?)_ms")
_USUAL = 0.9
# Of a bound that the data themselves choose: with it, 1 % of runs exactly at the limit are called
# met where times are as dependent as 0.95 from one request to the next; with 95 %, 4 %.
_STRICT = 0.99


@dataclass(frozen=True)
class Limit:
    """An SLO target for a duration: at most `allowed` of its values lie over `ms`."""

    name: str
    metric: str
    ms: float
    allowed: float


def limits(slo: Mapping[str, float | None]) -> list[Limit]:
    """The durations that an SLO limits. Raises ConfigurationError for a name it cannot have."""
    durations = []
    for name, value in slo.items():
        if name == ERROR_RATE or value is None:
            continue
        match = _LATENCY.fullmatch(name)
        if match is None:
            raise ConfigurationError(
                f"slo.{name} is not an SLO target",
                remedy=f"use one like ttft_p99_ms, itl_p99_ms, e2e_p99_ms or {ERROR_RATE}",
            )
        # p999 is 99.9 %: the digits after the point of the share.
        allowed = 1 - int(match[2]) / 10 ** len(match[2])
        durations.append(Limit(name, match[1], float(value), round(allowed, 6)))
    return durations


def judge(
    columns: Columns, slo: Mapping[str, float | None], *, cool_down_us: int, growth: float = 0.0
) -> tuple[SloVerdict, ...]:
    """A verdict for each SLO target about these requests.

    growth: of response times that rose (`Window.growth`): nothing is proven for longer runs then,
    unless they stay far below the limit.
    """
    series = measured(columns, cool_down_us)
    verdicts = [
        _latency(limit, columns, series.get(limit.metric), cool_down_us, growth)
        for limit in limits(slo)
    ]
    allowed = slo.get(ERROR_RATE)
    if allowed is not None:
        verdicts.append(_errors(columns, float(allowed), cool_down_us))
    return tuple(verdicts)


def overall(verdicts: Iterable[SloVerdict]) -> str | None:
    """Missed if one is, else undecided if one is, else met; None without any target."""
    words = {verdict.verdict for verdict in verdicts}
    return next((v for v in (MISSED, UNDECIDED, MET) if v in words), None)


def failed(columns: Columns, cool_down_us: int) -> Mask:
    """Requests that count as over every limit: no answer, or none in time."""
    return np.asarray(columns.ended("error") | gave_up(columns, cool_down_us))


def _latency(
    limit: Limit, columns: Columns, series: Series | None, cool_down_us: int, growth: float
) -> SloVerdict:
    lost = failed(columns, cool_down_us)
    if series is None and not lost.any():
        return _verdict(limit, None, f"no request has a value of {limit.metric}", UNDECIDED)
    sample = None if series is None else Sample.of(series)
    share = _share(limit, len(columns), series, sample, lost)
    if sample is not None and not lost.any():
        share = _below_percentile(share, sample, limit)
    verdict, why = decide(share, limit.allowed, f"take longer than {limit.ms:g} ms")
    count = int(lost.sum())
    why = f"{count} without an answer in time count as longer: {why}" if count else why
    if verdict == MET and sample is not None:
        quantile = sample.quantile(1 - limit.allowed)
        if outgrows(quantile, limit.ms * 1000, growth):
            verdict = UNDECIDED
            why += "; but response times rose until the end: a longer run may break it"
    return _verdict(limit, share, why, verdict)


def _share(
    limit: Limit, requests: int, series: Series | None, sample: Sample | None, lost: Mask
) -> Share:
    """Per request how much is over the limit, and how much in all; lost requests are all over."""
    total = over = usual = np.zeros(requests)
    bulk = 1
    if series is not None and sample is not None:
        bulk = sample.bulk
        total = summed(series.owner, series.weights, requests)
        over = _over(series, limit.ms * 1000, requests)
        usual = _over(series, sample.quantile(_USUAL), requests)
    # A lost request would have had as many tokens as the others.
    each = total[total > 0].mean() if total.any() else 1.0
    total, over, usual = (np.where(lost, each, column) for column in (total, over, usual))
    counted = total > 0
    return share_interval(over[counted], total[counted], usual=usual[counted], bulk=bulk)


def _below_percentile(share: Share, sample: Sample, limit: Limit) -> Share:
    """No more lie over the limit than over the end of the percentile's interval, if that is below.

    Where nothing came near the limit, its own share says little: nobody knows how values so rare
    would gather.
    """
    high = sample.percentile(1 - limit.allowed, _STRICT).high_ms
    if high is None or high > limit.ms:
        return share
    return replace(share, high=min(share.high, limit.allowed))


def _over(series: Series, limit: float, requests: int) -> Floats:
    return summed(series.owner, series.weights * (series.values > limit), requests)


def decide(share: Share, allowed: float, verb: str) -> tuple[str, str]:
    """Met or missed when the whole interval lies on one side of what is allowed.

    `verb` says what the share of requests does.
    """
    interval = f"[{100 * share.low:.3g}, {100 * share.high:.3g}]"
    measured_share = f"{percent(share.share)} {interval} {verb}, {percent(allowed)} may"
    if share.high <= allowed:
        return MET, measured_share
    if share.low > allowed:
        return MISSED, measured_share
    few = share.effective < DECISIVE_REQUESTS
    why = "too few independent requests" if few else "too close to the limit"
    return UNDECIDED, f"{measured_share}: {why} to tell, run longer"


def percent(share: float) -> str:
    """A share in words: `0.95 %`."""
    return f"{100 * share:.3g} %"


def _verdict(limit: Limit, share: Share | None, why: str, verdict: str) -> SloVerdict:
    return SloVerdict(
        name=limit.name,
        limit_ms=limit.ms,
        allowed_share=limit.allowed,
        share_over=share.share if share else None,
        low=share.low if share else None,
        high=share.high if share else None,
        verdict=verdict,
        why=why,
    )


def _errors(columns: Columns, allowed: float, cool_down_us: int) -> SloVerdict:
    target = Limit(ERROR_RATE, ERROR_RATE, 0.0, allowed)
    if not len(columns):
        verdict = _verdict(target, None, "no request was sent", UNDECIDED)
    else:
        n, count = len(columns), int(failed(columns, cool_down_us).sum())
        share = Share(count / n, *share_bounds(count, n), n)
        decided, why = decide(share, allowed, "fail")
        verdict = _verdict(target, share, f"{count} of {n} failed: {why}", decided)
    return replace(verdict, limit_ms=None)


def good(columns: Columns, slo: Mapping[str, float | None]) -> Mask:
    """Which requests were answered within every limit, as goodput counts them.

    itl limits bind a request's mean gap between tokens (tpot), as in GenAI-Perf, AIPerf and vLLM.
    """
    within = columns.ended("ok")
    for limit in limits(slo):
        duration = _durations(columns, limit.metric)
        within = within & (np.isnan(duration) | (duration <= limit.ms * 1000))
    return np.asarray(within)


def _durations(columns: Columns, metric: str) -> Floats:
    """Microseconds of each request, NaN where it has no such duration."""
    if metric == "e2e":
        return (columns.end - columns.planned).astype(np.float64)
    if metric == "ttft":
        waited = (columns.first - columns.planned).astype(np.float64)
        return np.where(columns.first == NEVER, np.nan, waited)
    span = (columns.last - columns.first) / np.maximum(columns.tokens - 1, 1)
    return np.where(columns.tokens > 1, span, np.nan)
