# SPDX-License-Identifier: Apache-2.0
"""Measures a server's capacity with real runs, and its behaviour under overload."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.errors import ServerError, TritonctlError, UsageError
from tritonctl.loadtest.analysis.capacity import Capacity, Trial, find_capacity
from tritonctl.loadtest.analysis.stationarity import outgrows
from tritonctl.loadtest.analysis.summary import MISSED, UNDECIDED, SloVerdict, Summary
from tritonctl.loadtest.run.execution import LoadRun, Stop, run_load
from tritonctl.loadtest.run.folder import SEARCHES, new_folder, write_json
from tritonctl.loadtest.run.jobs import Target, load_job
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard
from tritonctl.loadtest.run.plan import Overrides, slo_of
from tritonctl.project.base import Slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project

SCHEMA = "tritonctl/capacity/v1"
CAPACITY = "capacity.json"
GONE = "server gone"
_CONNECTION = "connection"
OVERLOAD = 1.2
# With fewer requests no trial can tell 1 % from 0; at slow rates a longer trial still has a limit.
_LEAST_REQUESTS, _LONGEST = 400, 4.0
# A run is stopped when ten times as many requests miss a limit as may.
_CLEARLY, _LEAST_ANSWERS, _LEAST_SECONDS = 0.1, 100, 5.0
_SENT_SHARE = 0.9
_KEPT, _HALVED = 0.9, 0.5
_TARGET_QUANTILE = 0.99


@dataclass(frozen=True)
class Search:
    """The rates to search between, the length of a trial, and the time for all."""

    lowest: float
    highest: float
    precision: float
    seconds: float
    budget_seconds: float | None = None


@dataclass(frozen=True)
class Overload:
    """A trial above the capacity. `behaviour`: keeps, sheds, degrades or collapses."""

    trial: Trial
    behaviour: str
    why: str


@dataclass(frozen=True)
class CapacityRun:
    """A whole search; its runs are in `folder`."""

    folder: Path
    capacity: Capacity
    overload: Overload | None

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return self.capacity.ended == "interrupted"

    @property
    def server_gone(self) -> bool:
        """Whether the server died before the search ended."""
        return self.capacity.ended == GONE

    def to_record(self) -> dict[str, Any]:
        """The content of capacity.json."""
        return {
            "schema": SCHEMA,
            "folder": str(self.folder),
            "rate": self.capacity.rate,
            "missed_at": self.capacity.missed_at,
            "ended": self.capacity.ended,
            "trials": [_record(trial) for trial in self.capacity.trials],
            "overload": None
            if self.overload is None
            else {
                "behaviour": self.overload.behaviour,
                "why": self.overload.why,
                **_record(self.overload.trial),
            },
        }


def _record(trial: Trial) -> dict[str, Any]:
    folder = None if trial.folder is None else trial.folder.name
    return asdict(trial) | {"folder": folder, "holds": trial.holds}


class CapacityRunner:
    """Runs a scenario at one rate after another."""

    def __init__(
        self,
        project: Project,
        name: str,
        scenario: Scenario,
        target: Target,
        board: LoadBoard,
        *,
        profile: str | None = None,
        engine: str = "asyncio",
        output: Path | None = None,
    ) -> None:
        self._slo = slo_of(project, scenario)
        if not any(self._slo.model_dump().values()):
            raise UsageError(
                f"`{name}` has no SLO, so every rate would meet it",
                remedy="set slo: {ttft_p99_ms: 500} for the scenario or its model",
            )
        self._project, self._name, self._scenario = project, name, scenario
        self._target, self._board = target, board
        self._profile, self._engine = profile, engine
        self.folder = new_folder(project, name, output, kind=SEARCHES)
        self._runs = 0
        self._gone = False

    def search(self, search: Search) -> CapacityRun:
        """Find the capacity, then measure above it. Nothing is left of a search that is refused."""
        try:
            return self._searched(search)
        except TritonctlError:
            with suppress(OSError):  # it holds trials
                self.folder.rmdir()
            raise

    def _searched(self, search: Search) -> CapacityRun:
        capacity = find_capacity(
            lambda rate: self._trial(rate, search.seconds),
            lowest=search.lowest,
            highest=search.highest,
            precision=search.precision,
            budget_seconds=search.budget_seconds,
        )
        overload = None
        if (best := capacity.best) is not None and capacity.ended != "interrupted":
            rate = float(f"{best.rate * OVERLOAD:.4g}")
            above = self._trial(rate, search.seconds, to_the_end=True)
            overload = overload_of(best, above) if above else None
            capacity = capacity if overload else replace(capacity, ended="interrupted")
        if self._gone:
            capacity = replace(capacity, ended=GONE)
        done = CapacityRun(self.folder, capacity, overload)
        write_json(self.folder / CAPACITY, done.to_record())
        return done

    def _trial(self, rate: float, seconds: float, *, to_the_end: bool = False) -> Trial | None:
        """One run; None when the user stopped it or the server has died."""
        try:
            done = self._run(rate, seconds, None if to_the_end else clearly_missed(self._slo))
        except ServerError as error:
            if self._runs == 1:
                raise
            self._board.note(error.problem)
            self._gone = True
            return None
        self._gone = _server_died(done)
        if done.interrupted or self._gone:
            return None
        trial = trial_of(rate, done)
        self._board.note(f"{rate:.4g}/s: {trial.verdict}{trial.note and f' ({trial.note})'}")
        return trial

    def _run(self, rate: float, seconds: float, stop: Stop | None) -> LoadRun:
        self._runs += 1
        length = min(max(seconds, _LEAST_REQUESTS / rate), _LONGEST * seconds)
        wanted = Overrides(rate=rate, duration_seconds=length).applied(self._scenario)
        job = load_job(
            self._project,
            self._name,
            wanted,
            self._target,
            profile=self._profile,
            engine=self._engine,
            output=self.folder / f"{self._runs:02}-{rate:.4g}rps",
        )
        return run_load(job, self._board, stop=stop)


def _server_died(done: LoadRun) -> bool:
    """Whether a run ended because the server died, even if the run was stopped before that."""
    errors = done.summary.errors
    unreached = done.stopped is not None and bool(errors) and errors[0].kind == _CONNECTION
    return unreached or done.summary.reason == GONE


def clearly_missed(slo: Slo) -> Callable[[LiveFigures], str | None]:
    """A stop condition for runs that have clearly missed the SLO, to save their time."""
    limits = {
        name.partition("_")[0]: limit
        for name, limit in slo.model_dump().items()
        if name.endswith("_p99_ms") and limit is not None
    }
    allowed = slo.error_rate

    def stop(figures: LiveFigures) -> str | None:
        if figures.done < _LEAST_ANSWERS or figures.seconds < _LEAST_SECONDS:
            return None
        failed = figures.failed / figures.done
        if allowed is not None and failed > max(_CLEARLY, 2 * allowed):
            return f"{failed:.0%} of the requests failed"
        for metric, limit in limits.items():
            over = figures.share_over(metric, limit)
            if over > _CLEARLY:
                return f"{metric} of {over:.0%} was over {limit:g} ms"
        return None

    return stop


def trial_of(rate: float, done: LoadRun) -> Trial:
    """The verdict of a run about a rate.

    Response times count from the planned time, so a late generator can only make them look worse:
    `met` is safe, and a miss says that the generator may have caused it. Requests that were not
    sent prove nothing.
    """
    summary, verdict, note = done.summary, done.summary.slo_verdict or UNDECIDED, ""
    likely = all(_likely(target, summary) for target in summary.slo)
    counts = summary.counts
    if done.stopped is not None:
        verdict, note = MISSED, f"given up: {done.stopped}"
    elif counts.sent < _SENT_SHARE * counts.planned or summary.reason != "complete":
        verdict, likely = UNDECIDED, False
        note = f"{counts.sent} of {counts.planned} requests were sent, run {summary.reason}"
    late = summary.invalid_because[0].partition(":")[0] if summary.invalid_because else ""
    note = "; ".join(part for part in (note, late) if part)
    return Trial(rate, verdict, likely, _figures(summary), done.folder, note, valid=not late)


def _likely(target: SloVerdict, summary: Summary) -> bool:
    """Whether the point estimate meets an SLO target, and no growing queue is about to miss it."""
    if target.share_over is None or target.share_over > target.allowed_share:
        return False
    metric = summary.metrics.get(target.name.partition("_")[0])
    if metric is None or target.limit_ms is None:
        return True
    known = [percentile.ms for percentile in metric.percentiles if percentile.q <= _TARGET_QUANTILE]
    return not outgrows(known[-1], target.limit_ms, summary.window.growth) if known else True


def _figures(summary: Summary) -> dict[str, float | None]:
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


def overload_of(best: Trial, beyond: Trial) -> Overload:
    """How the server behaves above its capacity: does it shed requests, or do all suffer?"""
    before, after = best.figures.get("goodput_rps"), beyond.figures.get("goodput_rps")
    failed = beyond.figures.get("failed_share") or 0.0
    kept = (after or 0.0) / before if before else 0.0
    good = f"{after or 0.0:.4g} requests/s within the SLO, {kept:.0%} of those at {best.rate:.4g}/s"
    if beyond.holds:
        return Overload(beyond, "keeps", f"the SLO is met at {beyond.rate:.4g}/s, too: {good}")
    if kept >= _KEPT:
        refused = f"; {failed:.0%} were refused" if failed else ""
        return Overload(beyond, "sheds", good + refused)
    if kept >= _HALVED:
        return Overload(beyond, "degrades", good)
    why = "" if failed else "; nothing was refused: bound the queue (serving.queue.max_queue_size)"
    return Overload(beyond, "collapses", good + why)
