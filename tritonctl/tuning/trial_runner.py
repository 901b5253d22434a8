# SPDX-License-Identifier: Apache-2.0
"""Measure trials: apply settings, run the scenario at a rate, read the summary."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, ServerError, SettingsRefusedError
from tritonctl.loadtest.analysis.slo import ERROR_RATE, SloLimit, latency_limits
from tritonctl.loadtest.analysis.summary import MET, MISSED, SloVerdict, Summary
from tritonctl.loadtest.run.execution import LoadRun, run_load
from tritonctl.loadtest.run.jobs import create_load_job, resolve_target
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard
from tritonctl.loadtest.run.plan import Overrides, effective_slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.tuning.trials import TrialRequest, TrialStore, TuningTrial, Verdict
from tritonctl.tuning.tuned_server import TunedServer

# A run stops when this many requests and this multiple of the tolerated share miss a limit.
_MIN_OVER, _CLEAR_MISS_FACTOR, _MIN_SECONDS = 25, 8, 2.0
_FAILED_SHARE = 0.1
_WARM_UP = Overrides(concurrency=4, duration_seconds=2.0)
_WARM_UP_SECONDS = 10.0  # a server that has not answered by then never will


class Interrupted(KeyboardInterrupt):
    """The user ended a trial; the store does not keep it."""


@dataclass(frozen=True)
class TrialRunner:
    """Runs the search's trials on the server under test with a scenario."""

    project: Project
    name: str
    scenario: Scenario
    server: TunedServer
    store: TrialStore
    board: LoadBoard
    on_request: Callable[[TrialRequest], None] = lambda _: None
    on_trial: Callable[[TuningTrial, bool], None] = lambda *_: None

    def __call__(self, request: TrialRequest) -> TuningTrial:
        """Return the stored trial, or measure and store a new one."""
        self.on_request(request)
        stored = self.store.find(request)
        trial = stored or self._measure(request)
        if stored is None:
            self.store.save(trial)
        self.on_trial(trial, stored is not None)
        return trial

    def run(self, changes: Overrides, folder: Path, *, patience: float | None = None) -> LoadRun:
        """Run the scenario with overrides against the server with its current settings.

        patience: the request timeout and cool-down in seconds; None: the scenario's.
        """
        scenario = changes.apply_to(self.scenario)
        if patience is not None:
            waits = {"timeout_seconds": patience, "cool_down_seconds": patience}
            scenario = scenario.model_copy(update=waits)
        shutil.rmtree(folder, ignore_errors=True)
        target = resolve_target(self.project, scenario.protocol)
        job = create_load_job(self.project, self.name, scenario, target, output=folder)
        slo_limits = latency_limits(effective_slo(self.project, self.scenario).model_dump())
        result = run_load(job, self.board, stop=lambda live: hopeless_reason(live, slo_limits))
        if result.summary.counts.abandoned:
            self.server.distrust()
        if result.interrupted:
            shutil.rmtree(folder, ignore_errors=True)
            raise Interrupted
        return result

    def _measure(self, request: TrialRequest) -> TuningTrial:
        """Measure a trial; it is missed if the server rejects the settings or dies."""
        started_at = time.monotonic()
        if not self.server.is_alive:
            self.server.revive()
        try:
            return self._measure_live(request, started_at)
        except (ConfigurationError, SettingsRefusedError) as error:
            problem = error.problem
        except ServerError as error:
            if self.server.is_alive:
                raise
            problem = f"the server died: {error.problem}"
            self.server.revive()
        took = time.monotonic() - started_at
        return TuningTrial(request, "missed", 1.0, 1.0, 1.0, 0, took, figures={"refused": problem})

    def _measure_live(self, request: TrialRequest, started_at: float) -> TuningTrial:
        applied = self.server.apply(request.settings)
        folder = self.store.trial_folder(request)
        if applied.loaded or applied.restarted:
            self._warm_up(folder.with_name(f"{folder.name}.warm-up"))
        changes = Overrides(
            rate=request.rate,
            duration_seconds=request.seconds,
            seed=self.scenario.seed + request.repeat,
        )
        run = self.run(changes, folder)
        if not self.server.is_alive:
            raise ServerError(
                f"under {request.rate:g} requests/s", remedy="see `tritonctl logs`; it crashed"
            )
        trial = build_trial(request, run, time.monotonic() - started_at)
        figures = {**trial.figures, "applied": applied.__dict__}
        return replace(trial, figures=figures, folder=str(run.folder))

    def _warm_up(self, folder: Path) -> None:
        """Run a load so that a fresh engine compiles and allocates before the measurement."""
        run = self.run(_WARM_UP, folder, patience=_WARM_UP_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        counts = run.summary.counts
        if counts.ok <= counts.empty:
            manner = "with tokens" if counts.ok else "in time"
            raise SettingsRefusedError(
                f"no warm-up request was answered {manner}", remedy="see `tritonctl logs`"
            )


def hopeless_reason(figures: LiveFigures, slo_limits: list[SloLimit]) -> str | None:
    """Return why a running trial can no longer meet the SLO; None while it can."""
    if figures.seconds < _MIN_SECONDS:
        return None
    if figures.failed >= _MIN_OVER and figures.failed > _FAILED_SHARE * figures.done:
        return f"{figures.failed} of {figures.done} requests have failed"
    if figures.empty >= _MIN_OVER and figures.empty > _FAILED_SHARE * figures.done:
        return f"{figures.empty} of {figures.done} answers had no tokens"
    for limit in slo_limits:
        count = figures.run[limit.metric].n if limit.metric in figures.run else 0
        share = figures.share_over(limit.metric, limit.ms)
        if share * count >= _MIN_OVER and share > _CLEAR_MISS_FACTOR * limit.allowed_share:
            return f"{share:.0%} over {limit.name}"
    return None


def build_trial(request: TrialRequest, run: LoadRun, took_seconds: float) -> TuningTrial:
    """Build the trial from a load test's summary."""
    summary = run.summary
    verdict, worst = _judge(summary, stopped=run.stop_reason is not None)
    share, low, high, allowed = 0.0, 0.0, 1.0, 0.01
    if worst is not None and worst.share_over is not None:
        allowed, share = worst.allowed_share, worst.share_over
        low, high = worst.low or 0.0, 1.0 if worst.high is None else worst.high
    if run.stop_reason is not None:
        share = max(share, 2 * allowed)
    # An answer without tokens is over every limit, whatever its time.
    share = max(share, summary.empty_share)
    return TuningTrial(
        request,
        verdict,
        share,
        low,
        high,
        summary.counts.planned,
        took_seconds,
        tolerated=allowed,
        p99_ms=_p99_by_metric(summary),
        figures=_figures(summary, run.stop_reason),
    )


def _judge(summary: Summary, *, stopped: bool) -> tuple[Verdict, SloVerdict | None]:
    """Return the verdict and the SLO target nearest to a miss.

    An error target stays undecided for thousands of requests, so it does not prevent `met` while
    the errors are within it.
    """
    measured = [item for item in summary.slo if item.share_over is not None]
    worst = max(measured, key=_used_share, default=None)
    if stopped or any(item.verdict == MISSED for item in measured):
        return "missed", worst
    timed = [item for item in measured if item.name != ERROR_RATE]
    errors = [item for item in measured if item.name == ERROR_RATE]
    clean = all(_used_share(item) <= 1 for item in errors)
    if timed and clean and all(item.verdict == MET for item in timed):
        return "met", worst
    return "undecided", worst


def _used_share(item: SloVerdict) -> float:
    share = item.share_over or 0.0
    return share / item.allowed_share if item.allowed_share else (2.0 if share else 0.0)


def _p99_by_metric(summary: Summary) -> dict[str, float]:
    metrics = [name for name in ("ttft", "itl", "e2e") if name in summary.metrics]
    tails = {name: summary.metrics[name].percentile(0.99) for name in metrics}
    return {name: tail.ms for name, tail in tails.items() if tail is not None}


def _figures(summary: Summary, stopped: str | None) -> Mapping[str, Any]:
    server = summary.server
    figures: dict[str, Any] = {
        "limited_by": summary.limited_by,
        "achieved_rps": summary.rates.achieved_rps,
        "goodput_rps": summary.rates.goodput_rps,
        "tokens_per_s": summary.rates.tokens_per_s,
        "itl_ms": summary.metrics["itl"].mean_ms if "itl" in summary.metrics else None,
        "invalid_because": list(summary.invalid_because),
        "stopped": stopped,
    }
    if server is None:
        return figures
    models = {
        name: {
            "batch_factor": model.batch_factor,
            "queue_ms": model.queue_ms,
            "compute_ms": model.input_ms + model.infer_ms + model.output_ms,
            "request_ms": model.request_ms,
            "share": model.share,
        }
        for name, model in server.models.items()
    }
    waiting, active = (
        sum(gauge.mean for key, gauge in server.engine.items() if key.startswith(name))
        for name in ("tritonctl_waiting_streams", "tritonctl_active_streams")
    )
    streams = {"waiting": waiting, "active": active}
    return figures | {
        "models": models,
        "streams": streams,
        "cpu": server.cpu,
        "rss_bytes": server.rss_bytes,
    }
