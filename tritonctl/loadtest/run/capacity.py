# SPDX-License-Identifier: Apache-2.0
"""Measure a server's capacity with real runs, and its behaviour under overload."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.loadtest.analysis.capacity import Capacity, CapacityTrial, find_capacity
from tritonctl.loadtest.analysis.stationarity import will_exceed
from tritonctl.loadtest.analysis.summary import MISSED, UNDECIDED, SloVerdict, Summary
from tritonctl.loadtest.run.execution import LoadRun, StopCondition, run_load
from tritonctl.loadtest.run.folder import SEARCHES, create_run_folder, write_json
from tritonctl.loadtest.run.jobs import LoadTarget, create_load_job
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard
from tritonctl.loadtest.run.plan import Overrides, effective_slo
from tritonctl.project.base import Slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project

SCHEMA = "tritonctl/capacity/v1"
CAPACITY_FILE = "capacity.json"
SERVER_GONE = "server gone"
_CONNECTION = "connection"
OVERLOAD_FACTOR = 1.2
# Fewer requests cannot tell 1 % from 0. Slow rates need longer trials, up to this factor.
_MIN_REQUESTS, _MAX_LENGTH_FACTOR = 400, 4.0
# A run stops when ten times the allowed share of requests misses a limit.
_CLEAR_MISS_SHARE, _MIN_ANSWERS, _MIN_SECONDS = 0.1, 100, 5.0
_SENT_SHARE = 0.9
_SHEDDING_GOODPUT_SHARE, _DEGRADED_GOODPUT_SHARE = 0.9, 0.5
_TARGET_QUANTILE = 0.99


@dataclass(frozen=True)
class CapacitySearch:
    """The limits of a capacity search. Rates in requests per second."""

    lowest: float
    highest: float
    precision: float  # as a share of the capacity
    seconds: float  # of one trial
    budget_seconds: float | None = None  # of all trials


@dataclass(frozen=True)
class Overload:
    """A trial above the capacity, and the server's behaviour in it."""

    trial: CapacityTrial
    behaviour: str  # keeps, sheds, degrades or collapses
    reason: str


@dataclass(frozen=True)
class CapacityRun:
    """The result of a search and its overload trial."""

    folder: Path  # holds the runs
    capacity: Capacity
    overload: Overload | None

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped the search."""
        return self.capacity.end_reason == "interrupted"

    @property
    def server_gone(self) -> bool:
        """Whether the server died before the search ended."""
        return self.capacity.end_reason == SERVER_GONE

    def to_record(self) -> dict[str, Any]:
        """The content of capacity.json."""
        return {
            "schema": SCHEMA,
            "folder": str(self.folder),
            "rate": self.capacity.rate,
            "missed_at": self.capacity.missed_at,
            "ended": self.capacity.end_reason,
            "trials": [_trial_record(trial) for trial in self.capacity.trials],
            "overload": None
            if self.overload is None
            else {
                "behaviour": self.overload.behaviour,
                "why": self.overload.reason,
                **_trial_record(self.overload.trial),
            },
        }


def _trial_record(trial: CapacityTrial) -> dict[str, Any]:
    folder = None if trial.folder is None else trial.folder.name
    return asdict(trial) | {"folder": folder, "holds": trial.holds}


class CapacityRunner:
    """Run a scenario at one rate after another."""

    def __init__(
        self,
        project: Project,
        name: str,
        scenario: Scenario,
        target: LoadTarget,
        board: LoadBoard,
        *,
        profile: str | None = None,
        engine: str = "asyncio",
        output: Path | None = None,
    ) -> None:
        self._slo = effective_slo(project, scenario)
        if not any(self._slo.model_dump().values()):
            raise UsageError(
                f"`{name}` has no SLO, so every rate meets it",
                remedy="set slo: {ttft_p99_ms: 500} for the scenario or its model",
            )
        self._project, self._name, self._scenario = project, name, scenario
        self._target, self._board = target, board
        self._profile, self._engine = profile, engine
        self.folder = create_run_folder(project, name, output, kind=SEARCHES)
        self._run_count = 0
        self._server_gone = False

    def search(self, search: CapacitySearch) -> CapacityRun:
        """Find the capacity, then measure above it. A refused search leaves no folder."""
        try:
            return self._run_search(search)
        except TritonctlError:
            with suppress(OSError):  # the folder is not empty: it holds trials
                self.folder.rmdir()
            raise

    def _run_search(self, search: CapacitySearch) -> CapacityRun:
        capacity = find_capacity(
            lambda rate: self._run_trial(rate, search.seconds),
            lowest=search.lowest,
            highest=search.highest,
            precision=search.precision,
            budget_seconds=search.budget_seconds,
        )
        overload = None
        if (best := capacity.best) is not None and capacity.end_reason != "interrupted":
            rate = float(f"{best.rate * OVERLOAD_FACTOR:.4g}")
            overload_trial = self._run_trial(rate, search.seconds, to_the_end=True)
            overload = classify_overload(best, overload_trial) if overload_trial else None
            capacity = capacity if overload else replace(capacity, end_reason="interrupted")
        if self._server_gone:
            capacity = replace(capacity, end_reason=SERVER_GONE)
        result = CapacityRun(self.folder, capacity, overload)
        write_json(self.folder / CAPACITY_FILE, result.to_record())
        return result

    def _run_trial(
        self, rate: float, seconds: float, *, to_the_end: bool = False
    ) -> CapacityTrial | None:
        """Run one trial; return None when the user stopped it or the server died."""
        try:
            run = self._run_at_rate(
                rate, seconds, None if to_the_end else clear_miss_condition(self._slo)
            )
        except ServerError as error:
            if self._run_count == 1:
                raise
            self._board.note(error.problem)
            self._server_gone = True
            return None
        self._server_gone = _has_server_died(run)
        if run.interrupted or self._server_gone:
            return None
        trial = judge_trial(rate, run)
        self._board.note(f"{rate:.4g}/s: {trial.verdict}{trial.note and f' ({trial.note})'}")
        return trial

    def _run_at_rate(
        self, rate: float, seconds: float, stop_condition: StopCondition | None
    ) -> LoadRun:
        self._run_count += 1
        length = min(max(seconds, _MIN_REQUESTS / rate), _MAX_LENGTH_FACTOR * seconds)
        scenario = Overrides(rate=rate, duration_seconds=length).apply_to(self._scenario)
        job = create_load_job(
            self._project,
            self._name,
            scenario,
            self._target,
            profile=self._profile,
            engine=self._engine,
            output=self.folder / f"{self._run_count:02}-{rate:.4g}rps",
        )
        return run_load(job, self._board, stop=stop_condition)


def _has_server_died(run: LoadRun) -> bool:
    """Whether the server died, even if the run was stopped early."""
    errors = run.summary.errors
    unreached = run.stop_reason is not None and bool(errors) and errors[0].kind == _CONNECTION
    return unreached or run.summary.reason == SERVER_GONE


def clear_miss_condition(slo: Slo) -> Callable[[LiveFigures], str | None]:
    """Return a stop condition for runs that clearly miss the SLO, to save time."""
    limits = {
        name.partition("_")[0]: limit
        for name, limit in slo.model_dump().items()
        if name.endswith("_p99_ms") and limit is not None
    }
    allowed = slo.error_rate

    def stop(figures: LiveFigures) -> str | None:
        if figures.done < _MIN_ANSWERS or figures.seconds < _MIN_SECONDS:
            return None
        if figures.empty > _CLEAR_MISS_SHARE * figures.done:
            return f"{figures.empty} of {figures.done} answers had no tokens"
        failed = figures.failed / figures.done
        if allowed is not None and failed > max(_CLEAR_MISS_SHARE, 2 * allowed):
            return f"{failed:.0%} of the requests failed"
        for metric, limit in limits.items():
            over = figures.share_over(metric, limit)
            if over > _CLEAR_MISS_SHARE:
                return f"{metric} of {over:.0%} was over {limit:g} ms"
        return None

    return stop


def judge_trial(rate: float, run: LoadRun) -> CapacityTrial:
    """Judge a run at a rate.

    Response times count from the planned time, so a late generator only makes them look worse:
    `met` is safe, and the note of a miss names the generator's lateness. Unsent requests prove
    nothing: the verdict is then undecided.
    """
    summary, verdict, note = run.summary, run.summary.slo_verdict or UNDECIDED, ""
    likely = all(_is_likely_met(target, summary) for target in summary.slo)
    counts = summary.counts
    if run.stop_reason is not None:
        verdict, note = MISSED, f"given up: {run.stop_reason}"
    elif counts.sent < _SENT_SHARE * counts.planned or summary.reason != "complete":
        verdict, likely = UNDECIDED, False
        note = f"{counts.sent} of {counts.planned} requests were sent, run {summary.reason}"
    invalid_reason = summary.invalid_because[0].partition(":")[0] if summary.invalid_because else ""
    note = "; ".join(part for part in (note, invalid_reason) if part)
    return CapacityTrial(
        rate, verdict, likely, _trial_figures(summary), run.folder, note, valid=not invalid_reason
    )


def _is_likely_met(target: SloVerdict, summary: Summary) -> bool:
    """Whether the point estimate meets an SLO target and no growing queue will break it."""
    if target.share_over is None or target.share_over > target.allowed_share:
        return False
    if summary.empty_share > target.allowed_share:
        return False  # answers without tokens are never good, whatever their times
    metric = summary.metrics.get(target.name.partition("_")[0])
    if metric is None or target.limit_ms is None:
        return True
    percentiles_ms = [
        percentile.ms for percentile in metric.percentiles if percentile.q <= _TARGET_QUANTILE
    ]
    return (
        not will_exceed(percentiles_ms[-1], target.limit_ms, summary.window.growth)
        if percentiles_ms
        else True
    )


def _trial_figures(summary: Summary) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        "achieved_rps": summary.rates.achieved_rps,
        "goodput_rps": summary.rates.goodput_rps,
        "goodput_share": summary.rates.goodput_share,
        "failed_share": summary.counts.error / max(1, summary.counts.sent),
    }
    for metric in ("ttft", "itl", "e2e"):
        distribution = summary.metrics.get(metric)
        for q in (0.5, 0.95, 0.99):
            percentile = distribution.percentile(q) if distribution else None
            figures[f"{metric}_p{q * 100:.0f}_ms"] = percentile.ms if percentile else None
    return figures


def classify_overload(best: CapacityTrial, overload_trial: CapacityTrial) -> Overload:
    """Classify the server's behaviour above its capacity by its goodput."""
    baseline_goodput, overload_goodput = (
        best.figures.get("goodput_rps"),
        overload_trial.figures.get("goodput_rps"),
    )
    failed = overload_trial.figures.get("failed_share") or 0.0
    goodput_ratio = (overload_goodput or 0.0) / baseline_goodput if baseline_goodput else 0.0
    goodput_text = (
        f"{overload_goodput or 0.0:.4g} requests/s within the SLO, "
        f"{goodput_ratio:.0%} of that at {best.rate:.4g}/s"
    )
    if overload_trial.holds:
        return Overload(
            overload_trial,
            "keeps",
            f"also meets the SLO at {overload_trial.rate:.4g}/s: {goodput_text}",
        )
    if goodput_ratio >= _SHEDDING_GOODPUT_SHARE:
        refusal_text = f"; {failed:.0%} rejected" if failed else ""
        return Overload(overload_trial, "sheds", goodput_text + refusal_text)
    if goodput_ratio >= _DEGRADED_GOODPUT_SHARE:
        return Overload(overload_trial, "degrades", goodput_text)
    queue_hint = "" if failed else "; no request was rejected: set serving.queue.max_queue_size"
    return Overload(overload_trial, "collapses", goodput_text + queue_hint)
