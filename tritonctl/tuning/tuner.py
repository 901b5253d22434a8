# SPDX-License-Identifier: Apache-2.0
"""A whole tuning session: micro-benchmark, search, side by side, validation, explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.host.resources import usable_cores
from tritonctl.loadtest.analysis.slo import limits
from tritonctl.loadtest.run.live import LoadBoard
from tritonctl.loadtest.run.plan import slo_of
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.tuning.applying import TunedServer
from tritonctl.tuning.explaining import by_bottleneck
from tritonctl.tuning.knobs import space_of
from tritonctl.tuning.measuring import Bench
from tritonctl.tuning.outcome import Budget, Outcome, Standing, Step
from tritonctl.tuning.search import Predict, Search
from tritonctl.tuning.service_time import ServiceTime, measure_service_time, predictor
from tritonctl.tuning.session import Session, context_of, last_session, new_session, tuning_folder
from tritonctl.tuning.space import Space
from tritonctl.tuning.trials import Asked, Trial, TrialStore
from tritonctl.tuning.validate import Validation, validate, validated

# Of the budget; the rest is for the comparison and the validation.
_SEARCH_SHARE = 0.7
_OVERHEAD_SECONDS = 3.0  # of a trial: a load, a warm-up, a generator's start
_FEWEST_SECONDS, _MOST_SECONDS = 3.0, 60.0
_BASELINE_TRIALS, _TRIALS_PER_KNOB = 8, 2.5
_START_SHARE = 0.5  # of the closed loop's throughput


class Watcher(Protocol):
    """Receives the progress of a session."""

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def measuring(self, asked: Asked, space: Space) -> None:
        """A trial begins, or its stored result is read."""

    def trial(self, trial: Trial, stored: bool) -> None:
        """A trial was measured, or read from the store."""

    def step(self, step: Step, space: Space) -> None:
        """The search has tried a step."""


@dataclass(frozen=True)
class TuneJob:
    """What to tune. knobs: the names of those to turn; () for all."""

    project: Project
    name: str
    scenario: Scenario
    minutes: float
    resume: bool = False
    knobs: tuple[str, ...] = ()
    validation: bool = True


@dataclass(frozen=True)
class Tuned:
    """The result of a session."""

    session: Session
    space: Space
    service: ServiceTime | None
    predict: Predict
    outcome: Outcome
    validation: Validation | None

    @property
    def best(self) -> Standing:
        """The best settings with the rate that validation has confirmed, if it did."""
        if self.validation is None or not self.validation.holds:
            return self.outcome.best
        return validated(self.outcome.best, self.validation)

    @property
    def worth_it(self) -> bool:
        """Whether to change the settings: they are better beyond noise, and validation, if asked
        for, has confirmed a rate above today's."""
        if not self.outcome.better or self.validation is None:
            return self.outcome.better
        return self.validation.holds and self.best.met > self.outcome.before.met

    @property
    def overlay(self) -> dict[str, Any]:
        """What to write into `models.<name>`."""
        return self.space.overlay(self.outcome.best.settings)


def tune(job: TuneJob, board: LoadBoard, watcher: Watcher) -> Tuned:
    """Tune a model, then put the server back as it was.

    Raises UsageError and ConfigurationError for an impossible job, KeyboardInterrupt when the user
    stops it; every finished trial is stored.
    """
    space = _space(job)
    folder = tuning_folder(job.project, space.model)
    context = context_of(job.project, job.scenario, space)
    session = (last_session if job.resume else new_session)(folder, context)
    store = TrialStore(session.trials, context)
    watcher.stage("preparing the server")
    with TunedServer(space, folder, board) as server:
        bench = Bench(
            job.project,
            job.name,
            job.scenario,
            server,
            store,
            board,
            on_asked=lambda asked: watcher.measuring(asked, space),
            on_trial=watcher.trial,
        )
        service, budget = session.read() or _begin(job, session, space, server, bench, watcher)
        # On top of what a resumed session has already spent.
        seconds = job.minutes * 60 * _SEARCH_SHARE + store.seconds_spent()
        budget = replace(budget, seconds=seconds)
        predict = predictor(space, slo_of(job.project, job.scenario), service)
        outcome = _searched(space, bench, budget, predict, watcher)
        validation = None
        if outcome.better and job.validation:
            watcher.stage("validating on a fresh server at 0.8, 1.0 and 1.2 times the rate")
            server.fresh(outcome.best.settings)
            validation = validate(outcome.best, bench, budget)
    return Tuned(session, space, service, predict, outcome, validation)


def _searched(
    space: Space, bench: Bench, budget: Budget, predict: Predict, watcher: Watcher
) -> Outcome:
    watcher.stage(f"searching among {len(space.knobs)} knobs")
    return Search(
        space.knobs,
        bench,
        budget,
        predict=predict,
        order=lambda trial, moves: by_bottleneck(space, trial, moves),
        allowed=space.allowed,
        notify=lambda step: watcher.step(step, space),
    ).run()


def _space(job: TuneJob) -> Space:
    model = job.scenario.model
    if model not in job.project.models:
        raise UsageError(
            f"load test {job.name} is for the model {model}, but this project has no such model",
            remedy=choices(model, sorted(job.project.models), "choose one for:"),
        )
    slo = slo_of(job.project, job.scenario)
    if not limits(slo.model_dump()):
        raise ConfigurationError(
            f"models.{model}.slo: no limit on a time, so every rate would meet it",
            remedy="add an SLO target, e.g. `slo: {ttft_p99_ms: 500}`",
        )
    priorities = max((request.priority or 0 for request in job.scenario.requests), default=0)
    space = space_of(job.project, model, priorities, usable_cores())
    if not space.knobs:
        raise ConfigurationError(
            f"nothing of {model} can be tuned: on {space.cores} cores each setting has one value",
            remedy="run it where the model will be served, or raise `engine.max_batch_size`",
        )
    unknown = sorted(set(job.knobs) - {knob.name for knob in space.knobs})
    if unknown:
        raise UsageError(
            f"{model} has no knob {', '.join(unknown)}",
            remedy=choices(unknown[0], [knob.name for knob in space.knobs], "its knobs:"),
        )
    return space.only(job.knobs) if job.knobs else space


def _begin(
    job: TuneJob,
    session: Session,
    space: Space,
    server: TunedServer,
    bench: Bench,
    watcher: Watcher,
) -> tuple[ServiceTime | None, Budget]:
    watcher.stage("measuring the service time of batches")
    server.apply(space.base)
    engine = space.knobs[0].model if space.knobs else space.model
    service = measure_service_time(bench.run, engine, session.folder)
    start = _START_SHARE * service.throughput if service and service.throughput else 1.0
    trials = _BASELINE_TRIALS + _TRIALS_PER_KNOB * len(space.knobs)
    seconds = job.minutes * 60 * _SEARCH_SHARE / trials - _OVERHEAD_SECONDS
    longest = round(min(_MOST_SECONDS, max(_FEWEST_SECONDS, seconds)), 1)
    start = float(f"{start:.3g}")
    budget = Budget(
        seconds=0.0,
        start=start,
        lowest=start / 32,
        highest=start * 1000,
        shortest=min(6.0, longest),
        longest=longest,
    )
    session.record(service, budget)
    return service, budget


def changes(space: Space, outcome: Outcome) -> Sequence[tuple[str, Any, Any]]:
    """The name, today's value and the new value of each knob that changes."""
    best = outcome.best.settings
    return [(k.name, k.base, best[k.name]) for k in space.knobs if best[k.name] != k.base]
