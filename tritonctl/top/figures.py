# SPDX-License-Identifier: Apache-2.0
"""Compute the displayed figures from metric readings; no clock, no network, no terminal.

The series come from Triton, this project's engines, and the TensorRT-LLM and vLLM backends. A
figure is None if the server does not publish its series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritonctl.protocol.engine_gauges import ACTIVE, KV_FREE, KV_USED, WAITING, Sources
from tritonctl.top.counters import Increases, Reading, sum_known
from tritonctl.top.histograms import TimeQuantiles

_SUCCESS = "nv_inference_request_success"
_FAILURE = "nv_inference_request_failure"
_TRITON = "nv_inference_"
# Published once a second; a busy machine may be late.
_ALIVE_WITHIN_SECONDS = 4.0
# Time to first token and between tokens: the first of these that the server has; to milliseconds.
TTFT_SERIES = {
    "tritonctl_time_to_first_token_seconds": 1e3,
    "vllm:time_to_first_token_seconds": 1e3,
    "nv_inference_first_response_histogram_ms": 1.0,
}
ITL_SERIES = {
    "tritonctl_inter_token_latency_seconds": 1e3,
    "vllm:inter_token_latency_seconds": 1e3,
    "vllm:time_per_output_token_seconds": 1e3,
}
_E2E = {"tritonctl_request_duration_seconds": 1e3, "vllm:e2e_request_latency_seconds": 1e3}
_TOKENS = ("tritonctl_output_tokens", "vllm:generation_tokens")


@dataclass(frozen=True)
class ModelLayout:
    """The model structure from the configurations."""

    # The steps of each ensemble, including nested ensembles and their steps.
    steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)  # per model


@dataclass(frozen=True)
class ModelLoad:
    """One model over the window; queue, batches and texts of an ensemble come from its steps."""

    model: str
    requests_per_s: float
    failures_per_s: float
    failures: Mapping[str, float] = field(default_factory=dict)  # by reason, in the window
    latency_ms: float | None = None
    queue_share: float | None = None
    batch_factor: float | None = None
    waiting: float | None = None
    ttft: TimeQuantiles | None = None
    itl: TimeQuantiles | None = None
    e2e: TimeQuantiles | None = None  # of whole answers
    tokens_per_s: float | None = None
    active_streams: float | None = None
    kv_used: float | None = None  # share of the blocks
    cache_hits: float | None = None  # share of the requests that consulted the response cache
    instances: int | None = None
    silent: int = 0  # instances whose process shows no sign of life
    restarted: bool = False
    steps: tuple[ModelLoad, ...] = ()


@dataclass(frozen=True)
class GpuLoad:
    """One GPU, from Triton's metrics."""

    uuid: str
    utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None


@dataclass(frozen=True)
class ServerLoad:
    """The server's processes (where they are on this machine) and the machine it runs on."""

    cpu_cores: float | None
    rss_bytes: int | None
    host_cpu: float | None  # share of all cores
    host_memory_used_bytes: float | None
    host_memory_total_bytes: float | None
    gpus: tuple[GpuLoad, ...] = ()


@dataclass(frozen=True)
class WindowFigures:
    """All figures over an interval. Models without an ensemble are listed next to the ensembles."""

    interval_seconds: float
    server: ServerLoad
    models: tuple[ModelLoad, ...]


def figures(readings: Sequence[Reading], layout: ModelLayout) -> WindowFigures:
    """Compute the figures from the first to the last of at least two readings.

    Raises ValueError if the readings are not in order.
    """
    last_reading, seconds = readings[-1], readings[-1].at - readings[0].at
    if seconds <= 0:
        raise ValueError("readings must be in order, and two or more")
    deployed = last_reading.label_values("model", _TRITON)
    ensembles = {name: [s for s in steps if s in deployed] for name, steps in layout.steps.items()}
    window = _Window(Increases(readings), readings[1:], seconds, layout.instances, ensembles)
    inner = {step for name, steps in ensembles.items() if name in deployed for step in steps}
    return WindowFigures(
        seconds,
        _server(readings, seconds),
        tuple(window.load_of(name) for name in sorted(deployed - inner)),
    )


@dataclass(frozen=True)
class _Window:
    """The increases over a window, and its gauges as the mean of the readings."""

    increases: Increases
    readings: Sequence[Reading]
    seconds: float
    instances: Mapping[str, int]
    ensembles: Mapping[str, Sequence[str]]

    def load_of(self, model: str) -> ModelLoad:
        """Compute a model's figures, including the steps of an ensemble."""
        steps = self.ensembles.get(model)
        if not steps:
            return self._figures(model, (model,))
        inner = tuple(self._figures(step, (step,)) for step in steps)
        return self._figures(
            model, tuple(step for step in steps if step not in self.ensembles), inner
        )

    def _figures(
        self, name: str, workers: Sequence[str], steps: tuple[ModelLoad, ...] = ()
    ) -> ModelLoad:
        """`workers`: the models that do the work, the model itself or the ensemble's steps."""
        failures = self._failures(name, workers, ensemble=bool(steps))
        requests, count = self._rise(_SUCCESS, [name]), self._rise(f"{_TRITON}count", [name])
        executions = self._rise(f"{_TRITON}exec_count", [name])
        tokens = [self._rise(series, workers) for series in _TOKENS]
        used, free = self._gauge(KV_USED, workers), self._gauge(KV_FREE, workers)
        hits, lookups = self._cache_hits_and_lookups([name, *(step.model for step in steps)])
        return ModelLoad(
            model=name,
            requests_per_s=(requests or 0.0) / self.seconds,
            failures_per_s=sum(failures.values()) / self.seconds,
            failures=failures,
            latency_ms=_ratio(self._us("request", [name]), requests, 1e-3),
            queue_share=_ratio(self._us("queue", workers), self._us("request", workers)),
            batch_factor=None if steps else _ratio(count, executions),
            waiting=self._gauge(WAITING, workers),
            ttft=self._quantiles(TTFT_SERIES, workers),
            itl=self._quantiles(ITL_SERIES, workers),
            e2e=self._quantiles(_E2E, workers),
            tokens_per_s=next((t / self.seconds for t in tokens if t is not None), None),
            active_streams=self._gauge(ACTIVE, workers),
            kv_used=_ratio(used, None if used is None or free is None else used + free),
            cache_hits=_ratio(hits, lookups),
            instances=None if steps else self._instances(name),
            silent=0 if steps else self._silent(name),
            restarted=any(
                series == _SUCCESS and ("model", name) in labels
                for series, labels in self.increases.reset
            ),
            steps=steps,
        )

    def _rise(self, series: str, models: Sequence[str]) -> float | None:
        return sum_known(self.increases.total(series, model=model) for model in models)

    def _cache_hits_and_lookups(self, models: Sequence[str]) -> tuple[float | None, float | None]:
        """Response cache hits of these models, and the requests that could hit.

        Triton 2.51 does not count hits for ensembles whose version is not 1. For them, hits are the
        requests that did not reach the first step.
        """
        hits_and_requests: list[tuple[float, float]] = []
        for model in models:
            hits = self._rise("nv_cache_num_hits_per_model", [model])
            if hits is None:
                continue
            if steps := self.ensembles.get(model):
                every = self._rise(_SUCCESS, [model]) or 0.0
                hits_and_requests.append(
                    (max(0.0, every - (self._rise(_SUCCESS, steps[:1]) or 0.0)), every)
                )
            else:
                misses = self._rise("nv_cache_num_misses_per_model", [model]) or 0.0
                hits_and_requests.append((hits, hits + misses))
        return sum_known(hit for hit, _ in hits_and_requests), sum_known(
            every for _, every in hits_and_requests
        )

    def _us(self, part: str, models: Sequence[str]) -> float | None:
        return self._rise(f"{_TRITON}{part}_duration_us", models)

    def _failures(self, name: str, workers: Sequence[str], *, ensemble: bool) -> dict[str, float]:
        """Failures by reason.

        Triton counts a request that a Python model answers with an error as a success of that
        model. For an ensemble it counts such a request twice and a cancelled one once, both as
        OTHER. This project's models count the two apart.
        """
        failures = self._by_reason(_FAILURE, [name])
        reported = self._by_reason("tritonctl_errors", workers)
        if ensemble:
            unclassified = failures.pop("OTHER", 0.0)
            reported = reported if unclassified else {}
            cancelled = sum(
                self.increases.total("tritonctl_requests", model=worker, outcome="cancelled") or 0.0
                for worker in workers
            )
            failures["CANCELED"] = failures.get("CANCELED", 0.0) + min(cancelled, unclassified)
            failures["OTHER"] = max(0.0, unclassified - cancelled - 2 * sum(reported.values())) / 2
        return {reason: n for reason, n in sorted((failures | reported).items()) if n}

    def _by_reason(self, series: str, models: Sequence[str]) -> dict[str, float]:
        rises: dict[str, float] = {}
        for model in models:
            for labels, rise in self.increases.series(series, model=model):
                reason = labels.get("reason", "OTHER")
                rises[reason] = rises.get(reason, 0.0) + rise
        return rises

    def _silent(self, model: str) -> int:
        """Count killed stubs: their last values remain, only their uptime stands still."""
        if self.seconds < _ALIVE_WITHIN_SECONDS:
            return 0
        lives = self.increases.series("tritonctl_uptime_seconds", model=model)
        return sum(rise == 0 for _, rise in lives)

    def _gauge(self, sources: Sources, models: Sequence[str]) -> float | None:
        sums = [
            sum_known(
                reading.total(name, model=m, **labels) for name, labels in sources for m in models
            )
            for reading in self.readings
        ]
        return _ratio(sum_known(sums), sum(value is not None for value in sums))

    def _quantiles(
        self, ms_per_unit_by_series: Mapping[str, float], models: Sequence[str]
    ) -> TimeQuantiles | None:
        for name, ms_per_unit in ms_per_unit_by_series.items():
            buckets: dict[float, float] = {}
            for model in models:
                for labels, rise in self.increases.series(f"{name}_bucket", model=model):
                    bound = float(labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + rise
            if buckets:
                return TimeQuantiles.of(
                    buckets, self._rise(f"{name}_sum", models) or 0.0, ms_per_unit
                )
        return None

    def _instances(self, model: str) -> int | None:
        """Instances with their own series, else those configured: Triton publishes no count."""
        names = {
            value
            for _, labels in self.readings[-1].values
            if ("model", model) in labels
            for key, value in labels
            if key == "model_instance"
        }
        return len(names) or self.instances.get(model)


def _server(readings: Sequence[Reading], seconds: float) -> ServerLoad:
    first, now = readings[0], readings[-1]
    cpu = None
    if first.cpu_seconds is not None and now.cpu_seconds is not None:
        cpu = max(now.cpu_seconds - first.cpu_seconds, 0.0) / seconds
    # Triton publishes zeros until its first look at the machine, two seconds after its start.
    looked = bool(now.total("nv_cpu_memory_total_bytes"))
    return ServerLoad(
        cpu_cores=cpu,
        rss_bytes=now.rss_bytes,
        host_cpu=now.total("nv_cpu_utilization") if looked else None,
        host_memory_used_bytes=now.total("nv_cpu_memory_used_bytes") if looked else None,
        host_memory_total_bytes=now.total("nv_cpu_memory_total_bytes") if looked else None,
        gpus=tuple(_gpu(uuid, now) for uuid in sorted(now.label_values("gpu_uuid", "nv_gpu_"))),
    )


def _gpu(uuid: str, now: Reading) -> GpuLoad:
    return GpuLoad(
        uuid,
        now.total("nv_gpu_utilization", gpu_uuid=uuid),
        now.total("nv_gpu_memory_used_bytes", gpu_uuid=uuid),
        now.total("nv_gpu_memory_total_bytes", gpu_uuid=uuid),
    )


def _ratio(value: float | None, total: float | None, scale: float = 1.0) -> float | None:
    return value / total * scale if value is not None and total else None
