# SPDX-License-Identifier: Apache-2.0
"""The result of a session: rows, sentences, `report.json`, `report.html` with a Pareto chart."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.host.files import write_atomically
from tritonctl.tuning.explaining import explained
from tritonctl.tuning.outcome import Standing
from tritonctl.tuning.trials import Settings, Trial
from tritonctl.tuning.tuner import Tuned, changes
from tritonctl.tuning.validate import Validation

SCHEMA = "tritonctl/tuning/v1"
STEP_HEADINGS = ("knob", "value", "rate", "result", "P99 ms", "why")
_MIB = 1 << 20
_COLOURS = {"met": "#2a9d8f", "undecided": "#8d99ae", "missed": "#d1495b"}


def step_rows(tuned: Tuned) -> list[list[str]]:
    """The steps of the search, in order."""
    rows = []
    for step in tuned.outcome.steps:
        value = step.settings[step.knob] if step.knob else ", ".join(_changed(tuned, step.settings))
        rows.append(
            [
                step.knob or "several",
                str(value),
                f"{step.rate:.4g}/s",
                "better" if step.won else "no better",
                _p99_text(step.trial),
                explained(step, tuned.space),
            ]
        )
    return rows


def conclusion(tuned: Tuned) -> list[str]:
    """The result in sentences."""
    outcome, before, best = tuned.outcome, tuned.outcome.before, tuned.best
    sentences = [f"today: {_rate(before)}"]
    if tuned.worth_it:
        gain = f", {best.met / before.met - 1:+.0%}" if before.met else ""
        sentences.append(f"tuned: {_rate(best)}{gain}; {outcome.why}")
        sentences += [f"  {name}: {a} → {b}" for name, a, b in changes(tuned.space, outcome)]
    else:
        sentences.append(f"keep what you have: {_reason(tuned)}")
    if tuned.validation is not None:
        sentences += _on_fresh_server(tuned.validation, tuned.outcome.best.met)
    if not outcome.complete:
        sentences.append("the budget ended before everything was tried: `tritonctl tune --resume`")
    invalid = sum(bool(trial.figures.get("invalid_because")) for trial in outcome.trials)
    if invalid:
        sentences.append(
            f"in {invalid} of {len(outcome.trials)} trials the load generator itself was late or "
            "busy, which counts against the settings: give it its own cores, or a machine"
        )
    return sentences


def _reason(tuned: Tuned) -> str:
    if tuned.validation is None or not tuned.outcome.better:
        return tuned.outcome.why
    if not tuned.validation.holds:
        return "the rate of the new settings did not hold on a fresh server"
    return (
        f"on a fresh server the new settings held no more than {tuned.best.met:.4g} requests/s, "
        "as many as today's"
    )


def _on_fresh_server(validation: Validation, searched: float) -> list[str]:
    sentences = []
    if validation.holds and validation.rate < searched:
        sentences.append(f"{searched:.4g}/s, the search's result, did not hold on a fresh server")
    sentences += [
        f"on a fresh server, {trial.asked.rate:.4g}/s: {trial.verdict}, {trial.share_over:.2%} of "
        f"the requests over the SLO{_p99_text(trial, prefix=', P99 ')}"
        for trial in validation.trials
    ]
    if not validation.sheds:
        sentences.append("under overload the service collapses: set `serving.queue.max_queue_size`")
    return sentences


def pareto(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """For each settings the highest rate that they met, with its P99 and memory; highest first.

    front: no other settings have a higher rate with as little memory.
    """
    best: dict[str, Trial] = {}
    for trial in trials:
        key = json.dumps(dict(trial.asked.settings), sort_keys=True)
        if trial.leans_met and trial.asked.rate >= (best[key].asked.rate if key in best else 0):
            best[key] = trial
    points: list[dict[str, Any]] = [
        {
            "settings": dict(trial.asked.settings),
            "rate": trial.asked.rate,
            "p99_ms": dict(trial.p99_ms),
            "memory_bytes": trial.figures.get("rss_bytes"),
            "verdict": trial.verdict,
        }
        for trial in best.values()
    ]
    points.sort(key=lambda point: -float(point["rate"]))
    least = float("inf")
    for point in points:
        memory = point["memory_bytes"] or float("inf")
        point["front"] = memory < least or point is points[0]
        least = min(least, memory)
    return points


def to_record(tuned: Tuned) -> dict[str, Any]:
    """The whole result as plain data."""
    outcome = tuned.outcome
    return {
        "schema": SCHEMA,
        "model": tuned.space.model,
        "context": tuned.session.context,
        "folder": str(tuned.session.folder),
        "worth_it": tuned.worth_it,
        "why": outcome.why if tuned.worth_it else _reason(tuned),
        "complete": outcome.complete,
        "before": _standing(outcome.before),
        "best": _standing(tuned.best),
        "changes": {name: {"from": a, "to": b} for name, a, b in changes(tuned.space, outcome)},
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
                "why": explained(step, tuned.space),
            }
            for step in outcome.steps
        ],
        "pareto": pareto(outcome.trials),
        "validation": tuned.validation and tuned.validation.to_record(),
        "trials": len(outcome.trials),
    }


def write_report(tuned: Tuned) -> Path:
    """Write report.json and report.html into the session's folder; returns the page."""
    record = to_record(tuned)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    write_atomically(tuned.session.folder / "report.json", text + "\n")
    page = tuned.session.folder / "report.html"
    write_atomically(page, _page(tuned, record))
    return page


def _page(tuned: Tuned, record: Mapping[str, Any]) -> str:
    from plotly.offline import get_plotlyjs

    title = html.escape(f"Tuning {tuned.space.model}")
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in conclusion(tuned))
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in step_rows(tuned)
    )
    headings = "".join(f"<th>{heading}</th>" for heading in STEP_HEADINGS)
    # `</script>` cannot stand in a JSON string of a page.
    figure = json.dumps(_figure(tuned)).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px sans-serif;margin:2em auto;max-width:70em;padding:0 1em}"
        "table{border-collapse:collapse}td,th{padding:.3em .6em;border-bottom:1px solid #ddd;"
        "text-align:left;vertical-align:top}</style>"
        f"<script>{get_plotlyjs()}</script></head><body><h1>{title}</h1>{lines}"
        '<div id="pareto" style="height:30em"></div>'
        f"<h2>What was tried</h2><table><tr>{headings}</tr>{rows}</table>"
        f"<script>const f={figure};Plotly.newPlot('pareto',f.data,f.layout,{{responsive:true}})"
        f"</script><p>{record['trials']} trials, in {html.escape(str(record['folder']))}</p>"
        "</body></html>\n"
    )


def _figure(tuned: Tuned) -> dict[str, Any]:
    """Every trial with a P99 in plotly's JSON form: x is the rate, y the P99, size the memory."""
    trials = [trial for trial in tuned.outcome.trials if trial.p99_ms]
    metric = _metric(trials)
    shown = [trial for trial in trials if metric in trial.p99_ms]
    data = []
    for verdict, colour in _COLOURS.items():
        marked = [trial for trial in shown if trial.verdict == verdict]
        trace = {
            "type": "scatter",
            "mode": "markers",
            "name": verdict,
            "x": [trial.asked.rate for trial in marked],
            "y": [trial.p99_ms[metric] for trial in marked],
            "text": [_label(tuned, trial) for trial in marked],
            "marker": {"color": colour, "size": [_size(trial, shown) for trial in marked]},
        }
        data.append(trace)
    layout = {
        "xaxis": {"title": {"text": "requests per second"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": f"P99 of {metric}, ms"}, "type": "log"},
        "title": {"text": "Trials: colour is the verdict, size the server's memory"},
        "template": "none",
    }
    return {"data": data, "layout": layout}


def _metric(trials: Sequence[Trial]) -> str:
    names = [name for trial in trials for name in trial.p99_ms]
    return max(sorted(set(names)), key=names.count, default="e2e")


def _label(tuned: Tuned, trial: Trial) -> str:
    memory = trial.figures.get("rss_bytes")
    words = _changed(tuned, trial.asked.settings)
    return "<br>".join([*words, f"{memory / _MIB:.0f} MiB" if memory else ""])


def _size(trial: Trial, trials: Sequence[Trial]) -> float:
    most = max((t.figures.get("rss_bytes") or 0 for t in trials), default=0)
    memory = trial.figures.get("rss_bytes") or 0
    return 8 + 16 * (memory / most) ** 2 if most else 10


def _changed(tuned: Tuned, settings: Settings) -> list[str]:
    changed = tuned.space.changed(settings)
    return [f"{name} {value}" for name, value in changed.items()] or ["as it is"]


def _standing(standing: Standing) -> dict[str, Any]:
    record = {"settings": dict(standing.settings), "met": standing.met, "missed": standing.missed}
    return record | {"p99_ms": dict(standing.trial.p99_ms) if standing.trial else {}}


def _rate(standing: Standing) -> str:
    if not standing.met and not standing.missed:
        return "unknown: the budget ended before it was measured"
    if not standing.met:
        return f"the SLO is missed even at {standing.missed:.3g} requests/s"
    p99 = _p99_text(standing.trial, prefix=", P99 ") if standing.trial else ""
    return f"{standing.met:.4g} requests/s within the SLO{p99}"


def _p99_text(trial: Trial, prefix: str = "") -> str:
    words = ", ".join(f"{name} {ms:.3g}" for name, ms in trial.p99_ms.items())
    return f"{prefix}{words}" if words else ""
