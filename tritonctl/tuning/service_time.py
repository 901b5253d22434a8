# SPDX-License-Identifier: Apache-2.0
"""Measure the service time of a batch by short closed loops with 1, 2, 4, ... users.

The queueing estimate uses it to exclude hopeless settings.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tritonctl.loadtest.analysis.summary import Summary
from tritonctl.loadtest.run.execution import LoadRun
from tritonctl.loadtest.run.plan import Overrides
from tritonctl.project.base import Slo
from tritonctl.tuning.queueing import (
    BatchServer,
    Decoder,
    ServiceCurve,
    capacity,
    decoder_capacity,
    fit_curve,
)
from tritonctl.tuning.search import Predict
from tritonctl.tuning.space import (
    DELAY,
    INSTANCES,
    MAX_BATCH,
    MAX_SEQUENCES,
    PARALLEL_RUNS,
    THREADS,
    SearchSpace,
)
from tritonctl.tuning.trials import Settings

_USERS = (1, 2, 4, 8)
_SECONDS = 2.5


@dataclass(frozen=True)
class ServiceTime:
    """S(b) of an engine, in seconds."""

    curve: ServiceCurve
    points: tuple[tuple[float, float], ...]  # measured (batch, seconds)
    tokens: float | None  # per response; None if a request is one batch entry
    throughput: float  # maximum of the closed loops, requests per second


def measure_service_curve(
    run: Callable[[Overrides, Path], LoadRun], engine: str, folder: Path
) -> ServiceTime | None:
    """Measure the service time at 1 to 8 concurrent users.

    Return None if the measurements yield no curve."""
    points, tokens, best = [], None, 0.0
    for users in _USERS:
        run_folder = folder / f"service-time-{users}"
        load_run = run(Overrides(concurrency=users, duration_seconds=_SECONDS), run_folder)
        summary = load_run.summary
        best = max(best, summary.rates.achieved_rps)
        if summary.rates.tokens_per_s > 0 and summary.rates.achieved_rps > 0:
            tokens = summary.rates.tokens_per_s / summary.rates.achieved_rps
        point = _step_point(summary, users, tokens) if tokens else _batch_point(summary, engine)
        points += [point] if point else []
        shutil.rmtree(run_folder, ignore_errors=True)
    curve = fit_curve(points)
    return ServiceTime(curve, tuple(points), tokens, best) if curve else None


def _batch_point(summary: Summary, engine: str) -> tuple[float, float] | None:
    model = summary.server.models.get(engine) if summary.server else None
    if model is None or not model.batch_factor:
        return None
    return model.batch_factor, (model.input_ms + model.infer_ms + model.output_ms) / 1000


def _step_point(summary: Summary, users: int, tokens: float) -> tuple[float, float] | None:
    # Not the gaps between responses: a response may carry the tokens of several steps.
    e2e = summary.metrics.get("e2e")
    return (float(users), e2e.mean_ms / 1000 / tokens) if e2e else None


def create_predictor(space: SearchSpace, slo: Slo, service: ServiceTime | None) -> Predict:
    """Return the queueing estimate of settings, based on the measured service time.

    It returns None for changed threads or parallel runs: their effect on a batch is unknown.
    """

    def predict(settings: Settings) -> float | None:
        if service is None or any(
            settings.get(t) != space.base.get(t) for t in (*THREADS, PARALLEL_RUNS)
        ):
            return None
        instances = int(settings.get(INSTANCES, 1))
        # Two instances with a thread per core each work at half speed. The busy threads of the
        # measured batch are unknown; assuming one gives an upper bound.
        if service.tokens is None:
            server = BatchServer(
                service.curve,
                instances,
                int(settings.get(MAX_BATCH, 1)),
                int(settings.get(DELAY, 0)) / 1e6,
                cores=space.cores,
            )
            return capacity(server, _seconds(slo.e2e_p99_ms))
        decoder = Decoder(
            service.curve,
            instances,
            int(
                settings.get(MAX_SEQUENCES, space.project.models[space.model].engine.max_batch_size)
            ),
            service.tokens,
            ttft=_seconds(slo.ttft_p99_ms),
            itl=_seconds(slo.itl_p99_ms),
            e2e=_seconds(slo.e2e_p99_ms),
            cores=space.cores,
        )
        return decoder_capacity(decoder)

    return predict


def _seconds(ms: float | None) -> float:
    return math.inf if ms is None else ms / 1000
