# SPDX-License-Identifier: Apache-2.0
"""A micro-benchmark: short closed loops with 1, 2, 4, ... users give the service time of a batch.

The queueing estimate uses it to leave out settings that cannot work.
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
    Decoder,
    Server,
    ServiceCurve,
    capacity,
    decoder_capacity,
    fitted_curve,
)
from tritonctl.tuning.search import Predict
from tritonctl.tuning.space import DELAY, INSTANCES, MAX_BATCH, PLACES, RUNS, THREADS, Space
from tritonctl.tuning.trials import Settings

_USERS = (1, 2, 4, 8)
_SECONDS = 2.5


@dataclass(frozen=True)
class ServiceTime:
    """S(b) of an engine, in seconds, and its measured points.

    tokens: of an answer; None where a request is one batch entry. throughput: the highest rate
    that the closed loops reached, requests per second.
    """

    curve: ServiceCurve
    points: tuple[tuple[float, float], ...]
    tokens: float | None
    throughput: float


def measure_service_time(
    run: Callable[[Overrides, Path], LoadRun], engine: str, folder: Path
) -> ServiceTime | None:
    """Run the loops. None when the server has no figures."""
    points, tokens, best = [], None, 0.0
    for users in _USERS:
        place = folder / f"service-time-{users}"
        done = run(Overrides(concurrency=users, duration_seconds=_SECONDS), place)
        summary = done.summary
        best = max(best, summary.rates.achieved_rps)
        if summary.rates.tokens_per_s > 0 and summary.rates.achieved_rps > 0:
            tokens = summary.rates.tokens_per_s / summary.rates.achieved_rps
        point = _step_point(summary, users, tokens) if tokens else _batch_point(summary, engine)
        points += [point] if point else []
        shutil.rmtree(place, ignore_errors=True)
    curve = fitted_curve(points)
    return ServiceTime(curve, tuple(points), tokens, best) if curve else None


def _batch_point(summary: Summary, engine: str) -> tuple[float, float] | None:
    model = summary.server.models.get(engine) if summary.server else None
    if model is None or not model.batch_factor:
        return None
    return model.batch_factor, (model.input_ms + model.infer_ms + model.output_ms) / 1000


def _step_point(summary: Summary, users: int, tokens: float) -> tuple[float, float] | None:
    # Not the gaps between responses: a response may carry the tokens of several steps.
    whole = summary.metrics.get("e2e")
    return (float(users), whole.mean_ms / 1000 / tokens) if whole else None


def predictor(space: Space, slo: Slo, service: ServiceTime | None) -> Predict:
    """The queueing estimate of settings, from the measured service time.

    None where threads or runs at a time change, because their effect on a batch is unknown.
    """

    def predict(settings: Settings) -> float | None:
        if service is None or any(settings.get(t) != space.base.get(t) for t in (*THREADS, RUNS)):
            return None
        instances = int(settings.get(INSTANCES, 1))
        # Two instances with a thread per core each work at half the pace. How many threads the
        # measured batch kept busy is unknown; assuming one gives an upper bound.
        if service.tokens is None:
            server = Server(
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
            int(settings.get(PLACES, space.project.models[space.model].engine.max_batch_size)),
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
