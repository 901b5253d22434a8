# SPDX-License-Identifier: Apache-2.0
"""Render the report of a load test: one self-contained HTML file without network access.

The page embeds Chart.js and its own script. Its Content-Security-Policy allows these two scripts
and its style sheet by their hashes and no fetches, so that a server's error message stays text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tritonctl.host.files import write_atomically
from tritonctl.host.version import __version__
from tritonctl.loadtest.report import tables
from tritonctl.loadtest.report.card import card
from tritonctl.loadtest.report.figures import ReportFigure
from tritonctl.loadtest.report.latency import gap_curves, latency_over_time, percentile_curves
from tritonctl.loadtest.report.load import generator_figure, throughput_figure
from tritonctl.loadtest.report.over_time import percentiles_over_time
from tritonctl.loadtest.report.requests import (
    concurrency_figure,
    input_length_figure,
    output_length_figure,
    prompt_length_figure,
)
from tritonctl.loadtest.report.run import ReportedRun, load_run
from tritonctl.loadtest.report.server import (
    breakdown_figure,
    engine_figure,
    machine_figure,
    queue_figure,
)

REPORT = "report.html"
_T = TypeVar("_T")
_FOLDER = Path(__file__).parent
_TEMPLATE = "template.html.j2"
_CHART_LIBRARY = "chartjs/chart.umd.min.js"


@dataclass(frozen=True)
class Section:
    """A part of the page: stacked figures, then a row of figures, then tables."""

    id: str
    title: str
    figures: Sequence[ReportFigure] = ()
    pair: Sequence[ReportFigure] = ()  # side by side
    tables: Sequence[tables.Table] = ()

    def __bool__(self) -> bool:
        """Whether the section has any content."""
        return bool(self.figures or self.pair or self.tables)


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of a run's folder. Raises UsageError, ConfigurationError, HostError."""
    path = output or folder / REPORT
    write_atomically(path, render_report(load_run(folder)))
    return path


def render_report(run: ReportedRun) -> str:
    """Return the page as text."""
    summary = run.summary
    return render_page(
        title=f"Load test of {summary.model}",
        subtitle=_subtitle(run),
        # An invalid run has no SLO verdict.
        badges=[tables.badge(summary)],
        card=card(run),
        words=tables.verdict_words(summary),
        invalid_title="These figures are not trustworthy:",
        invalid_because=summary.invalid_because,
        limited_title="Bottleneck:",
        limited_by=summary.limited_by,
        tiles=tables.tiles(summary, run.is_streaming),
        sections=_sections(run),
        versions=tables.versions_table(run),
        settings=_settings(run),
        folder=run.folder.name,
    )


def _subtitle(run: ReportedRun) -> str:
    arrivals = run.plan.get("arrivals") or {}
    process = arrivals.get("process", "?")
    parameters = ", ".join(f"{k} {_truncate(v)}" for k, v in arrivals.items() if k != "process")
    parts = [
        f"scenario {run.summary.scenario}",
        f"{process} arrivals ({parameters})" if parameters else process,
    ]
    if run.plan.get("seed") is not None:
        parts.append(f"seed {run.plan['seed']}")
    if started := run.facts.get("started_at"):
        parts.append(str(started))
    return " · ".join(parts)


def _truncate(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004


def _sections(run: ReportedRun) -> list[Section]:
    summary = run.summary
    order = run.facts.get("ensemble") or []
    failures: list[tuple[str, str]] = []

    def draw(*charts: Callable[[ReportedRun], ReportFigure | None]) -> list[ReportFigure]:
        return without_none(*(_draw(chart, run, failures) for chart in charts))

    percentiles = tables.percentile_table(
        summary.metrics, "Percentiles of the window, with 95 % intervals; - if n is too small."
    )
    sections = [
        Section("slo", "SLO targets", tables=without_none(tables.slo_table(summary))),
        Section(
            "latency-section",
            "Latency",
            draw(latency_over_time, percentiles_over_time),
            draw(percentile_curves, gap_curves),
            without_none(
                percentiles if percentiles.rows else None,
                tables.class_table(summary.classes),
                tables.version_table(summary.versions),
            ),
        ),
        Section(
            "requests",
            "Requests",
            pair=draw(
                concurrency_figure, prompt_length_figure, input_length_figure, output_length_figure
            ),
        ),
        Section(
            "load",
            "Load",
            draw(throughput_figure),
            (),
            without_none(tables.error_table(summary)),
        ),
        Section(
            "server",
            "Server",
            draw(breakdown_figure, queue_figure),
            draw(machine_figure, engine_figure),
            without_none(tables.server_table(summary, order)),
        ),
        Section("instrument", "Instrument", draw(generator_figure)),
        Section("slowest", "Slowest requests", tables=without_none(tables.slowest_table(run))),
    ]
    if failures:
        sections.append(Section("missing", "Missing charts", tables=[_missing_charts(failures)]))
    return [section for section in sections if section]


def _draw(
    chart: Callable[[ReportedRun], ReportFigure | None],
    run: ReportedRun,
    failures: list[tuple[str, str]],
) -> ReportFigure | None:
    """Draw a chart; if that fails, add it to `failures`: the page is worth more than a chart."""
    try:
        return chart(run)
    except Exception as error:
        name = chart.__name__.removesuffix("_figure").replace("_", " ")
        failures.append((name, f"{type(error).__name__}: {error}"))
        return None


def _missing_charts(failures: Sequence[tuple[str, str]]) -> tables.Table:
    caption = "Charts that could not be drawn: a bug in tritonctl. The other figures are complete."
    return tables.Table(caption, ("chart", "error"), failures, words=(1,))


def without_none(*items: _T | None) -> list[_T]:
    """Return the items that are not None."""
    return [item for item in items if item is not None]


def _settings(run: ReportedRun) -> list[tuple[str, str]]:
    """Return plan, model configurations and facts as (name, JSON)."""
    other_facts = {k: v for k, v in run.facts.items() if k != "models"}
    sources: list[tuple[str, Mapping[str, Any]]] = [("Load plan (plan.json)", run.plan)]
    models = run.facts.get("models") or {}
    sources += [(f"Model configuration of {name}", config) for name, config in models.items()]
    sources.append(("Facts (facts.json)", other_facts))
    return [(name, json.dumps(v, ensure_ascii=False, indent=2)) for name, v in sources if v]


def render_page(*, sections: Sequence[Section], **words: Any) -> str:
    """Fill the template with the sections; an undefined name in it is an error."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    style, script, library = _asset("page.css"), _asset("page.js"), _chart_library()
    figures = [figure.record() for s in sections for figure in (*s.figures, *s.pair)]
    return environment.get_template(_TEMPLATE).render(
        sections=sections,
        style=Markup(style),  # noqa: S704 - a file of this package
        library=Markup(library),  # noqa: S704 - the same
        script=Markup(script),  # noqa: S704 - the same
        figures=Markup(embedded_json(figures)),  # noqa: S704 - escaped by embedded_json
        policy=_security_policy(style, [library, script]),
        version=__version__,
        **words,
    )


def embedded_json(value: object) -> str:
    """Encode JSON for a script element: escape everything that could end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _security_policy(style: str, scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy: no fetches, only these scripts and this style sheet."""
    script_sources = " ".join(_source_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {script_sources}; style-src {_source_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _chart_library() -> str:
    """Return Chart.js without its last line, which names a file for debuggers to fetch."""
    return _asset(_CHART_LIBRARY).partition("//# sourceMappingURL=")[0]


def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
