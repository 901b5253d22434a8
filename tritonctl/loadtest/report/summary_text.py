# SPDX-License-Identifier: Apache-2.0
"""A summary as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    P99_REQUESTS,
    DurationDistribution,
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


def metric_rows(summary: Summary) -> list[list[str]]:
    """Return a row of figures per metric."""
    return [
        [name, *_metric_figures(summary.metrics[metric])]
        for metric, name in _METRICS.items()
        if metric in summary.metrics
    ]


def _metric_figures(distribution: DurationDistribution) -> Iterator[str]:
    yield milliseconds(distribution.mean_ms)
    for q in _COLUMNS.values():
        percentile = distribution.percentile(q)
        yield _NONE if percentile is None else milliseconds(percentile.ms)
    yield _interval(distribution.percentile(0.99))
    yield milliseconds(distribution.max_ms)
    yield f"{distribution.n:,}"


def milliseconds(value: float) -> str:
    """Format milliseconds with three significant digits, or as a whole number from 100 on."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _interval(percentile: Percentile | None) -> str:
    if percentile is None:
        return _NONE
    low = "?" if percentile.low_ms is None else milliseconds(percentile.low_ms)
    high = "?" if percentile.high_ms is None else milliseconds(percentile.high_ms)
    return f"{low} .. {high}"


def opening_lines(summary: Summary) -> list[str]:
    """Return the scenario, its counts, rates, window and failures."""
    counts, rates, window = summary.counts, summary.rates, summary.window
    end_note = "" if summary.reason == "complete" else f" ({summary.reason})"
    lines = [
        f"{summary.scenario}: {counts.sent:,} requests to {summary.model}{end_note}",
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
    if counts.empty:
        failures["answers without tokens (never good)"] = counts.empty
    if failures:
        lines.append("  " + ", ".join(f"{count:,} {name}" for name, count in failures.items()))
    if len(summary.versions) > 1:
        lines.append("  by version: " + "; ".join(_version_notes(summary)))
    if summary.resumed:
        lines.append(f"  {summary.resumed:,} broken streams resumed")
    lines += [f"  {note}" for note in measurement_notes(summary)]
    lines += [f"    {e.count:,} x {e.kind}: {e.message}" for e in summary.errors[:5]]
    return lines


def measurement_notes(summary: Summary) -> list[str]:
    """Return what the figures of tokens lack."""
    notes = []
    if summary.single_response:
        notes.append(
            f"{summary.single_response:,} answers came whole, in one response: without ITL and TPOT"
        )
    if summary.uncounted_tokens:
        notes.append(
            f"{summary.uncounted_tokens:,} answers had no num_output_tokens: each response counts "
            "as one token, so tokens/s, ITL and TPOT are those of responses"
        )
    return notes


def _version_notes(summary: Summary) -> Iterator[str]:
    for name, part in summary.versions.items():
        ttft = part.metrics["ttft"].percentile(0.5) if "ttft" in part.metrics else None
        failed = part.counts.error + part.counts.timeout + part.counts.abandoned
        yield (
            f"{name}: {part.counts.sent:,} requests, {failed:,} failed"
            + ("" if ttft is None else f", TTFT P50 {milliseconds(ttft.ms)} ms")
        )


def verdict_lines(summary: Summary) -> list[str]:
    """Return verdicts and bottleneck."""
    lines = []
    for entry in summary.slo:
        limit = "" if entry.limit_ms is None else f" {entry.limit_ms:g} ms"
        lines.append(f"{entry.verdict.upper():<9} {entry.name}{limit}: {entry.why}")
    if any(entry.n < P99_REQUESTS for name, entry in summary.metrics.items() if name == "e2e"):
        lines.append(f"no P99: it needs {P99_REQUESTS} requests in the measured window")
    elif summary.slo and not summary.decisive:
        decisive = DECISIVE_REQUESTS
        lines.append(f"to compare settings, send {decisive:,} requests: --count {decisive}")
    lines += [f"INVALID   {reason}" for reason in summary.invalid_because]
    lines += [f"UNCERTAIN {reason}" for reason in summary.doubts]
    lines.append(f"limited by: {summary.limited_by}")
    return lines


def next_lines(folder: Path) -> list[str]:
    """Return the folder of the results and the next step."""
    return [f"results: {folder}", f"next: {_next_step(folder)}"]


def _next_step(folder: Path) -> str:
    """Return a command to run, or the page to open."""
    page = folder / "report.html"
    if page.exists():
        return f"open {page}"
    return f"tritonctl loadtest report {folder}"
