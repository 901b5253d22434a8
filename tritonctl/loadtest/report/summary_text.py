# SPDX-License-Identifier: Apache-2.0
"""A summary as a person reads it at a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    P99_REQUESTS,
    Distribution,
    Percentile,
    Summary,
)

_METRICS = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "end to end",
    "service_ttft": "TTFT from send",
    "service_e2e": "e2e from send",
    "send_lag": "send lag",
}
_COLUMNS = {"P50": 0.5, "P90": 0.9, "P95": 0.95, "P99": 0.99}
_NONE = "-"
HEADINGS = ("milliseconds", "mean", *_COLUMNS, "P99, 95 %", "max", "n")


def rows(summary: Summary) -> list[list[str]]:
    """A row of figures per metric."""
    return [
        [name, *_figures(summary.metrics[metric])]
        for metric, name in _METRICS.items()
        if metric in summary.metrics
    ]


def _figures(of: Distribution) -> Iterator[str]:
    yield milliseconds(of.mean_ms)
    for q in _COLUMNS.values():
        percentile = of.percentile(q)
        yield _NONE if percentile is None else milliseconds(percentile.ms)
    yield _interval(of.percentile(0.99))
    yield milliseconds(of.max_ms)
    yield f"{of.n:,}"


def milliseconds(value: float) -> str:
    """Three significant digits or whole milliseconds."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _interval(of: Percentile | None) -> str:
    if of is None:
        return _NONE
    low = "?" if of.low_ms is None else milliseconds(of.low_ms)
    high = "?" if of.high_ms is None else milliseconds(of.high_ms)
    return f"{low} .. {high}"


def opening(summary: Summary) -> list[str]:
    """What was run, and how much of it."""
    counts, rates, window = summary.counts, summary.rates, summary.window
    ended = "" if summary.reason == "complete" else f" ({summary.reason})"
    lines = [
        f"{summary.scenario}: {counts.sent:,} requests to {summary.model}{ended}",
        f"  offered {rates.offered_rps:.1f}/s, achieved {rates.achieved_rps:.1f}/s, "
        + (f"{rates.tokens_per_s:.0f} tokens/s, " if rates.tokens_per_s else "")
        + f"goodput {rates.goodput_rps:.1f}/s"
        + (f" ({rates.goodput_share:.1%})" if rates.goodput_share is not None else ""),
        f"  measured from {window.from_s:.1f} s to {window.to_s:.1f} s: {window.why}",
    ]
    failures = {
        name: getattr(counts, name)
        for name in ("error", "timeout", "abandoned", "cancelled", "unsent")
        if getattr(counts, name)
    }
    if failures:
        lines.append("  " + ", ".join(f"{count:,} {name}" for name, count in failures.items()))
    if len(summary.versions) > 1:
        lines.append("  by version: " + "; ".join(_of_version(summary)))
    if summary.resumed:
        lines.append(f"  {summary.resumed:,} answers broke and went on")
    lines += [f"    {e.count:,} x {e.kind}: {e.message}" for e in summary.errors[:5]]
    return lines


def _of_version(summary: Summary) -> Iterator[str]:
    for name, part in summary.versions.items():
        ttft = part.metrics["ttft"].percentile(0.5) if "ttft" in part.metrics else None
        failed = part.counts.error + part.counts.timeout + part.counts.abandoned
        yield (
            f"{name}: {part.counts.sent:,} requests, {failed:,} failed"
            + ("" if ttft is None else f", TTFT P50 {milliseconds(ttft.ms)} ms")
        )


def closing(summary: Summary, folder: Path) -> list[str]:
    """Verdicts, what limited it, where everything is, what to do next."""
    lines = []
    for one in summary.slo:
        limit = "" if one.limit_ms is None else f" {one.limit_ms:g} ms"
        lines.append(f"{one.verdict.upper():<9} {one.name}{limit}: {one.why}")
    if any(one.n < P99_REQUESTS for name, one in summary.metrics.items() if name == "e2e"):
        lines.append(f"no P99: it takes {P99_REQUESTS} requests in the measured window")
    elif summary.slo and not summary.decisive:
        decisive = DECISIVE_REQUESTS
        lines.append(f"to compare settings, send {decisive:,} requests: --count {decisive}")
    lines += [f"INVALID   {why}" for why in summary.invalid_because]
    lines += [f"UNCERTAIN {why}" for why in summary.doubts]
    lines.append(f"limited by: {summary.limited_by}")
    return [*lines, f"everything is in {folder}", f"next: {_next(folder)}"]


def _next(folder: Path) -> str:
    """A command to type, or a page to open."""
    page = folder / "report.html"
    if page.exists():
        return f"open {page}"
    return f"tritonctl loadtest report {folder}"
