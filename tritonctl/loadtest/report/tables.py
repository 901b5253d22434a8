# SPDX-License-Identifier: Apache-2.0
"""Texts and tables of a report: verdict, tiles, SLO, percentiles, classes, slowest requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.host.units import human_bytes
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    ClassSummary,
    DurationDistribution,
    ModelLoadFigures,
    Summary,
)
from tritonctl.loadtest.report.figures import format_ms
from tritonctl.loadtest.report.latency import format_interval, percentile_name
from tritonctl.loadtest.report.run import ReportedRun, TimedRequest
from tritonctl.loadtest.report.summary_text import measurement_notes

SLOWEST = 10
P99 = 0.99
SIGNS = {"met": "✓", "missed": "✗", "undecided": "?", "invalid": "!", "unjudged": "–"}
METRICS = {
    "ttft": "TTFT",
    "e2e": "end to end",
    "itl": "ITL",
    "tpot": "TPOT",
    "service_ttft": "TTFT, service time",
    "service_e2e": "end to end, service time",
    "send_lag": "send lag",
}
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class Badge:
    """A verdict: style, colour-independent sign, and words."""

    style: str
    words: str

    @property
    def sign(self) -> str:
        """The sign of the style: ✓, ✗, ?, ! or –."""
        return SIGNS[self.style]


@dataclass(frozen=True)
class Tile:
    """One figure of the header."""

    name: str
    value: str
    below: str = ""  # small print under the value


@dataclass(frozen=True)
class Cell:
    """A figure of a table and, smaller, its interval."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first cell of each row is its heading."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell | Badge | str]]
    words: Sequence[int] = ()  # indices of text columns


def badge(summary: Summary) -> Badge:
    """Return the run's verdict in two words."""
    if not summary.valid:
        return Badge("invalid", "Run not valid")
    words = {"met": "SLO met", "missed": "SLO missed", "undecided": "SLO undecided"}
    if summary.slo_verdict is None:
        return Badge("unjudged", "No SLO set")
    return Badge(summary.slo_verdict, words[summary.slo_verdict])


def verdict_words(summary: Summary) -> str:
    """Describe the verdict and its reliability."""
    counts, window, rates = summary.counts, summary.window, summary.rates
    sent = f"{counts.sent:,} of {counts.planned:,} planned requests were sent in the"
    span = f"{window.to_s - window.from_s:.1f} s window"
    rates_text = f"{rates.offered_rps:.4g} requests/s offered, {rates.achieved_rps:.4g} answered"
    words = [f"{sent} {span} ({rates_text})."]
    if window.why:
        words.append(f"{window.why[0].upper()}{window.why[1:]}.")
    if not summary.decisive:
        words.append(
            f"A sample below {DECISIVE_REQUESTS:,} requests gives an impression, but is too small"
            " to compare settings."
        )
    if summary.reason != "complete":
        words.append(f"The run ended early: {summary.reason}.")
    if counts.empty:
        words.append(f"{counts.empty:,} answers had no tokens: they are never good.")
    words += [f"{note}." for note in measurement_notes(summary)]
    words += [f"{doubt[0].upper()}{doubt[1:]}." for doubt in summary.doubts]
    return " ".join(words)


def tiles(summary: Summary, streams: bool) -> list[Tile]:
    """Return the key figures."""
    rates, counts = summary.rates, summary.counts
    failed = counts.error + counts.timeout + counts.abandoned
    tiles = [
        Tile("Offered", f"{rates.offered_rps:.4g}/s", f"{rates.achieved_rps:.4g}/s answered"),
        Tile("Goodput", f"{rates.goodput_rps:.4g}/s", _goodput_note(rates.goodput_share)),
        *(
            _tail_tile(METRICS[m], summary.metrics.get(m))
            for m in ("ttft", "e2e", "itl")
            if m in summary.metrics
        ),
    ]
    if streams:
        tiles.append(Tile("Tokens", f"{rates.tokens_per_s:,.4g}/s"))
    cancelled = f", {counts.cancelled:,} cancelled on purpose" if counts.cancelled else ""
    empty = f", {counts.empty:,} answers without tokens" if counts.empty else ""
    tiles.append(Tile("Failed", f"{failed:,}", f"of {counts.planned:,}{cancelled}{empty}"))
    size = "large enough to decide" if summary.decisive else f"decisive from {DECISIVE_REQUESTS:,}"
    return [*tiles, Tile("Sample", f"{counts.sent:,}", size)]


def _goodput_note(share: float | None) -> str:
    return "no SLO set" if share is None else f"{share:.2%} met every SLO limit"


def _tail_tile(name: str, distribution: DurationDistribution | None) -> Tile:
    """Return the highest supported percentile up to P99, with the median below."""
    percentiles = [p for p in distribution.percentiles if p.q <= P99] if distribution else []
    if not percentiles:
        return Tile(name, "-", "no sample")
    tail, median = percentiles[-1], percentiles[0]
    return Tile(
        f"{name} {percentile_name(tail.q)}",
        format_ms(tail.ms),
        f"{format_interval(tail)} · {percentile_name(median.q)} {format_ms(median.ms)}",
    )


def slo_table(summary: Summary) -> Table | None:
    """Return a row per target; None without an SLO."""
    if not summary.slo:
        return None
    rows = []
    for target in summary.slo:
        metric = target.name.partition("_")[0]
        distribution = summary.metrics.get(metric) if target.limit_ms else None
        measured = _percentile_cell(distribution, 1 - target.allowed_share)
        limit = f"{target.limit_ms:g} ms" if target.limit_ms else f"{target.allowed_share:.3g}"
        rows.append(
            [
                target.name,
                limit,
                measured,
                _share_cell(target.share_over, target.low, target.high),
                f"{target.allowed_share:.3%}",
                Badge(target.verdict, target.verdict),
                target.why,
            ]
        )
    caption = (
        "The service level objective. The verdict compares the 95 % interval of the share beyond"
        " the limit, failed requests included, with the allowed share."
    )
    headings = ("target", "limit", "measured", "share beyond", "allowed", "verdict", "reason")
    return Table(caption, headings, rows, words=(6,))


def _share_cell(share: float | None, low: float | None, high: float | None) -> Cell | str:
    if share is None:
        return "-"
    has_bounds = low is not None and high is not None
    return Cell(f"{share:.3%}", f"{low:.3%} to {high:.3%}" if has_bounds else "")


def percentile_table(metrics: Mapping[str, DurationDistribution], caption: str) -> Table:
    """Return a row per metric: sample size, extremes, mean, percentiles with intervals."""
    rows = []
    for name, label in METRICS.items():
        if (distribution := metrics.get(name)) and distribution.n:
            cells = [_percentile_cell(distribution, q) for q in QUANTILES]
            min_and_mean = [format_ms(distribution.min_ms), format_ms(distribution.mean_ms)]
            rows.append(
                [
                    label,
                    f"{distribution.n:,}",
                    *min_and_mean,
                    *cells,
                    format_ms(distribution.max_ms),
                ]
            )
    headings = ["metric", "n", "min", "mean", *map(percentile_name, QUANTILES), "max"]
    return Table(caption, headings, rows)


def _percentile_cell(distribution: DurationDistribution | None, q: float) -> Cell | str:
    percentile = distribution.percentile(q) if distribution else None
    return Cell(format_ms(percentile.ms), format_interval(percentile)) if percentile else "-"


def class_table(classes: Mapping[str, ClassSummary]) -> Table | None:
    """Return a row per class of requests; None for a single class."""
    caption = "The scenario's classes of requests."
    return _subset_table("class", classes, caption)


def version_table(versions: Mapping[str, ClassSummary]) -> Table | None:
    """Return a row per model version; None if only one answered."""
    caption = "By the model version that answered, which is the release's number."
    return _subset_table("version", versions, caption)


def _subset_table(
    subset_kind: str, subsets: Mapping[str, ClassSummary], caption: str
) -> Table | None:
    if len(subsets) < 2:  # noqa: PLR2004
        return None
    rows = [
        [
            name,
            f"{subset.counts.planned:,}",
            f"{subset.counts.ok:,}",
            f"{subset.counts.error + subset.counts.timeout + subset.counts.abandoned:,}",
            f"{subset.counts.cancelled:,}",
            f"{subset.counts.empty:,}",
            f"{subset.rates.offered_rps:.4g}",
            *(
                _percentile_cell(subset.metrics.get(m), q)
                for m in ("ttft", "e2e")
                for q in (0.5, 0.99)
            ),
        ]
        for name, subset in subsets.items()
    ]
    headings = [subset_kind, "planned", "ok", "failed", "cancelled", "empty", "offered/s"]
    headings += ["TTFT P50", "TTFT P99", "e2e P50", "e2e P99"]
    return Table(caption, headings, rows)


def server_table(summary: Summary, order: Sequence[str]) -> Table | None:
    """Return a row per model with the server's figures in the window."""
    if summary.server is None or not summary.server.models:
        return None
    models = summary.server.models
    names = [*(n for n in order if n in models), *(n for n in models if n not in order)]
    rows = []
    # One unknown step time makes all shares unknown.
    all_times_published = all(
        m.total_ms is not None for m in models.values() if m.share is not None
    )
    for name in names:
        m = models[name]
        rows.append(
            [
                name,
                f"{m.rate:.4g}",
                f"{m.failures:.4g}",
                "-" if m.batch_factor is None else f"{m.batch_factor:.2f}",
                *_time_cells(m),
                f"{m.share:.1%}" if all_times_published and m.share is not None else "-",
                "-" if m.pending_max is None else f"{m.pending_max:g}",
            ]
        )
    headings = ["model", "requests/s", "failures", "batch", "queue", "input", "infer"]
    headings += ["output", "prefill", "decode", "request", "share", "pending"]
    caption = (
        "The server's figures per model in the window: mean times per request in ms; batch:"
        " requests per execution; pending: maximum waiting."
    )
    if any(m.decoupled for m in models.values()):
        caption += " Times of decoupled models come from the engine: Triton sees no responses."
    if reloaded := [name for name in names if models[name].reloads]:
        caption += (
            f" Reloaded in the window: {', '.join(reloaded)}; counts around a reload are lost, so"
            " these rates are too low."
        )
    return Table(caption, headings, rows)


def _time_cells(model: ModelLoadFigures) -> list[str]:
    """Format queue, input, infer, output, prefill, decode and total time of a request."""
    triton: list[float | None] = [model.input_ms, model.infer_ms, model.output_ms]
    if model.decoupled:
        triton = [None, None, None]
    engine = model.engine
    inside: list[float | None] = [engine.prefill_ms, engine.decode_ms] if engine else [None, None]
    queue = model.queue_ms + ((engine.queue_ms or 0.0) if engine else 0.0)
    return [format_ms(value) for value in (queue, *triton, *inside, model.total_ms)]


def error_table(summary: Summary) -> Table | None:
    """Return failures of the whole run by kind and message; None without failures."""
    if not summary.errors:
        return None
    rows = [[group.kind, f"{group.count:,}", group.message or "-"] for group in summary.errors]
    caption = "Failures of the whole run, including those outside the window."
    return Table(caption, ("kind", "count", "message"), rows, words=(2,))


def slowest_table(run: ReportedRun) -> Table | None:
    """Return the slowest requests with their times; None without requests."""
    if not run.requests:
        return None
    slowest = sorted(run.requests, key=lambda request: request.e2e_ms, reverse=True)[:SLOWEST]
    headings = ["request", "class", "outcome", "planned", "send lag", "TTFT", "longest gap"]
    headings += ["end to end", "tokens"]
    caption = (
        f"The {len(slowest)} slowest requests of the whole run. Each is a line of requests.csv."
    )
    return Table(caption, headings, [_slowest_row(request) for request in slowest], words=(1,))


def _slowest_row(request: TimedRequest) -> list[str]:
    record = request.record
    return [
        str(record.index),
        record.class_name,
        record.outcome,
        f"{request.planned_s:.3f} s",
        format_ms(request.send_lag_ms),
        format_ms(request.ttft_ms),
        format_ms(request.max_gap_ms),
        format_ms(request.e2e_ms),
        "-" if record.output_tokens is None else f"{record.output_tokens:,}",
    ]


def versions_table(run: ReportedRun) -> Table:
    """Return versions and machine; unknown values are omitted."""
    facts = run.facts
    host = facts.get("host") or {}
    cpus, memory = host.get("cpus"), host.get("memory_bytes")
    versions = {
        "tritonctl": facts.get("tritonctl"),
        "project": facts.get("project"),
        "profile": facts.get("profile"),
        "server": _name_and_version(facts.get("server") or {}, "name"),
        "generator": _name_and_version(facts.get("generator") or {}, "engine"),
        "CPUs": cpus,
        "memory": human_bytes(memory) if memory else None,
        "kernel": host.get("kernel"),
        "Python": host.get("python"),
        "started": facts.get("started_at"),
    }
    rows = [[name, str(value)] for name, value in versions.items() if value]
    return Table("Versions and machine.", ("component", "value"), rows, words=(1,))


def _name_and_version(component: Mapping[str, Any], name_field: str) -> str:
    return " ".join(
        str(component[field]) for field in (name_field, "version") if component.get(field)
    )
