# SPDX-License-Identifier: Apache-2.0
"""Run a tuning session: micro-benchmark, search, duels, validation, explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.host.resources import usable_cores
from tritonctl.loadtest.analysis.slo import latency_limits
from tritonctl.loadtest.run.live import LoadBoard
from tritonctl.loadtest.run.plan import effective_slo
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.runtimes.measurement_locks import tuning
from tritonctl.tuning.knobs import build_space
from tritonctl.tuning.outcome import RateBracket, SearchBudget, SearchOutcome, SearchStep
from tritonctl.tuning.search import Predict, SettingsSearch
from tritonctl.tuning.service_time import ServiceTime, create_predictor, measure_service_curve
from tritonctl.tuning.session import (
    TuningSession,
    create_session,
    find_last_session,
    session_context,
    tuning_folder,
)
from tritonctl.tuning.space import SearchSpace
from tritonctl.tuning.step_explanation import sort_by_bottleneck
from tritonctl.tuning.trial_runner import TrialRunner
from tritonctl.tuning.trials import TrialRequest, TrialStore, TuningTrial
from tritonctl.tuning.tuned_server import TunedServer
from tritonctl.tuning.validate import Validation, confirmed_bracket, validate

# Of the budget; the remainder is for the duels and the validation.
_SEARCH_SHARE = 0.7
_OVERHEAD_SECONDS = 3.0  # of a trial: model load, warm-up, generator start
_MIN_TRIAL_SECONDS, _MAX_TRIAL_SECONDS = 3.0, 60.0
_BASELINE_TRIALS, _TRIALS_PER_KNOB = 8, 2.5
_START_SHARE = 0.5  # of the closed loop's throughput


class TuningWatcher(Protocol):
    """Receives the progress of a session."""

    def stage(self, text: str) -> None:
        """A new stage starts."""

    def measuring(self, request: TrialRequest, space: SearchSpace) -> None:
        """A trial starts, or its stored result is read."""

    def trial(self, trial: TuningTrial, stored: bool) -> None:
        """A trial was measured, or read from the store."""

    def step(self, step: SearchStep, space: SearchSpace) -> None:
        """The search has tried a step."""


@dataclass(frozen=True)
class TuneJob:
    """The input of a tuning session."""

    project: Project
    name: str
    scenario: Scenario
    minutes: float
    resume: bool = False
    knobs: tuple[str, ...] = ()  # names of the knobs to tune; () for all
    validation: bool = True


@dataclass(frozen=True)
class TuningResult:
    """The result of a tuning session."""

    session: TuningSession
    space: SearchSpace
    service: ServiceTime | None
    predict: Predict
    outcome: SearchOutcome
    validation: Validation | None

    @property
    def best(self) -> RateBracket:
        """The best settings, with the rate that the validation confirmed, if any."""
        if self.validation is None or not self.validation.holds:
            return self.outcome.best
        return confirmed_bracket(self.outcome.best, self.validation)

    @property
    def worth_it(self) -> bool:
        """Whether the gain exceeds the noise and the validation, if requested, confirmed it."""
        if not self.outcome.better or self.validation is None:
            return self.outcome.better
        return self.validation.holds and self.best.met > self.outcome.baseline.met

    @property
    def overlay(self) -> dict[str, Any]:
        """The overlay of `models.<name>` with the best settings."""
        return self.space.overlay(self.outcome.best.settings)


def tune(job: TuneJob, board: LoadBoard, watcher: TuningWatcher) -> TuningResult:
    """Tune a model, then restore the server.

    Stores every finished trial. Raises UsageError and ConfigurationError for an impossible job,
    ServerError while another command measures the server, KeyboardInterrupt when the user stops it.
    """
    with tuning(job.project):
        return _tune_reserved(job, board, watcher)


def _tune_reserved(job: TuneJob, board: LoadBoard, watcher: TuningWatcher) -> TuningResult:
    space = _restricted_space(job)
    folder = tuning_folder(job.project, space.model)
    context = session_context(job.project, job.scenario, space)
    session = (find_last_session if job.resume else create_session)(folder, context)
    store = TrialStore(session.trials, context)
    watcher.stage("preparing the server")
    with TunedServer(space, folder, board) as server:
        bench = TrialRunner(
            job.project,
            job.name,
            job.scenario,
            server,
            store,
            board,
            on_request=lambda request: watcher.measuring(request, space),
            on_trial=watcher.trial,
        )
        service, budget = session.read() or _start_session(
            job, session, space, server, bench, watcher
        )
        # In addition to the time that a resumed session has already spent.
        seconds = job.minutes * 60 * _SEARCH_SHARE + store.seconds_spent()
        budget = replace(budget, seconds=seconds)
        predict = create_predictor(space, effective_slo(job.project, job.scenario), service)
        outcome = _run_search(space, bench, budget, predict, watcher)
        validation = None
        if outcome.better and job.validation:
            watcher.stage("validating on a fresh server at 0.8, 1.0 and 1.2 times the rate")
            server.start_fresh(outcome.best.settings)
            validation = validate(outcome.best, bench, budget)
    return TuningResult(session, space, service, predict, outcome, validation)


def _run_search(
    space: SearchSpace,
    bench: TrialRunner,
    budget: SearchBudget,
    predict: Predict,
    watcher: TuningWatcher,
) -> SearchOutcome:
    watcher.stage(f"searching among {len(space.knobs)} knobs")
    return SettingsSearch(
        space.knobs,
        bench,
        budget,
        predict=predict,
        order=lambda trial, moves: sort_by_bottleneck(space, trial, moves),
        allowed=space.is_allowed,
        notify=lambda step: watcher.step(step, space),
    ).run()


def _restricted_space(job: TuneJob) -> SearchSpace:
    model = job.scenario.model
    if model not in job.project.models:
        raise UsageError(
            f"load test {job.name} is for the model {model}, but this project has no such model",
            remedy=choices(model, sorted(job.project.models), "choose one for:"),
        )
    slo = effective_slo(job.project, job.scenario)
    if not latency_limits(slo.model_dump()):
        raise ConfigurationError(
            f"models.{model}.slo: no latency limit, so every rate meets it",
            remedy="add an SLO target, e.g. `slo: {ttft_p99_ms: 500}`",
        )
    priorities = max((request.priority or 0 for request in job.scenario.requests), default=0)
    space = build_space(job.project, model, priorities, usable_cores())
    if not space.knobs:
        raise ConfigurationError(
            f"{model} cannot be tuned: on {space.cores} cores each setting has only one value",
            remedy="tune on the production machine, or raise `engine.max_batch_size`",
        )
    unknown_knobs = sorted(set(job.knobs) - {knob.name for knob in space.knobs})
    if unknown_knobs:
        raise UsageError(
            f"{model} has no knob {', '.join(unknown_knobs)}",
            remedy=choices(unknown_knobs[0], [knob.name for knob in space.knobs], "its knobs:"),
        )
    return space.restrict_to(job.knobs) if job.knobs else space


def _start_session(
    job: TuneJob,
    session: TuningSession,
    space: SearchSpace,
    server: TunedServer,
    bench: TrialRunner,
    watcher: TuningWatcher,
) -> tuple[ServiceTime | None, SearchBudget]:
    watcher.stage("measuring the service time of batches")
    server.apply(space.base)
    engine = space.knobs[0].model if space.knobs else space.model
    service = measure_service_curve(bench.run, engine, session.folder)
    start = _START_SHARE * service.throughput if service and service.throughput else 1.0
    trials = _BASELINE_TRIALS + _TRIALS_PER_KNOB * len(space.knobs)
    seconds = job.minutes * 60 * _SEARCH_SHARE / trials - _OVERHEAD_SECONDS
    max_seconds = round(min(_MAX_TRIAL_SECONDS, max(_MIN_TRIAL_SECONDS, seconds)), 1)
    start = float(f"{start:.3g}")
    budget = SearchBudget(
        seconds=0.0,
        start=start,
        lowest=start / 32,
        highest=start * 1000,
        shortest=min(6.0, max_seconds),
        longest=max_seconds,
    )
    session.record(service, budget)
    return service, budget


def changed_knobs(space: SearchSpace, outcome: SearchOutcome) -> Sequence[tuple[str, Any, Any]]:
    """Return name, current value and new value of each changed knob."""
    best = outcome.best.settings
    return [(k.name, k.base, best[k.name]) for k in space.knobs if best[k.name] != k.base]
