# SPDX-License-Identifier: Apache-2.0
"""From readings of the metrics to the figures shown; no clock, no network, no terminal.

The series are Triton's own, those of this project's engines, and those of the TensorRT-LLM and
vLLM backends; what a server does not publish is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tritonctl.protocol.engine_gauges import ACTIVE, KV_FREE, KV_USED, WAITING, Sources
from tritonctl.server.top.counters import Increases, Reading, sum_known
from tritonctl.server.top.histograms import Times

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
class Layout:
    """What the configurations say: the steps of each ensemble, nested ones and theirs among them,
    and the instances of each model.
    """

    steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFigures:
    """One model over the window; an ensemble's queue, batches and texts are those of its steps."""

    model: str
    requests_per_s: float
    failures_per_s: float
    failures: Mapping[str, float] = field(default_factory=dict)  # by reason, in the window
    latency_ms: float | None = None
    queue_share: float | None = None
    batch_factor: float | None = None
    waiting: float | None = None
    ttft: Times | None = None
    itl: Times | None = None
    e2e: Times | None = None  # of whole answers
    tokens_per_s: float | None = None
    active_streams: float | None = None
    kv_used: float | None = None  # share of the blocks
    cache_hits: float | None = None  # share of the requests that the response cache was asked for
    instances: int | None = None
    silent: int = 0  # instances whose process shows no sign of life
    restarted: bool = False
    steps: tuple[ModelFigures, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """One GPU, from Triton's metrics."""

    uuid: str
    utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None


@dataclass(frozen=True)
class ServerFigures:
    """The server's processes (where they are on this machine) and the machine it runs on."""

    cpu_cores: float | None
    rss_bytes: int | None
    host_cpu: float | None  # share of all cores
    host_memory_used_bytes: float | None
    host_memory_total_bytes: float | None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Figures:
    """All figures over `seconds`. Models without an ensemble are listed next to the ensembles."""

    seconds: float
    server: ServerFigures
    models: tuple[ModelFigures, ...]


def figures(readings: Sequence[Reading], layout: Layout) -> Figures:
    """What happened from the first to the last of two readings or more."""
    now, seconds = readings[-1], readings[-1].at - readings[0].at
    if seconds <= 0:
        raise ValueError("readings must be in order, and two or more")
    served = now.names("model", _TRITON)
    ensembles = {name: [s for s in steps if s in served] for name, steps in layout.steps.items()}
    window = _Window(Increases(readings), readings[1:], seconds, layout.instances, ensembles)
    inner = {step for name, steps in ensembles.items() if name in served for step in steps}
    return Figures(
        seconds,
        _server(readings, seconds),
        tuple(window.ensemble(name) for name in sorted(served - inner)),
    )


@dataclass(frozen=True)
class _Window:
    """The rises of a window, and its gauges: the mean of its readings, for they jump."""

    grown: Increases
    readings: Sequence[Reading]
    seconds: float
    instances: Mapping[str, int]
    ensembles: Mapping[str, Sequence[str]]

    def ensemble(self, name: str) -> ModelFigures:
        """A model and, of an ensemble, its steps; one without steps is a plain model."""
        steps = self.ensembles.get(name)
        if not steps:
            return self._figures(name, (name,))
        inner = tuple(self._figures(step, (step,)) for step in steps)
        return self._figures(
            name, tuple(step for step in steps if step not in self.ensembles), inner
        )

    def _figures(
        self, name: str, workers: Sequence[str], steps: tuple[ModelFigures, ...] = ()
    ) -> ModelFigures:
        """`workers`: the models that do the work, the model itself or the ensemble's steps."""
        failures = self._failures(name, workers, ensemble=bool(steps))
        requests, count = self._rise(_SUCCESS, [name]), self._rise(f"{_TRITON}count", [name])
        executions = self._rise(f"{_TRITON}exec_count", [name])
        tokens = [self._rise(series, workers) for series in _TOKENS]
        used, free = self._gauge(KV_USED, workers), self._gauge(KV_FREE, workers)
        hits, lookups = self._lookups([name, *(step.model for step in steps)])
        return ModelFigures(
            model=name,
            requests_per_s=(requests or 0.0) / self.seconds,
            failures_per_s=sum(failures.values()) / self.seconds,
            failures=failures,
            latency_ms=_ratio(self._us("request", [name]), requests, 1e-3),
            queue_share=_ratio(self._us("queue", workers), self._us("request", workers)),
            batch_factor=None if steps else _ratio(count, executions),
            waiting=self._gauge(WAITING, workers),
            ttft=self._times(TTFT_SERIES, workers),
            itl=self._times(ITL_SERIES, workers),
            e2e=self._times(_E2E, workers),
            tokens_per_s=next((t / self.seconds for t in tokens if t is not None), None),
            active_streams=self._gauge(ACTIVE, workers),
            kv_used=_ratio(used, None if used is None or free is None else used + free),
            cache_hits=_ratio(hits, lookups),
            instances=None if steps else self._instances(name),
            silent=0 if steps else self._silent(name),
            restarted=any(
                series == _SUCCESS and ("model", name) in labels
                for series, labels in self.grown.fallen
            ),
            steps=steps,
        )

    def _rise(self, series: str, models: Sequence[str]) -> float | None:
        return sum_known(self.grown.total(series, model=model) for model in models)

    def _lookups(self, models: Sequence[str]) -> tuple[float | None, float | None]:
        """How often the response cache answered for these models, of how many requests.

        Triton 2.51 does not count it for an ensemble whose version is not 1: what it did not answer
        reached the first step.
        """
        found: list[tuple[float, float]] = []
        for model in models:
            hits = self._rise("nv_cache_num_hits_per_model", [model])
            if hits is None:
                continue
            if steps := self.ensembles.get(model):
                every = self._rise(_SUCCESS, [model]) or 0.0
                found.append((max(0.0, every - (self._rise(_SUCCESS, steps[:1]) or 0.0)), every))
            else:
                misses = self._rise("nv_cache_num_misses_per_model", [model]) or 0.0
                found.append((hits, hits + misses))
        return sum_known(hit for hit, _ in found), sum_known(every for _, every in found)

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
            other = failures.pop("OTHER", 0.0)
            reported = reported if other else {}
            left = sum(
                self.grown.total("tritonctl_requests", model=worker, outcome="cancelled") or 0.0
                for worker in workers
            )
            failures["CANCELED"] = failures.get("CANCELED", 0.0) + min(left, other)
            failures["OTHER"] = max(0.0, other - left - 2 * sum(reported.values())) / 2
        return {reason: n for reason, n in sorted((failures | reported).items()) if n}

    def _by_reason(self, series: str, models: Sequence[str]) -> dict[str, float]:
        rises: dict[str, float] = {}
        for model in models:
            for labels, rise in self.grown.series(series, model=model):
                reason = labels.get("reason", "OTHER")
                rises[reason] = rises.get(reason, 0.0) + rise
        return rises

    def _silent(self, model: str) -> int:
        """A stub that was killed leaves its last values behind; only its uptime stands still."""
        if self.seconds < _ALIVE_WITHIN_SECONDS:
            return 0
        lives = self.grown.series("tritonctl_uptime_seconds", model=model)
        return sum(rise == 0 for _, rise in lives)

    def _gauge(self, sources: Sources, models: Sequence[str]) -> float | None:
        sums = [
            sum_known(
                reading.total(name, model=m, **labels) for name, labels in sources for m in models
            )
            for reading in self.readings
        ]
        return _ratio(sum_known(sums), sum(value is not None for value in sums))

    def _times(self, sources: Mapping[str, float], models: Sequence[str]) -> Times | None:
        for name, to_ms in sources.items():
            buckets: dict[float, float] = {}
            for model in models:
                for labels, rise in self.grown.series(f"{name}_bucket", model=model):
                    bound = float(labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + rise
            if buckets:
                return Times.of(buckets, self._rise(f"{name}_sum", models) or 0.0, to_ms)
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


def _server(readings: Sequence[Reading], seconds: float) -> ServerFigures:
    first, now = readings[0], readings[-1]
    cpu = None
    if first.cpu_seconds is not None and now.cpu_seconds is not None:
        cpu = max(now.cpu_seconds - first.cpu_seconds, 0.0) / seconds
    # Triton publishes zeros until it has looked at the machine, two seconds after its start.
    looked = bool(now.total("nv_cpu_memory_total_bytes"))
    return ServerFigures(
        cpu_cores=cpu,
        rss_bytes=now.rss_bytes,
        host_cpu=now.total("nv_cpu_utilization") if looked else None,
        host_memory_used_bytes=now.total("nv_cpu_memory_used_bytes") if looked else None,
        host_memory_total_bytes=now.total("nv_cpu_memory_total_bytes") if looked else None,
        gpus=tuple(_gpu(uuid, now) for uuid in sorted(now.names("gpu_uuid", "nv_gpu_"))),
    )


def _gpu(uuid: str, now: Reading) -> Gpu:
    return Gpu(
        uuid,
        now.total("nv_gpu_utilization", gpu_uuid=uuid),
        now.total("nv_gpu_memory_used_bytes", gpu_uuid=uuid),
        now.total("nv_gpu_memory_total_bytes", gpu_uuid=uuid),
    )


def _ratio(part: float | None, whole: float | None, scale: float = 1.0) -> float | None:
    return part / whole * scale if part is not None and whole else None
