# SPDX-License-Identifier: Apache-2.0
"""A search for the capacity as a person reads it at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tritonctl.loadtest.analysis.capacity import Trial
from tritonctl.loadtest.report.summary_text import milliseconds
from tritonctl.loadtest.run.capacity import CapacityRun

CAPACITY_HEADINGS = ("rate/s", "SLO", "goodput/s", "TTFT P50, P95", "e2e P50, P95", "")
_TIMES = (("ttft_p50_ms", "ttft_p95_ms"), ("e2e_p50_ms", "e2e_p95_ms"))
_ENDS = {
    "found": "",
    "budget": "; the budget was spent before it was known more precisely",
    "interrupted": "; interrupted",
    "highest": "; that is --highest: look further up",
    "lowest": "",
    "server gone": "; then the server went away",
}


def capacity_rows(done: CapacityRun) -> list[list[str]]:
    """A row per trial, by rate; the overload last."""
    trials = sorted(done.capacity.trials, key=lambda trial: trial.rate)
    rows = [_row(trial) for trial in trials]
    return rows + ([] if done.overload is None else [_row(done.overload.trial)])


def _row(trial: Trial) -> list[str]:
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


def conclusion(done: CapacityRun) -> list[str]:
    """What was found, and where it is."""
    capacity = done.capacity
    if capacity.rate is None:
        rate = f"{capacity.missed_at:.4g}/s" if capacity.missed_at else "no rate"
        lines = [f"the SLO is missed at the lowest rate, {rate}: try a lower --lowest"]
        if not capacity.trials:
            lines = ["no trial was finished"]
    else:
        above = "" if capacity.missed_at is None else f", missed at {capacity.missed_at:.4g}/s"
        lines = [f"capacity: {capacity.rate:.4g} requests/s{above}{_ENDS[capacity.ended]}"]
        if capacity.best is not None and capacity.best.verdict != "met":
            lines.append(
                "  by its point estimates; to be sure: tritonctl loadtest run --rate "
                f"{capacity.rate:.4g} --count 5000"
            )
    lines += _doubts(capacity.trials)
    if done.overload is not None:
        lines.append(
            f"at {done.overload.trial.rate:.4g}/s it {done.overload.behaviour}: {done.overload.why}"
        )
    lines.append(f"everything is in {done.folder}")
    return lines


def _doubts(trials: Sequence[Trial]) -> list[str]:
    """Of misses that may be the generator's."""
    missed = [trial for trial in trials if not trial.holds]
    late = sum(not trial.valid for trial in missed)
    if not late:
        return []
    doubt = (
        f"  in {late} of the {len(missed)} trials that missed the generator itself was late or busy"
    )
    return [f"{doubt}: the server may carry more. Use --workers 2, or another machine"]
