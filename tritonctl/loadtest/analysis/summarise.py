# SPDX-License-Identifier: Apache-2.0
"""Summarise the folder of a run, complete or interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tritonctl.host.files import read_object
from tritonctl.loadtest.analysis.bottleneck import limited_by
from tritonctl.loadtest.analysis.columns import NEVER, OUTCOMES, Columns, Floats, Integers, Mask
from tritonctl.loadtest.analysis.percentiles import distribution
from tritonctl.loadtest.analysis.records import (
    FACTS,
    PLAN,
    PROGRESS,
    SERVER,
    LoadRecord,
    read_lines,
    read_records,
    record_files,
)
from tritonctl.loadtest.analysis.series import duration_series
from tritonctl.loadtest.analysis.server_figures import server_figures
from tritonctl.loadtest.analysis.slo import judge, meets_slo, overall_verdict
from tritonctl.loadtest.analysis.stationarity import detect_trend, warm_up_length
from tritonctl.loadtest.analysis.summary import (
    DECISIVE_REQUESTS,
    NO_VERSION,
    ClassSummary,
    DurationDistribution,
    ErrorGroup,
    GeneratorFigures,
    Rates,
    RequestCounts,
    Summary,
    Window,
)
from tritonctl.loadtest.analysis.validity import (
    COMPLETE,
    INTERRUPTED,
    GeneratorProgress,
    Lateness,
    lateness_doubts,
    max_lag_ms,
    send_lateness,
    validity_problems,
)

_SECOND = 1_000_000
_COOL_DOWN_SECONDS = 30.0
# Arrival processes with response times that vary by design.
_VARYING_PROCESSES = ("ramp", "spike", "steps", "trace")


@dataclass(frozen=True)
class RecordedRun:
    """The content of a run's folder. `server` and `facts` may be empty."""

    folder: Path
    plan: Mapping[str, Any]
    facts: Mapping[str, Any]
    records: Sequence[LoadRecord]
    columns: Columns
    progress: GeneratorProgress
    server: Sequence[Mapping[str, Any]]

    @property
    def slo(self) -> Mapping[str, float | None]:
        """The SLO of the run."""
        return self.facts.get("slo") or self.plan.get("slo") or {}

    @property
    def reason(self) -> str:
        """The reason why the run ended, such as `complete`."""
        reason, stopped = self.progress.reason, self.facts.get("stopped")
        return f"stopped: {stopped}" if stopped and reason == INTERRUPTED else reason

    @property
    def cool_down_us(self) -> int:
        """The maximum wait for requests in flight at the end."""
        seconds = self.plan.get("cool_down_seconds")
        return int((_COOL_DOWN_SECONDS if seconds is None else float(seconds)) * _SECOND)


def read_run(folder: Path) -> RecordedRun:
    """Read a run's folder. Raises ConfigurationError."""
    remedy = "run the load test again"
    plan, facts = (
        read_object(file, remedy=remedy) if file.is_file() else {}
        for file in (folder / PLAN, folder / FACTS)
    )
    # A run that failed before its first request has a plan but no records.
    records = read_records(folder) if record_files(folder) or not plan else []
    logs = (path.stem.rpartition("-")[2] for path in folder.glob("generator-*.log"))
    numbers = {record.worker for record in records} | {int(log) for log in logs if log.isdigit()}
    return RecordedRun(
        folder=folder,
        plan=plan,
        facts=facts,
        records=records,
        columns=Columns.from_records(records),
        progress=GeneratorProgress.from_lines(
            read_lines(folder / PROGRESS), int(facts.get("workers") or max(len(numbers), 1))
        ),
        server=[line for line in read_lines(folder / SERVER) if "t" in line],
    )


def summarise(folder: Path) -> Summary:
    """Summarise a run's folder from its records. Raises ConfigurationError."""
    return summarise_run(read_run(folder))


def summarise_run(run: RecordedRun) -> Summary:
    """Summarise the content of a run's folder."""
    window = find_window(run)
    columns = select_window(run.columns, window)
    wake_lateness, send_lateness = _lateness(run, columns)
    generator = _generator(run, wake_lateness, send_lateness)
    invalid = validity_problems(run.progress, wake_lateness, send_lateness)
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
            name: _summarise_subset(run, window, run.columns.in_class(name))
            for name in run.columns.class_names
        },
        slo=verdicts,
        slo_verdict=overall_verdict(verdicts),
        decisive=len(columns) >= DECISIVE_REQUESTS,
        generator=generator,
        server=server,
        limited_by=limited_by(
            generator, server, sent_late=send_lateness is not None and send_lateness.is_certain
        ),
        doubts=tuple(lateness_doubts(wake_lateness, send_lateness)),
        versions=_versions(run, window),
        resumed=sum(record.resumes > 0 for record in run.records),
        single_response=_single_responses(columns),
        uncounted_tokens=sum(record.uncounted for record in run.records),
    )


def _metrics(columns: Columns, cool_down_us: int) -> dict[str, DurationDistribution]:
    durations = duration_series(columns, cool_down_us)
    return {name: distribution(series) for name, series in durations.items()}


def run_problems(run: RecordedRun, columns: Columns) -> list[str]:
    """Return why the run is invalid, by the requests of its window."""
    return validity_problems(run.progress, *_lateness(run, columns))


def _lateness(run: RecordedRun, columns: Columns) -> tuple[Lateness | None, Lateness | None]:
    """Return how late the generator woke, and how late it sent."""
    limit = max_lag_ms(run.slo)
    lags = (columns.sent - columns.planned) / 1000
    return run.progress.wake_lateness(limit), send_lateness(lags, limit)


def find_window(run: RecordedRun) -> Window:
    """Find the window from the end of the warm-up to the end of the schedule, and its trend."""
    process = (run.plan.get("arrivals") or {}).get("process")
    if process in _VARYING_PROCESSES:
        explanation = f"the planned load varies ({process}): no warm-up was removed"
        return Window(0.0, _schedule_end(run), 0.0, False, explanation)
    planned, response = _response_times(run.columns)
    cut = warm_up_length(response)
    start = float(planned[cut]) / _SECOND if cut else 0.0
    trend_result = detect_trend(response[cut:])
    explanation = trend_result.description
    if cut:
        explanation = (
            f"the first {start:.1f} s ({cut} requests) were warm-up (MSER-5); then {explanation}"
        )
    return Window(
        start,
        max(_schedule_end(run), start),
        start,
        trend_result.stationary,
        explanation,
        trend_result.growth,
    )


def _response_times(columns: Columns) -> tuple[Integers, Floats]:
    """Return the planned times of successful requests and their response times.

    A text counts until its first token: its total time depends on its length, not on the server's
    state.
    """
    text = bool(len(columns.response_at))  # only empty answers: until their end
    answered = columns.has_outcome("ok") & ((columns.first != NEVER) | (not text))
    until = columns.first if text else columns.end
    planned = columns.planned[answered]
    return planned, (until[answered] - planned).astype(np.float64)


def _schedule_end(run: RecordedRun) -> float:
    """Return the schedule's end in seconds: as planned, or with the last request."""
    duration = run.plan.get("duration_seconds")
    if duration is not None and run.reason == COMPLETE:
        return float(duration)
    return float(run.columns.planned.max()) / _SECOND if len(run.columns) else 0.0


def select_window(columns: Columns, window: Window) -> Columns:
    """Select the requests planned in the window; later turns may fall after it."""
    start, end = _window_us(window)
    return columns.select(np.asarray((columns.planned >= start) & (columns.planned <= end)))


def _window_us(window: Window) -> tuple[int, int]:
    return round(window.from_s * _SECOND), round(window.to_s * _SECOND)


def _versions(run: RecordedRun, window: Window) -> dict[str, ClassSummary]:
    request_versions = np.array(
        [record.version or NO_VERSION for record in run.records], dtype=object
    )
    versions = sorted({*request_versions.tolist()}, key=lambda name: (len(name), name))
    if versions in ([], [NO_VERSION]):
        return {}
    return {
        name: _summarise_subset(run, window, np.asarray(request_versions == name))
        for name in versions
    }


def _summarise_subset(run: RecordedRun, window: Window, mask: Mask) -> ClassSummary:
    columns = select_window(run.columns.select(mask), window)
    return ClassSummary(
        counts=_counts(columns, 0),
        rates=_rates(run, window, mask),
        metrics=_metrics(columns, run.cool_down_us),
    )


def _counts(columns: Columns, unsent: int) -> RequestCounts:
    by_outcome = {outcome: int(columns.has_outcome(outcome).sum()) for outcome in OUTCOMES}
    return RequestCounts(
        planned=len(columns) + unsent,
        sent=len(columns),
        **by_outcome,
        unsent=unsent,
        empty=int(columns.is_empty.sum()),
    )


def _single_responses(columns: Columns) -> int:
    """Count the answers whose tokens, more than one, came in a single response."""
    single = columns.has_outcome("ok") & (columns.responses == 1) & (columns.tokens > 1)
    return int(single.sum())


def _errors(records: Sequence[LoadRecord]) -> tuple[ErrorGroup, ...]:
    """Group failures by kind and message, the most frequent first; timeouts have no message."""
    groups = Counter(
        (record.error.kind, record.error.message) if record.error else (record.outcome, "")
        for record in records
        if record.outcome in ("error", "timeout")
    )
    return tuple(ErrorGroup(*key, count) for key, count in groups.most_common())


def _rates(run: RecordedRun, window: Window, mask: Mask) -> Rates:
    """Rates of the requests under the mask."""
    columns = run.columns.select(mask)
    planned = select_window(columns, window)
    start, end = _window_us(window)
    seconds = max(window.to_s - window.from_s, 1e-9)
    completed = columns.has_outcome("ok") & (columns.end >= start) & (columns.end <= end)
    arrived = (columns.response_at >= start) & (columns.response_at <= end)
    within_limits = meets_slo(planned, run.slo)
    # A window that ends with a request has as many gaps as requests before that one.
    planned_before_end = planned.planned < end
    judged_count = len(planned) - int(planned.has_outcome("cancelled").sum())
    if not len(planned) or window.to_s <= window.from_s:
        return Rates(0.0, 0.0, 0.0, 0.0, None)
    return Rates(
        offered_rps=int(planned_before_end.sum()) / seconds,
        achieved_rps=int(completed.sum()) / seconds,
        tokens_per_s=int(columns.response_tokens[arrived].sum()) / seconds,
        goodput_rps=int((within_limits & planned_before_end).sum()) / seconds,
        goodput_share=int(within_limits.sum()) / judged_count if judged_count else None,
    )


def _generator(
    run: RecordedRun, wake_lateness: Lateness | None, send_lateness: Lateness | None
) -> GeneratorFigures:
    cpu = run.progress.cpu
    return GeneratorFigures(
        workers=len(run.progress.workers),
        cpu_mean=sum(cpu) / len(cpu) if cpu else None,
        cpu_max=max(cpu, default=None),
        send_lag_p99_ms=send_lateness.p99_ms if send_lateness else None,
        woke_p99_ms=wake_lateness.p99_ms if wake_lateness else None,
    )
