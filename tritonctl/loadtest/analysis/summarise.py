# SPDX-License-Identifier: Apache-2.0
"""From the folder of a run to its summary; interrupted runs have one, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonctl.host.files import read_object
from tritonctl.loadtest.analysis.columns import NEVER, OUTCOMES, Columns, Floats, Integers, Mask
from tritonctl.loadtest.analysis.limiting import limited_by
from tritonctl.loadtest.analysis.percentiles import distribution
from tritonctl.loadtest.analysis.records import (
    FACTS,
    PLAN,
    PROGRESS,
    SERVER,
    Record,
    read_lines,
    read_records,
    record_files,
)
from tritonctl.loadtest.analysis.series import measured
from tritonctl.loadtest.analysis.server_figures import server_figures
from tritonctl.loadtest.analysis.slo import good, judge, overall
from tritonctl.loadtest.analysis.stationarity import trend, warm_up
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    NO_VERSION,
    ClassSummary,
    Counts,
    Distribution,
    ErrorGroup,
    GeneratorFigures,
    Rates,
    Summary,
    Window,
)
from tritonctl.loadtest.analysis.validity import (
    COMPLETE,
    INTERRUPTED,
    Lateness,
    Progress,
    doubts,
    lag_limit_ms,
    problems,
    sent_late,
)

_SECOND = 1_000_000
_COOL_DOWN_SECONDS = 30.0
# Arrival processes whose response times are not meant to keep their level.
_CHANGING = ("ramp", "spike", "steps", "trace")


@dataclass(frozen=True)
class Run:
    """What lies in a run's folder. `server` and `facts` may be empty."""

    folder: Path
    plan: Mapping[str, Any]
    facts: Mapping[str, Any]
    records: Sequence[Record]
    columns: Columns
    progress: Progress
    server: Sequence[Mapping[str, Any]]

    @property
    def slo(self) -> Mapping[str, float | None]:
        """The SLO of the run."""
        return self.facts.get("slo") or self.plan.get("slo") or {}

    @property
    def reason(self) -> str:
        """What ended it: `complete`, or why it did not come to its end."""
        reason, stopped = self.progress.reason, self.facts.get("stopped")
        return f"stopped: {stopped}" if stopped and reason == INTERRUPTED else reason

    @property
    def cool_down_us(self) -> int:
        """How long requests in flight at the end were waited for."""
        seconds = self.plan.get("cool_down_seconds")
        return int((_COOL_DOWN_SECONDS if seconds is None else float(seconds)) * _SECOND)


def read_run(folder: Path) -> Run:
    """Read a run's folder. Raises ConfigurationError."""
    again = "run the load test again"
    plan, facts = (
        read_object(file, remedy=again) if file.is_file() else {}
        for file in (folder / PLAN, folder / FACTS)
    )
    # A run that failed before its first request was sent has a plan and no records.
    records = read_records(folder) if record_files(folder) or not plan else []
    logs = (path.stem.rpartition("-")[2] for path in folder.glob("generator-*.log"))
    numbers = {record.worker for record in records} | {int(log) for log in logs if log.isdigit()}
    return Run(
        folder=folder,
        plan=plan,
        facts=facts,
        records=records,
        columns=Columns.of(records),
        progress=Progress.of(
            read_lines(folder / PROGRESS), int(facts.get("workers") or max(len(numbers), 1))
        ),
        server=[line for line in read_lines(folder / SERVER) if "t" in line],
    )


def summarise(folder: Path) -> Summary:
    """The summary of a run's folder, from its records. Raises ConfigurationError."""
    return summary_of(read_run(folder))


def summary_of(run: Run) -> Summary:
    """The summary of what was read."""
    window = window_of(run)
    columns = inside(run.columns, window)
    woke, sent = _lateness(run, columns)
    generator = _generator(run, woke, sent)
    invalid = problems(run.progress, woke, sent)
    verdicts = judge(columns, run.slo, cool_down_us=run.cool_down_us, growth=window.growth)
    server = server_figures(run.server, run.facts, window.from_s, window.to_s)
    return Summary(
        scenario=str(run.facts.get("scenario") or run.plan.get("scenario") or run.folder.name),
        model=str(run.plan.get("model") or "?"),
        reason=run.reason,
        valid=not invalid,
        invalid_because=tuple(invalid),
        window=window,
        counts=_counts(columns, run.progress.unsent),
        errors=_errors(run.records),
        rates=_rates(run, window, np.ones(len(run.columns), dtype=bool)),
        metrics=_metrics(columns, run.cool_down_us),
        classes={
            name: _part(run, window, run.columns.of_class(name)) for name in run.columns.class_names
        },
        slo=verdicts,
        slo_verdict=overall(verdicts),
        decisive=len(columns) >= DECISIVE_REQUESTS,
        generator=generator,
        server=server,
        limited_by=limited_by(generator, server, late=sent is not None and sent.certain),
        doubts=tuple(doubts(woke, sent)),
        versions=_versions(run, window),
        resumed=sum(record.resumes > 0 for record in run.records),
    )


def _metrics(columns: Columns, cool_down_us: int) -> dict[str, Distribution]:
    durations = measured(columns, cool_down_us)
    return {name: distribution(series) for name, series in durations.items()}


def problems_of(run: Run, columns: Columns) -> list[str]:
    """Why the run is not a valid measurement, by the requests of its window."""
    return problems(run.progress, *_lateness(run, columns))


def _lateness(run: Run, columns: Columns) -> tuple[Lateness | None, Lateness | None]:
    """How late the generator woke, and sent."""
    limit = lag_limit_ms(run.slo)
    lags = (columns.sent - columns.planned) / 1000
    return run.progress.woke_late(limit), sent_late(lags, limit)


def window_of(run: Run) -> Window:
    """From where the response times settle to the end of the schedule; how they move there."""
    process = (run.plan.get("arrivals") or {}).get("process")
    if process in _CHANGING:
        why = f"the load itself changes by plan ({process}): nothing was cut"
        return Window(0.0, _end(run), 0.0, False, why)
    planned, response = _responses(run.columns)
    cut = warm_up(response)
    begin = float(planned[cut]) / _SECOND if cut else 0.0
    moved = trend(response[cut:])
    why = moved.why
    if cut:
        why = f"the first {begin:.1f} s ({cut} requests) were warm-up (MSER-5); then {why}"
    return Window(begin, max(_end(run), begin), begin, moved.stationary, why, moved.growth)


def _responses(columns: Columns) -> tuple[Integers, Floats]:
    """When answered requests were planned, and how long until the answer began (of text) or came.

    Not until the end of a text: long ones take long, whatever the server's state.
    """
    text = bool(len(columns.response_at))
    answered = columns.ended("ok") & ((columns.first != NEVER) | (not text))
    until = columns.first if text else columns.end
    planned = columns.planned[answered]
    return planned, (until[answered] - planned).astype(np.float64)


def _end(run: Run) -> float:
    """When the schedule ended, in seconds: as planned, or with the last request."""
    duration = run.plan.get("duration_seconds")
    if duration is not None and run.reason == COMPLETE:
        return float(duration)
    return float(run.columns.planned.max()) / _SECOND if len(run.columns) else 0.0


def inside(columns: Columns, window: Window) -> Columns:
    """The requests planned in the window; later turns of conversations may come after it."""
    begin, end = _edges(window)
    return columns.select(np.asarray((columns.planned >= begin) & (columns.planned <= end)))


def _edges(window: Window) -> tuple[int, int]:
    return round(window.from_s * _SECOND), round(window.to_s * _SECOND)


def _versions(run: Run, window: Window) -> dict[str, ClassSummary]:
    names = np.array([record.version or NO_VERSION for record in run.records], dtype=object)
    known = sorted({*names.tolist()}, key=lambda name: (len(name), name))
    if known in ([], [NO_VERSION]):
        return {}
    return {name: _part(run, window, np.asarray(names == name)) for name in known}


def _part(run: Run, window: Window, mask: Mask) -> ClassSummary:
    columns = inside(run.columns.select(mask), window)
    return ClassSummary(
        counts=_counts(columns, 0),
        rates=_rates(run, window, mask),
        metrics=_metrics(columns, run.cool_down_us),
    )


def _counts(columns: Columns, unsent: int) -> Counts:
    each = {outcome: int(columns.ended(outcome).sum()) for outcome in OUTCOMES}
    return Counts(planned=len(columns) + unsent, sent=len(columns), **each, unsent=unsent)


def _errors(records: Sequence[Record]) -> tuple[ErrorGroup, ...]:
    """Failures by kind and message, the most frequent first; times out without a message."""
    groups = Counter(
        (record.error.kind, record.error.message) if record.error else (record.outcome, "")
        for record in records
        if record.outcome in ("error", "timeout")
    )
    return tuple(ErrorGroup(*key, count) for key, count in groups.most_common())


def _rates(run: Run, window: Window, mask: Mask) -> Rates:
    """Rates of the requests under the mask."""
    columns = run.columns.select(mask)
    planned = inside(columns, window)
    begin, end = _edges(window)
    seconds = max(window.to_s - window.from_s, 1e-9)
    ended = columns.ended("ok") & (columns.end >= begin) & (columns.end <= end)
    arrived = (columns.response_at >= begin) & (columns.response_at <= end)
    within = good(planned, run.slo)
    # A window that ends with a request holds so many gaps as requests before that one.
    before = planned.planned < end
    counted = len(planned) - int(planned.ended("cancelled").sum())
    if not len(planned) or window.to_s <= window.from_s:
        return Rates(0.0, 0.0, 0.0, 0.0, None)
    return Rates(
        offered_rps=int(before.sum()) / seconds,
        achieved_rps=int(ended.sum()) / seconds,
        tokens_per_s=int(columns.response_tokens[arrived].sum()) / seconds,
        goodput_rps=int((within & before).sum()) / seconds,
        goodput_share=int(within.sum()) / counted if counted else None,
    )


def _generator(run: Run, woke: Lateness | None, sent: Lateness | None) -> GeneratorFigures:
    cpu = run.progress.cpu
    return GeneratorFigures(
        workers=len(run.progress.workers),
        cpu_mean=sum(cpu) / len(cpu) if cpu else None,
        cpu_max=max(cpu, default=None),
        send_lag_p99_ms=sent.p99_ms if sent else None,
        woke_p99_ms=woke.p99_ms if woke else None,
    )
