# SPDX-License-Identifier: Apache-2.0
"""Sample the server each second while a load test runs: counters, queue, CPU, memory.

Sampling never fails the run: a server that does not answer leaves a gap in `server.jsonl`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tritonctl.errors import TritonctlError
from tritonctl.loadtest.analysis.records import SERVER
from tritonctl.loadtest.run.folder import JsonLinesWriter
from tritonctl.protocol.metrics import Metrics, MetricSample
from tritonctl.supervision.process_usage import ServerUsage

MetricsReader = Callable[[], Metrics]

_PERIOD_SECONDS = 1.0
# Counters of each model by their names in server.jsonl: first Triton's, then a text engine's.
COUNTERS = {
    "success": "nv_inference_request_success",
    "failure": "nv_inference_request_failure",
    "count": "nv_inference_count",
    "exec": "nv_inference_exec_count",
    "request_us": "nv_inference_request_duration_us",
    "queue_us": "nv_inference_queue_duration_us",
    "input_us": "nv_inference_compute_input_duration_us",
    "infer_us": "nv_inference_compute_infer_duration_us",
    "output_us": "nv_inference_compute_output_duration_us",
    "pending": "nv_inference_pending_request_count",
    "queued_s": "tritonctl_queue_seconds_total",
    "ttft_s": "tritonctl_time_to_first_token_seconds_sum",
    "ttft_n": "tritonctl_time_to_first_token_seconds_count",
    "e2e_s": "tritonctl_request_duration_seconds_sum",
    "e2e_n": "tritonctl_request_duration_seconds_count",
}
_HOST_CPU = "nv_cpu_utilization"
_ENGINE_PREFIXES = ("tritonctl_", "nv_trt_llm_", "nv_llm_", "nv_energy", "nv_gpu_")
_UNUSED_SUFFIXES = ("_bucket", "_bucket_total", "_created")
_MODEL_LABELS = ("model", "version", "model_instance", "process")


class ServerSampler:
    """A thread that writes `server.jsonl` until it is closed.

    `models` names the model and its composing models; the sampler skips other models.
    `shm_prefix` belongs to an embedded server on this machine and enables CPU and memory samples.
    """

    def __init__(
        self,
        folder: Path,
        models: Collection[str],
        metrics: MetricsReader | None,
        shm_prefix: str | None,
    ) -> None:
        self._lines = JsonLinesWriter(folder / SERVER)
        self._models = frozenset(models)
        self._metrics = metrics
        self._usage = ServerUsage(shm_prefix) if shm_prefix else None
        self.started_at: float | None = None
        self._run_start = 0.0  # `started_at` on the monotonic clock
        self._unwritten: list[tuple[float, dict[str, Any]]] = []
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-sampler", daemon=True)
        self.recent: list[dict[str, Any]] = []  # samples of the last ten seconds, for live views

    def start(self) -> None:
        """Start the thread if there is anything to sample."""
        if self._metrics is not None or self._usage is not None:
            self._thread.start()

    def mark_run_start(self, started_at: float) -> None:
        """Count seconds from the run's start, given in seconds since the epoch.

        Reads the time of day once, so later clock corrections have no effect.
        """
        self._run_start = time.monotonic() + started_at - time.time()
        self.started_at = started_at

    def close(self) -> None:
        """Stop the thread and close the file."""
        self._stop_event.set()
        if self._thread.is_alive():
            self._thread.join()
        self._lines.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop_event.wait(max(0.0, due - time.monotonic())):
            self._take_sample()
            due = max(due + _PERIOD_SECONDS, time.monotonic())
        self._take_sample()

    def _take_sample(self) -> None:
        sampled_at = time.monotonic()
        sample = self._sample()
        if sample is None:
            return
        self.recent = [*self.recent[-10:], {"at": sampled_at, **sample}]
        self._unwritten.append((sampled_at, sample))
        if self.started_at is None:
            return
        for sample_time, content in self._unwritten:
            self._lines.write(json.dumps({"t": round(sample_time - self._run_start, 3), **content}))
        self._unwritten = []

    def _sample(self) -> dict[str, Any] | None:
        try:
            metrics = self._metrics() if self._metrics else Metrics(())
        except TritonctlError:
            return None
        cpu, rss = self._usage.read() if self._usage else (None, None)
        host = metrics.samples(_HOST_CPU)
        return {
            "models": _model_counters(metrics, self._models),
            "engine": _engine_metrics(metrics, self._models),
            "cpu": cpu,
            "rss_bytes": rss,
            "host_cpu": host[0].value if host else None,
        }


def _model_counters(metrics: Metrics, names: Collection[str]) -> dict[str, dict[str, float]]:
    """Sum the counters of each model over its versions."""
    models: dict[str, dict[str, float]] = {}
    for short, name in COUNTERS.items():
        for sample in metrics.samples(name):
            model = sample.labels.get("model")
            if model in names and model is not None:
                counters = models.setdefault(model, {})
                counters[short] = counters.get(short, 0) + sample.value
    return models


def _engine_metrics(metrics: Metrics, names: Collection[str]) -> dict[str, float]:
    """Return the engines' metrics by name, with labels other than the model's in braces."""
    values: dict[str, float] = {}
    for sample in metrics:
        is_relevant = sample.labels.get("model", "") in names or "model" not in sample.labels
        if (
            is_relevant
            and sample.name.startswith(_ENGINE_PREFIXES)
            and not sample.name.endswith(_UNUSED_SUFFIXES)
        ):
            name = _metric_name(sample)
            values[name] = values.get(name, 0) + sample.value
    return values


def _metric_name(sample: MetricSample) -> str:
    labels = {k: v for k, v in sample.labels.items() if k not in _MODEL_LABELS}
    if not labels:
        return sample.name
    return f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(labels.items()))}}}"
