# SPDX-License-Identifier: Apache-2.0
"""The words and tables of a report: verdict, tiles, SLO, percentiles, classes, slowest requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.host.units import human_bytes
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    ClassSummary,
    Distribution,
    ModelFigures,
    Summary,
)
from tritonctl.loadtest.report.figures import milliseconds
from tritonctl.loadtest.report.latency import interval, percentile_name
from tritonctl.loadtest.report.run import Request, Run

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
    """A verdict: its style, a sign that needs no colour, and words."""

    style: str
    words: str

    @property
    def sign(self) -> str:
        """✓, ✗, ? or !."""
        return SIGNS[self.style]


@dataclass(frozen=True)
class Tile:
    """One figure of the header; `below` qualifies it."""

    name: str
    value: str
    below: str = ""


@dataclass(frozen=True)
class Cell:
    """A figure of a table and, smaller, its interval."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a caption; the first cell of each row names it."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell | Badge | str]]
    words: Sequence[int] = ()


def badge(summary: Summary) -> Badge:
    """The run's verdict in two words."""
    if not summary.valid:
        return Badge("invalid", "Run not valid")
    words = {"met": "SLO met", "missed": "SLO missed", "undecided": "SLO undecided"}
    if summary.slo_verdict is None:
        return Badge("unjudged", "No SLO set")
    return Badge(summary.slo_verdict, words[summary.slo_verdict])


def verdict_words(summary: Summary) -> str:
    """The verdict, and how far it can be trusted."""
    counts, window, rates = summary.counts, summary.window, summary.rates
    sent = f"{counts.sent:,} of {counts.planned:,} planned requests were sent in the"
    span = f"{window.to_s - window.from_s:.1f} s that count"
    pace = f"{rates.offered_rps:.4g} requests/s offered, {rates.achieved_rps:.4g} answered"
    words = [f"{sent} {span} ({pace})."]
    if window.why:
        words.append(f"{window.why[0].upper()}{window.why[1:]}.")
    if not summary.decisive:
        words.append(
            f"A sample below {DECISIVE_REQUESTS:,} requests: good for a look, too small to decide"
            " between settings."
        )
    if summary.reason != "complete":
        words.append(f"The run ended early: {summary.reason}.")
    words += [f"{doubt[0].upper()}{doubt[1:]}." for doubt in summary.doubts]
    return " ".join(words)


def tiles(summary: Summary, streams: bool) -> list[Tile]:
    """The figures that people look for first."""
    rates, counts = summary.rates, summary.counts
    failed = counts.error + counts.timeout + counts.abandoned
    tiles = [
        Tile("Offered", f"{rates.offered_rps:.4g}/s", f"{rates.achieved_rps:.4g}/s answered"),
        Tile("Goodput", f"{rates.goodput_rps:.4g}/s", _share(rates.goodput_share)),
        *(
            _tail(METRICS[m], summary.metrics.get(m))
            for m in ("ttft", "e2e", "itl")
            if m in summary.metrics
        ),
    ]
    if streams:
        tiles.append(Tile("Tokens", f"{rates.tokens_per_s:,.4g}/s"))
    cancelled = f", {counts.cancelled:,} cancelled on purpose" if counts.cancelled else ""
    tiles.append(Tile("Failed", f"{failed:,}", f"of {counts.planned:,}{cancelled}"))
    size = "large enough to decide" if summary.decisive else f"decisive from {DECISIVE_REQUESTS:,}"
    return [*tiles, Tile("Sample", f"{counts.sent:,}", size)]


def _share(share: float | None) -> str:
    return "no SLO to keep" if share is None else f"{share:.2%} kept every limit of the SLO"


def _tail(name: str, distribution: Distribution | None) -> Tile:
    """The highest percentile up to P99 that the sample allows, the median below."""
    known = [p for p in distribution.percentiles if p.q <= P99] if distribution else []
    if not known:
        return Tile(name, "-", "no sample")
    tail, median = known[-1], known[0]
    return Tile(
        f"{name} {percentile_name(tail.q)}",
        milliseconds(tail.ms),
        f"{interval(tail)} · {percentile_name(median.q)} {milliseconds(median.ms)}",
    )


def slo_table(summary: Summary) -> Table | None:
    """One line for each target."""
    if not summary.slo:
        return None
    rows = []
    for target in summary.slo:
        metric = target.name.partition("_")[0]
        distribution = summary.metrics.get(metric) if target.limit_ms else None
        measured = _percentile(distribution, 1 - target.allowed_share)
        limit = f"{target.limit_ms:g} ms" if target.limit_ms else f"{target.allowed_share:.3g}"
        rows.append(
            [
                target.name,
                limit,
                measured,
                _over(target.share_over, target.low, target.high),
                f"{target.allowed_share:.3%}",
                Badge(target.verdict, target.verdict),
                target.why,
            ]
        )
    caption = (
        "The service level objective. The verdict compares the share of requests beyond the limit"
        " (failed ones are) with the share that may be, by its 95 % interval."
    )
    headings = ("target", "limit", "measured", "share beyond", "allowed", "verdict", "why")
    return Table(caption, headings, rows, words=(6,))


def _over(share: float | None, low: float | None, high: float | None) -> Cell | str:
    if share is None:
        return "-"
    known = low is not None and high is not None
    return Cell(f"{share:.3%}", f"{low:.3%} to {high:.3%}" if known else "")


def percentile_table(metrics: Mapping[str, Distribution], caption: str) -> Table:
    """A line for each metric: sample, mean, percentiles with intervals, extremes."""
    rows = []
    for name, label in METRICS.items():
        if (distribution := metrics.get(name)) and distribution.n:
            cells = [_percentile(distribution, q) for q in QUANTILES]
            ends = [milliseconds(distribution.min_ms), milliseconds(distribution.mean_ms)]
            rows.append(
                [label, f"{distribution.n:,}", *ends, *cells, milliseconds(distribution.max_ms)]
            )
    headings = ["metric", "n", "min", "mean", *map(percentile_name, QUANTILES), "max"]
    return Table(caption, headings, rows)


def _percentile(distribution: Distribution | None, q: float) -> Cell | str:
    percentile = distribution.percentile(q) if distribution else None
    return Cell(milliseconds(percentile.ms), interval(percentile)) if percentile else "-"


def class_table(classes: Mapping[str, ClassSummary]) -> Table | None:
    """A line for each class of requests; None where there is only one."""
    caption = "The classes of requests that the scenario mixes."
    return _parts_table("class", classes, caption)


def version_table(versions: Mapping[str, ClassSummary]) -> Table | None:
    """A line for each version of the model; None where one alone has answered."""
    caption = "By the version of the model that answered, which is the release's number."
    return _parts_table("version", versions, caption)


def _parts_table(what: str, parts: Mapping[str, ClassSummary], caption: str) -> Table | None:
    if len(parts) < 2:  # noqa: PLR2004
        return None
    rows = [
        [
            name,
            f"{of_class.counts.planned:,}",
            f"{of_class.counts.ok:,}",
            f"{of_class.counts.error + of_class.counts.timeout + of_class.counts.abandoned:,}",
            f"{of_class.counts.cancelled:,}",
            f"{of_class.rates.offered_rps:.4g}",
            *(
                _percentile(of_class.metrics.get(m), q)
                for m in ("ttft", "e2e")
                for q in (0.5, 0.99)
            ),
        ]
        for name, of_class in parts.items()
    ]
    headings = [what, "planned", "ok", "failed", "cancelled", "offered/s"]
    headings += ["TTFT P50", "TTFT P99", "e2e P50", "e2e P99"]
    return Table(caption, headings, rows)


def server_table(summary: Summary, order: Sequence[str]) -> Table | None:
    """What the server says of each model in the window."""
    if summary.server is None or not summary.server.models:
        return None
    models = summary.server.models
    names = [*(n for n in order if n in models), *(n for n in models if n not in order)]
    rows = []
    # One step whose time nobody knows makes every share a guess.
    known = all(m.whole_ms is not None for m in models.values() if m.share is not None)
    for name in names:
        m = models[name]
        rows.append(
            [
                name,
                f"{m.rate:.4g}",
                f"{m.failures:.4g}",
                "-" if m.batch_factor is None else f"{m.batch_factor:.2f}",
                *_times(m),
                f"{m.share:.1%}" if known and m.share is not None else "-",
                "-" if m.pending_max is None else f"{m.pending_max:g}",
            ]
        )
    headings = ["model", "requests/s", "failures", "batch", "queue", "input", "infer"]
    headings += ["output", "prefill", "decode", "request", "share", "pending"]
    caption = (
        "What the server counted of each model in the window: means per request; batch: requests in"
        " an execution, pending: the most that waited."
    )
    if any(m.decoupled for m in models.values()):
        caption += " Of a decoupled model the times are the engine's own: Triton sees no answers."
    return Table(caption, headings, rows)


def _times(model: ModelFigures) -> list[str]:
    """Queue, input, infer, output, prefill, decode and the whole of a request."""
    triton: list[float | None] = [model.input_ms, model.infer_ms, model.output_ms]
    if model.decoupled:
        triton = [None, None, None]
    own = model.engine
    inside: list[float | None] = [own.prefill_ms, own.decode_ms] if own else [None, None]
    queue = model.queue_ms + ((own.queue_ms or 0.0) if own else 0.0)
    return [milliseconds(value) for value in (queue, *triton, *inside, model.whole_ms)]


def error_table(summary: Summary) -> Table | None:
    """Failures by kind and message, of the whole run."""
    if not summary.errors:
        return None
    rows = [[group.kind, f"{group.count:,}", group.message or "-"] for group in summary.errors]
    caption = "Failures of the whole run, also outside the window."
    return Table(caption, ("kind", "count", "message"), rows, words=(2,))


def slowest_table(run: Run) -> Table | None:
    """The requests that took longest, with where their time went."""
    if not run.requests:
        return None
    slowest = sorted(run.requests, key=lambda request: request.e2e_ms, reverse=True)[:SLOWEST]
    headings = ["request", "class", "outcome", "planned", "send lag", "TTFT", "longest gap"]
    headings += ["end to end", "tokens"]
    caption = (
        f"The {len(slowest)} slowest requests of the whole run. Each is a line of requests.csv."
    )
    return Table(caption, headings, [_slow(request) for request in slowest], words=(1,))


def _slow(request: Request) -> list[str]:
    record = request.record
    return [
        str(record.index),
        record.class_name,
        record.outcome,
        f"{request.planned_s:.3f} s",
        milliseconds(request.send_lag_ms),
        milliseconds(request.ttft_ms),
        milliseconds(request.longest_gap_ms),
        milliseconds(request.e2e_ms),
        "-" if record.output_tokens is None else f"{record.output_tokens:,}",
    ]


def versions_table(run: Run) -> Table:
    """Who measured whom, and on what; what is not known is left out."""
    facts = run.facts
    host = facts.get("host") or {}
    cpus, memory = host.get("cpus"), host.get("memory_bytes")
    known = {
        "tritonctl": facts.get("tritonctl"),
        "project": facts.get("project"),
        "profile": facts.get("profile"),
        "server": _named(facts.get("server") or {}, "name"),
        "generator": _named(facts.get("generator") or {}, "engine"),
        "CPUs": cpus,
        "memory": human_bytes(memory) if memory else None,
        "kernel": host.get("kernel"),
        "Python": host.get("python"),
        "started": facts.get("started_at"),
    }
    rows = [[name, str(value)] for name, value in known.items() if value]
    return Table("Versions and machine.", ("what", "which"), rows, words=(1,))


def _named(thing: Mapping[str, Any], name: str) -> str:
    return " ".join(str(thing[field]) for field in (name, "version") if thing.get(field))
