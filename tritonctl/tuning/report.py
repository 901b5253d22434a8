# SPDX-License-Identifier: Apache-2.0
"""Report a session's result: rows, sentences, `report.json`, and a page with a chart of trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.host.files import write_atomically
from tritonctl.loadtest.report.figures import (
    Axis,
    ChartSeries,
    ReportFigure,
    Row,
    Symbol,
    round_figure,
)
from tritonctl.loadtest.report.page import Section, render_page, without_none
from tritonctl.loadtest.report.tables import Badge, Table, Tile
from tritonctl.tuning.outcome import RateBracket
from tritonctl.tuning.step_explanation import explain_step
from tritonctl.tuning.trials import Settings, TuningTrial
from tritonctl.tuning.tuner import TuningResult, changed_knobs
from tritonctl.tuning.validate import Validation

SCHEMA = "tritonctl/tuning/v1"
STEP_HEADINGS = ("knob", "value", "rate", "result", "P99 ms", "reason")
_MIB = 1 << 20
# Colour and symbol of a trial's verdict.
_MARKS: dict[str, tuple[str, Symbol]] = {
    "met": ("--good", "circle"),
    "undecided": ("--quiet", "square"),
    "missed": ("--bad", "diamond"),
}


def step_rows(tuned: TuningResult) -> list[list[str]]:
    """Return the steps of the search, in order."""
    rows = []
    for step in tuned.outcome.steps:
        value = (
            step.settings[step.knob]
            if step.knob
            else ", ".join(_changed_settings(tuned, step.settings))
        )
        rows.append(
            [
                step.knob or "several",
                str(value),
                f"{step.rate:.4g}/s",
                "better" if step.won else "no better",
                _p99_text(step.trial),
                explain_step(step, tuned.space),
            ]
        )
    return rows


def conclusion_sentences(tuned: TuningResult) -> list[str]:
    """Return the result in sentences."""
    outcome, baseline, best = tuned.outcome, tuned.outcome.baseline, tuned.best
    sentences = [f"today: {_rate_text(baseline)}"]
    if tuned.worth_it:
        gain = f", {best.met / baseline.met - 1:+.0%}" if baseline.met else ""
        sentences.append(f"tuned: {_rate_text(best)}{gain}; {outcome.reason}")
        sentences += [f"  {name}: {a} → {b}" for name, a, b in changed_knobs(tuned.space, outcome)]
    else:
        sentences.append(f"keep the current settings: {_reason(tuned)}")
    if tuned.validation is not None:
        sentences += _validation_sentences(tuned.validation, tuned.outcome.best.met)
    if not outcome.complete:
        sentences.append("the budget ended before all moves were tried: `tritonctl tune --resume`")
    invalid = sum(bool(trial.figures.get("invalid_because")) for trial in outcome.trials)
    if invalid:
        sentences.append(
            f"in {invalid} of {len(outcome.trials)} trials the load generator was late or busy, "
            "which counts against the settings: give it separate cores, or another machine"
        )
    return sentences


def _reason(tuned: TuningResult) -> str:
    if tuned.validation is None or not tuned.outcome.better:
        return tuned.outcome.reason
    if not tuned.validation.holds:
        return "the rate of the new settings did not hold on a fresh server"
    return (
        f"on a fresh server the new settings held only {tuned.best.met:.4g} requests/s, "
        "no more than the current ones"
    )


def _validation_sentences(validation: Validation, searched: float) -> list[str]:
    sentences = []
    if validation.holds and validation.rate < searched:
        sentences.append(f"{searched:.4g}/s, the search's result, did not hold on a fresh server")
    sentences += [
        f"on a fresh server, {trial.request.rate:.4g}/s: {trial.verdict}, {trial.share_over:.2%} "
        f"of the requests over the SLO{_p99_text(trial, prefix=', P99 ')}"
        for trial in validation.trials
    ]
    if not validation.sheds:
        sentences.append("under overload the service collapses: set `serving.queue.max_queue_size`")
    return sentences


def pareto_points(trials: Sequence[TuningTrial]) -> list[dict[str, Any]]:
    """Return, for all settings, the highest met rate with its P99 and memory; highest first.

    front: no other settings have a higher rate with as little memory.
    """
    best: dict[str, TuningTrial] = {}
    for trial in trials:
        key = json.dumps(dict(trial.request.settings), sort_keys=True)
        if trial.leans_met and trial.request.rate >= (best[key].request.rate if key in best else 0):
            best[key] = trial
    points: list[dict[str, Any]] = [
        {
            "settings": dict(trial.request.settings),
            "rate": trial.request.rate,
            "p99_ms": dict(trial.p99_ms),
            "memory_bytes": trial.figures.get("rss_bytes"),
            "verdict": trial.verdict,
        }
        for trial in best.values()
    ]
    points.sort(key=lambda point: -float(point["rate"]))
    min_memory = float("inf")
    for point in points:
        memory = point["memory_bytes"] or float("inf")
        point["front"] = memory < min_memory or point is points[0]
        min_memory = min(min_memory, memory)
    return points


def to_record(tuned: TuningResult) -> dict[str, Any]:
    """Return the result as plain data."""
    outcome = tuned.outcome
    return {
        "schema": SCHEMA,
        "model": tuned.space.model,
        "context": tuned.session.context,
        "folder": str(tuned.session.folder),
        "worth_it": tuned.worth_it,
        "why": outcome.reason if tuned.worth_it else _reason(tuned),
        "complete": outcome.complete,
        "before": _bracket_record(outcome.baseline),
        "best": _bracket_record(tuned.best),
        "changes": {
            name: {"from": a, "to": b} for name, a, b in changed_knobs(tuned.space, outcome)
        },
        "overlay": tuned.overlay,
        "knobs": {
            knob.name: {"values": list(knob.values), "base": knob.base, "reason": knob.reason}
            for knob in tuned.space.knobs
        },
        "service_time": tuned.service
        and {
            "fixed_ms": tuned.service.curve.fixed * 1000,
            "each_ms": tuned.service.curve.each * 1000,
            "points": [{"batch": b, "ms": s * 1000} for b, s in tuned.service.points],
        },
        "steps": [
            {
                "knob": step.knob,
                "settings": dict(step.settings),
                "rate": step.rate,
                "won": step.won,
                "why": explain_step(step, tuned.space),
            }
            for step in outcome.steps
        ],
        "pareto": pareto_points(outcome.trials),
        "validation": tuned.validation and tuned.validation.to_record(),
        "trials": len(outcome.trials),
    }


def write_report(tuned: TuningResult) -> Path:
    """Write report.json and report.html into the session's folder; return the page's path."""
    record = to_record(tuned)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    write_atomically(tuned.session.folder / "report.json", text + "\n")
    page = tuned.session.folder / "report.html"
    write_atomically(page, _render_page(tuned, record))
    return page


def _render_page(tuned: TuningResult, record: Mapping[str, Any]) -> str:
    headline, *sentences = conclusion_sentences(tuned)
    sections = [
        Section("trials", "Trials", without_none(_trials_figure(tuned))),
        Section(
            "steps",
            "Steps",
            tables=[
                Table("The steps of the search, in order.", STEP_HEADINGS, step_rows(tuned), (1, 5))
            ],
        ),
    ]
    knobs = [
        [knob.name, str(knob.base), ", ".join(map(str, knob.values)), knob.reason]
        for knob in tuned.space.knobs
    ]
    return render_page(
        title=f"Tuning {tuned.space.model}",
        subtitle=headline,
        badges=[
            Badge("met", "Better settings found")
            if tuned.worth_it
            else Badge("undecided", "Keep the current settings")
        ],
        card=[],
        words="\n".join(sentences),
        invalid_title="",
        invalid_because=(),
        limited_title="",
        limited_by="",
        tiles=[
            Tile("today", _rate_tile(tuned.outcome.baseline)),
            Tile("tuned", _rate_tile(tuned.best)),
            Tile("trials", str(record["trials"])),
        ],
        sections=[section for section in sections if section],
        versions=Table(
            "The settings that were tried.", ("setting", "today", "tried", "why"), knobs, (1, 2, 3)
        ),
        settings=[("Result (report.json)", json.dumps(record, indent=2, ensure_ascii=False))],
        folder=str(record["folder"]),
    )


def _trials_figure(tuned: TuningResult) -> ReportFigure | None:
    """Draw every trial with a P99: the rate, the P99 and, as the size, the server's memory."""
    trials = [trial for trial in tuned.outcome.trials if trial.p99_ms]
    metric = _metric(trials)
    plotted = [trial for trial in trials if metric in trial.p99_ms]
    if not plotted:
        return None
    series = []
    for verdict, (colour, symbol) in _MARKS.items():
        marked = [trial for trial in plotted if trial.verdict == verdict]
        series.append(
            ChartSeries(
                "points",
                verdict,
                [round_figure(trial.request.rate) for trial in marked],
                [round_figure(trial.p99_ms[metric]) for trial in marked],
                colour,
                hover="{x} requests/s, P99 {y} ms\n{text}",
                texts=[_label(tuned, trial) for trial in marked],
                symbol=symbol,
                size=[_marker_size(trial, plotted) for trial in marked],
                opacity=0.75,
            )
        )
    return ReportFigure(
        "pareto",
        "Rate and latency of every trial",
        "Colour and shape: the verdict. Size: the server's memory.",
        [verdict_series for verdict_series in series if verdict_series.x],
        Axis("requests per second"),
        [Row(f"P99 of {metric}, ms")],
        scales=("log", "linear"),
        height=440,
    )


def _metric(trials: Sequence[TuningTrial]) -> str:
    names = [name for trial in trials for name in trial.p99_ms]
    return max(sorted(set(names)), key=names.count, default="e2e")


def _label(tuned: TuningResult, trial: TuningTrial) -> str:
    memory = trial.figures.get("rss_bytes")
    words = _changed_settings(tuned, trial.request.settings)
    return "\n".join([*words, f"{memory / _MIB:.0f} MiB" if memory else ""])


def _marker_size(trial: TuningTrial, trials: Sequence[TuningTrial]) -> float:
    max_memory = max((t.figures.get("rss_bytes") or 0 for t in trials), default=0)
    memory = trial.figures.get("rss_bytes") or 0
    return 8 + 16 * (memory / max_memory) ** 2 if max_memory else 10


def _changed_settings(tuned: TuningResult, settings: Settings) -> list[str]:
    changed = tuned.space.changed_settings(settings)
    return [f"{name} {value}" for name, value in changed.items()] or ["unchanged"]


def _bracket_record(bracket: RateBracket) -> dict[str, Any]:
    record = {"settings": dict(bracket.settings), "met": bracket.met, "missed": bracket.missed}
    return record | {"p99_ms": dict(bracket.trial.p99_ms) if bracket.trial else {}}


def _rate_text(bracket: RateBracket) -> str:
    if not bracket.met and not bracket.missed:
        return "unknown: the budget ended before it was measured"
    if not bracket.met:
        return f"the SLO is missed even at {bracket.missed:.3g} requests/s"
    p99 = _p99_text(bracket.trial, prefix=", P99 ") if bracket.trial else ""
    return f"{bracket.met:.4g} requests/s within the SLO{p99}"


def _rate_tile(bracket: RateBracket) -> str:
    return f"{bracket.met:.4g}/s" if bracket.met else "-"


def _p99_text(trial: TuningTrial, prefix: str = "") -> str:
    words = ", ".join(f"{name} {ms:.3g}" for name, ms in trial.p99_ms.items())
    return f"{prefix}{words}" if words else ""
