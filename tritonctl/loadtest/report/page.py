# SPDX-License-Identifier: Apache-2.0
"""The report of a load test: one HTML file that needs nothing else and asks nobody.

plotly.js goes in whole, but compressed: its Python package carries no smaller bundle, and a
browser unpacks gzip itself. The page's policy lets only these two scripts run, by their hashes, and
lets nothing be fetched: what a server wrote into an error message stays text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tritonctl.host.files import write_atomically
from tritonctl.host.version import __version__
from tritonctl.loadtest.report import tables
from tritonctl.loadtest.report.card import card
from tritonctl.loadtest.report.figures import Figure
from tritonctl.loadtest.report.latency import gap_curves, latency_over_time, percentile_curves
from tritonctl.loadtest.report.load import generator, throughput
from tritonctl.loadtest.report.over_time import percentiles_over_time
from tritonctl.loadtest.report.requests import against_concurrency, against_prompt, lengths
from tritonctl.loadtest.report.run import Run, load_run
from tritonctl.loadtest.report.server import breakdown, engine, machine, queue

REPORT = "report.html"
_T = TypeVar("_T")
_HERE = Path(__file__).parent
_TEMPLATE = "template.html.j2"


@dataclass(frozen=True)
class Section:
    """A part of the page: figures one above the other, then two beside each other, then tables."""

    id: str
    title: str
    figures: Sequence[Figure] = ()
    pair: Sequence[Figure] = ()
    tables: Sequence[tables.Table] = ()

    def __bool__(self) -> bool:
        """Whether it has any content."""
        return bool(self.figures or self.pair or self.tables)


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Make the report of a run's folder. Raises UsageError, ConfigurationError, HostError."""
    path = output or folder / REPORT
    write_atomically(path, render_report(load_run(folder)))
    return path


def render_report(run: Run) -> str:
    """The page as text."""
    summary = run.summary
    return render_page(
        title=f"Load test of {summary.model}",
        subtitle=_subtitle(run),
        # Beside a run that is not valid, the SLO's verdict would say too much.
        badges=[tables.badge(summary)],
        card=card(run),
        words=tables.verdict_words(summary),
        invalid_title="These figures are not to be trusted:",
        invalid_because=summary.invalid_because,
        limited_title="What limited it:",
        limited_by=summary.limited_by,
        tiles=tables.tiles(summary, run.streams),
        sections=_sections(run),
        versions=tables.versions_table(run),
        settings=_settings(run),
        folder=run.folder.name,
    )


def _subtitle(run: Run) -> str:
    arrivals = run.plan.get("arrivals") or {}
    process = arrivals.get("process", "?")
    rest = ", ".join(f"{k} {_short(v)}" for k, v in arrivals.items() if k != "process")
    parts = [
        f"scenario {run.summary.scenario}",
        f"{process} arrivals ({rest})" if rest else process,
    ]
    if run.plan.get("seed") is not None:
        parts.append(f"seed {run.plan['seed']}")
    if started := run.facts.get("started_at"):
        parts.append(str(started))
    return " · ".join(parts)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004


def _sections(run: Run) -> list[Section]:
    summary = run.summary
    order = run.facts.get("ensemble") or []
    whole = tables.percentile_table(
        summary.metrics, "Percentiles of the window, with 95 % intervals; - where n is too small."
    )
    sections = [
        Section("slo", "SLO targets", tables=without_none(tables.slo_table(summary))),
        Section(
            "latency-section",
            "Latency",
            without_none(latency_over_time(run), percentiles_over_time(run)),
            without_none(percentile_curves(run), gap_curves(run)),
            without_none(
                whole if whole.rows else None,
                tables.class_table(summary.classes),
                tables.version_table(summary.versions),
            ),
        ),
        Section(
            "requests",
            "Requests",
            pair=without_none(
                against_concurrency(run),
                against_prompt(run),
                lengths(run, "input"),
                lengths(run, "output"),
            ),
        ),
        Section(
            "load",
            "Load",
            without_none(throughput(run)),
            (),
            without_none(tables.error_table(summary)),
        ),
        Section(
            "server",
            "Server",
            without_none(breakdown(run), queue(run)),
            without_none(machine(run), engine(run)),
            without_none(tables.server_table(summary, order)),
        ),
        Section("instrument", "Instrument", without_none(generator(run))),
        Section("slowest", "Slowest requests", tables=without_none(tables.slowest_table(run))),
    ]
    return [section for section in sections if section]


def without_none(*items: _T | None) -> list[_T]:
    """The items that are not None."""
    return [item for item in items if item is not None]


def _settings(run: Run) -> list[tuple[str, str]]:
    """What was run, word for word: name and JSON."""
    rest = {k: v for k, v in run.facts.items() if k != "models"}
    sources: list[tuple[str, Mapping[str, Any]]] = [("Load plan (plan.json)", run.plan)]
    models = run.facts.get("models") or {}
    sources += [(f"Model configuration of {name}", config) for name, config in models.items()]
    sources.append(("Facts (facts.json)", rest))
    return [(name, json.dumps(v, ensure_ascii=False, indent=2)) for name, v in sources if v]


def render_page(*, sections: Sequence[Section], **words: Any) -> str:
    """Fill the template around the sections; an undefined name in it is an error."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    script = _asset("page.js")
    figures = [figure.record() for s in sections for figure in (*s.figures, *s.pair)]
    return environment.get_template(_TEMPLATE).render(
        sections=sections,
        style=Markup(_asset("page.css")),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - the same
        plotly=_packed_plotly(),
        figures=Markup(embedded_json(figures)),  # noqa: S704 - escaped by embedded_json
        policy=_policy(script),
        version=__version__,
        **words,
    )


def embedded_json(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(script: str) -> str:
    """Content-Security-Policy: nothing is fetched, only these two scripts run."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (script, _plotly()))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    # plotly.js draws WebGL with functions that it makes of text, and styles with elements.
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


@cache
def _packed_plotly() -> str:
    # mtime=0: the same run gives the same page.
    return base64.b64encode(gzip.compress(_plotly().encode(), 9, mtime=0)).decode()
