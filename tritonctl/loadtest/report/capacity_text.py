# SPDX-License-Identifier: Apache-2.0
"""A capacity search as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tritonctl.loadtest.analysis.capacity import CapacityTrial
from tritonctl.loadtest.report.summary_text import milliseconds
from tritonctl.loadtest.run.capacity import CapacityRun

CAPACITY_HEADINGS = ("rate/s", "SLO", "goodput/s", "TTFT P50, P95", "e2e P50, P95", "")
_TIMES = (("ttft_p50_ms", "ttft_p95_ms"), ("e2e_p50_ms", "e2e_p95_ms"))
_END_NOTES = {
    "found": "",
    "budget": "; the budget ended before the target precision",
    "interrupted": "; interrupted",
    "highest": "; that is --highest: raise it",
    "lowest": "",
    "server gone": "; then the server died",
}


def capacity_rows(run: CapacityRun) -> list[list[str]]:
    """Return a row per trial, by rate, the overload trial last."""
    trials = sorted(run.capacity.trials, key=lambda trial: trial.rate)
    rows = [_row(trial) for trial in trials]
    return rows + ([] if run.overload is None else [_row(run.overload.trial)])


def _row(trial: CapacityTrial) -> list[str]:
    goodput = trial.figures.get("goodput_rps")
    verdict = trial.verdict
    if verdict == "undecided":
        verdict = "likely met" if trial.likely else "likely missed"
    return [
        f"{trial.rate:.4g}",
        verdict,
        "-" if goodput is None else f"{goodput:.4g}",
        *(", ".join(_time(trial.figures.get(name)) for name in pair) for pair in _TIMES),
        trial.note,
    ]


def _time(value: float | None) -> str:
    return "-" if value is None else milliseconds(value)


def conclusion_lines(run: CapacityRun) -> list[str]:
    """Return the result and the folder of the runs."""
    capacity = run.capacity
    if capacity.rate is None:
        rate = f"{capacity.missed_at:.4g}/s" if capacity.missed_at else "no rate"
        lines = [f"the SLO is missed at the lowest rate, {rate}: try a lower --lowest"]
        if not capacity.trials:
            lines = ["no trial finished"]
    else:
        above = "" if capacity.missed_at is None else f", missed at {capacity.missed_at:.4g}/s"
        lines = [
            f"capacity: {capacity.rate:.4g} requests/s{above}{_END_NOTES[capacity.end_reason]}"
        ]
        if capacity.best is not None and capacity.best.verdict != "met":
            lines.append(
                "  by its point estimates; to confirm: tritonctl loadtest run --rate "
                f"{capacity.rate:.4g} --count 5000"
            )
    lines += _generator_doubts(capacity.trials)
    if run.overload is not None:
        lines.append(
            f"at {run.overload.trial.rate:.4g}/s it {run.overload.behaviour}: {run.overload.reason}"
        )
    lines.append(f"results: {run.folder}")
    return lines


def _generator_doubts(trials: Sequence[CapacityTrial]) -> list[str]:
    """Return a note about misses that the generator may have caused."""
    missed = [trial for trial in trials if not trial.holds]
    late = sum(not trial.valid for trial in missed)
    if not late:
        return []
    doubt = (
        f"  in {late} of the {len(missed)} trials that missed the generator itself was late or busy"
    )
    return [f"{doubt}: the server may carry more. Use --workers 2, or another machine"]
