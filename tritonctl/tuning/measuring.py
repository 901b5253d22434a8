# SPDX-License-Identifier: Apache-2.0
"""Measures trials: makes settings live, runs the scenario at a rate, reads the summary."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError, ServerError, SettingsRefusedError
from tritonctl.loadtest.analysis.slo import ERROR_RATE, Limit, limits
from tritonctl.loadtest.analysis.summary import MET, MISSED, SloVerdict, Summary
from tritonctl.loadtest.run.execution import LoadRun, run_load
from tritonctl.loadtest.run.jobs import load_job, target_of
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard
from tritonctl.loadtest.run.plan import Overrides, slo_of
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.tuning.applying import TunedServer
from tritonctl.tuning.trials import Asked, Trial, TrialStore, Verdict

# A run is stopped when so many requests, and so many times the tolerated share, miss a limit.
_OVER, _TIMES, _FIRST_SECONDS = 25, 8, 2.0
_FAILED_SHARE = 0.1
_WARM_UP = Overrides(concurrency=4, duration_seconds=2.0)
_WARM_UP_SECONDS = 10.0  # a server that has not answered a few requests by then never will


class Interrupted(KeyboardInterrupt):
    """The user ended a trial; it is not stored."""


@dataclass(frozen=True)
class Bench:
    """Measures what the search asks for on a server, that under test, by the scenario `name`."""

    project: Project
    name: str
    scenario: Scenario
    server: TunedServer
    store: TrialStore
    board: LoadBoard
    on_asked: Callable[[Asked], None] = lambda _: None
    on_trial: Callable[[Trial, bool], None] = lambda *_: None

    def __call__(self, asked: Asked) -> Trial:
        """The stored trial, or else a new one, which is stored."""
        self.on_asked(asked)
        stored = self.store.find(asked)
        trial = stored or self._measured(asked)
        if stored is None:
            self.store.keep(trial)
        self.on_trial(trial, stored is not None)
        return trial

    def run(self, changes: Overrides, folder: Path, *, patience: float | None = None) -> LoadRun:
        """Run the scenario with some changes against the server as it is.

        patience: the timeout of a request, and of all of them at the end, in seconds; None: the
        scenario's.
        """
        wanted = changes.applied(self.scenario)
        if patience is not None:
            waits = {"timeout_seconds": patience, "cool_down_seconds": patience}
            wanted = wanted.model_copy(update=waits)
        shutil.rmtree(folder, ignore_errors=True)
        target = target_of(self.project, wanted.protocol)
        job = load_job(self.project, self.name, wanted, target, output=folder)
        durations = limits(slo_of(self.project, self.scenario).model_dump())
        done = run_load(job, self.board, stop=lambda live: hopeless(live, durations))
        if done.summary.counts.abandoned:
            self.server.distrust()
        if done.interrupted:
            shutil.rmtree(folder, ignore_errors=True)
            raise Interrupted
        return done

    def _measured(self, asked: Asked) -> Trial:
        """A new trial; a server that refuses the settings or dies under them misses the SLO."""
        began = time.monotonic()
        if not self.server.alive:
            self.server.revive()
        try:
            return self._loaded(asked, began)
        except (ConfigurationError, SettingsRefusedError) as error:
            problem = error.problem
        except ServerError as error:
            if self.server.alive:
                raise
            problem = f"the server died: {error.problem}"
            self.server.revive()
        took = time.monotonic() - began
        return Trial(asked, "missed", 1.0, 1.0, 1.0, 0, took, figures={"refused": problem})

    def _loaded(self, asked: Asked, began: float) -> Trial:
        applied = self.server.apply(asked.settings)
        folder = self.store.folder_of(asked)
        if applied.loaded or applied.restarted:
            self._warm_up(folder.with_name(f"{folder.name}.warm-up"))
        changes = Overrides(
            rate=asked.rate, duration_seconds=asked.seconds, seed=self.scenario.seed + asked.repeat
        )
        done = self.run(changes, folder)
        if not self.server.alive:
            raise ServerError(
                f"under {asked.rate:g} requests/s", remedy="see `tritonctl logs`; it crashed"
            )
        trial = trial_of(asked, done, time.monotonic() - began)
        figures = {**trial.figures, "applied": applied.__dict__}
        return replace(trial, figures=figures, folder=str(done.folder))

    def _warm_up(self, folder: Path) -> None:
        """A fresh engine compiles and allocates with its first requests: do not measure those."""
        done = self.run(_WARM_UP, folder, patience=_WARM_UP_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        if not done.summary.counts.ok:
            raise SettingsRefusedError(
                "no request of the warm-up was answered in time", remedy="see `tritonctl logs`"
            )


def hopeless(live: LiveFigures, wanted: list[Limit]) -> str | None:
    """Why a running trial can no longer meet the SLO; None while it may."""
    if live.seconds < _FIRST_SECONDS:
        return None
    if live.failed >= _OVER and live.failed > _FAILED_SHARE * live.done:
        return f"{live.failed} of {live.done} requests have failed"
    for limit in wanted:
        count = live.run[limit.metric].n if limit.metric in live.run else 0
        share = live.share_over(limit.metric, limit.ms)
        if share * count >= _OVER and share > _TIMES * limit.allowed:
            return f"{share:.0%} over {limit.name}"
    return None


def trial_of(asked: Asked, done: LoadRun, took: float) -> Trial:
    """The trial in a load test's summary."""
    summary = done.summary
    verdict, worst = _judged(summary, stopped=done.stopped is not None)
    share, low, high, allowed = 0.0, 0.0, 1.0, 0.01
    if worst is not None and worst.share_over is not None:
        allowed, share = worst.allowed_share, worst.share_over
        low, high = worst.low or 0.0, 1.0 if worst.high is None else worst.high
    if done.stopped is not None:
        share = max(share, 2 * allowed)
    return Trial(
        asked,
        verdict,
        share,
        low,
        high,
        summary.counts.planned,
        took,
        tolerated=allowed,
        p99_ms=_p99(summary),
        figures=_figures(summary, done.stopped),
    )


def _judged(summary: Summary, *, stopped: bool) -> tuple[Verdict, SloVerdict | None]:
    """The verdict, and the SLO target that is nearest to a miss.

    A target for errors stays undecided for thousands of requests; while the errors are within it,
    it does not keep a trial from being met.
    """
    known = [item for item in summary.slo if item.share_over is not None]
    worst = max(known, key=_closeness, default=None)
    if stopped or any(item.verdict == MISSED for item in known):
        return "missed", worst
    timed = [item for item in known if item.name != ERROR_RATE]
    errors = [item for item in known if item.name == ERROR_RATE]
    clean = all(_closeness(item) <= 1 for item in errors)
    if timed and clean and all(item.verdict == MET for item in timed):
        return "met", worst
    return "undecided", worst


def _closeness(item: SloVerdict) -> float:
    share = item.share_over or 0.0
    return share / item.allowed_share if item.allowed_share else (2.0 if share else 0.0)


def _p99(summary: Summary) -> dict[str, float]:
    known = [name for name in ("ttft", "itl", "e2e") if name in summary.metrics]
    tails = {name: summary.metrics[name].percentile(0.99) for name in known}
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
