# SPDX-License-Identifier: Apache-2.0
"""Compares what a load test reports with what the mock endpoint did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import ENGINES, Bench, heading, mock, read_lines, say
from tritonctl.loadtest.run.execution import LoadRun

CASES: dict[str, tuple[str, ...]] = {
    "constant": ("--ttft", "100", "--itl", "10"),
    "exponential": ("--ttft", "exponential:100", "--itl", "exponential:10"),
    "bimodal": ("--ttft", "bimodal:100:500:0.05", "--itl", "bimodal:8:80:0.05"),
    "stall of 2 s": ("--ttft", "100", "--itl", "10", "--stall", "16:2"),
}
METRICS = ("ttft", "itl", "e2e")
COLUMNS = ("distribution", "engine", "figure", "n", "P50 true", "reported", "P99 true", "reported",
           "longest true", "reported", "within", "valid")  # fmt: skip
_SHARE, _MS = 0.02, 1.0


@dataclass(frozen=True)
class Checked:
    """A figure in milliseconds: the true one and the reported one."""

    metric: str
    requests: int
    true: tuple[float, ...]
    reported: tuple[float, ...]

    @property
    def within(self) -> bool:
        """Whether median and 99th percentile agree within 2 % or 1 ms."""
        pairs = list(zip(self.true, self.reported, strict=True))[:2]
        return all(abs(r - t) <= max(_MS, _SHARE * t) for t, r in pairs)


def compare(run: LoadRun, truth: Path) -> Iterator[Checked]:
    """Every figure of a run; pairs requests by the order of sending and of arrival."""
    records = sorted(read_lines(run.folder / "records.jsonl"), key=lambda r: r["sent"])
    served = sorted(read_lines(truth), key=lambda r: r["arrival"])
    window = run.summary.window
    inside = [
        true
        for record, true in zip(records, served, strict=True)
        if window.from_s * 1e6 <= record["planned"] < window.to_s * 1e6
    ]
    for metric in METRICS:
        values = np.array([v for true in inside for v in true_values(metric, true)]) / 1000
        figures = run.summary.metrics[metric]
        reported = [p.ms for q in (0.5, 0.99) if (p := figures.percentile(q))]
        if len(reported) < 2:
            raise SystemExit(
                f"{len(inside)} requests are too few for a P99: {window}; {run.summary}"
            )
        true = (*np.percentile(values, [50, 99]), values.max())
        yield Checked(metric, len(inside), true, (*reported, figures.max_ms))


def true_values(metric: str, true: dict[str, Any]) -> list[float]:
    """The durations of one request in microseconds, by the mock's clock."""
    if metric == "itl":
        gaps = zip(true["at"], true["at"][1:], true["n"][1:], strict=False)
        return [(later - earlier) / n for earlier, later, n in gaps for _ in range(n)]
    return [true["first" if metric == "ttft" else "last"] - true["arrival"]]


def calibrate(bench: Bench, rate: float, seconds: float) -> bool:
    """Print the table; return whether every figure is within its tolerance."""
    heading("Calibration: reported and true, ms", COLUMNS)
    good = True
    for case, options in CASES.items():
        for engine in ENGINES:
            name = f"{case.split()[0]}-{engine}"
            truth = bench.folder / f"{name}.truth"
            with mock(*options, "--truth", truth) as url:
                arrivals = {"process": "poisson", "rate": rate}
                run = bench.run(name, bench.plan(url, "text", arrivals, seconds), engine)
            for checked in compare(run, truth):
                good &= checked.within
                valid = "yes" if run.summary.valid else "no"
                say(case, engine, checked.metric, checked.requests, *cells(checked), valid)
    return good


def cells(checked: Checked) -> list[str]:
    """True and reported figures in turn, then the verdict."""
    pairs = zip(checked.true, checked.reported, strict=True)
    return [f"{value:.2f}" for pair in pairs for value in pair] + [
        "yes" if checked.within else "NO"
    ]
