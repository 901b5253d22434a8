# SPDX-License-Identifier: Apache-2.0
"""Samples the server each second while a load test runs: counters, queue, CPU, memory.

It never fails the run: a server that does not answer leaves a gap in `server.jsonl`.
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
from tritonctl.loadtest.run.folder import Lines
from tritonctl.protocol.metrics import Metrics, Sample
from tritonctl.server.usage import ServerUsage

Scrape = Callable[[], Metrics]

_PERIOD_SECONDS = 1.0
# Counters of each model by their names in server.jsonl: Triton's, then those of a text engine.
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
_ENGINE = ("tritonctl_", "nv_trt_llm_", "nv_llm_", "nv_energy", "nv_gpu_")
_UNUSED = ("_bucket", "_bucket_total", "_created")
_MODEL_LABELS = ("model", "version", "model_instance", "process")


class ServerSampler:
    """A thread that writes `server.jsonl` until it is closed.

    `models`: the model and its composing models; others of the server are left out. `shm_prefix`:
    of an embedded server on this machine, for CPU and memory.
    """

    def __init__(
        self, folder: Path, models: Collection[str], metrics: Scrape | None, shm_prefix: str | None
    ) -> None:
        self._lines = Lines(folder / SERVER)
        self._models = frozenset(models)
        self._metrics = metrics
        self._usage = ServerUsage(shm_prefix) if shm_prefix else None
        self.started_at: float | None = None
        self._zero = 0.0  # the same on the monotonic clock
        self._early: list[tuple[float, dict[str, Any]]] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-sampler", daemon=True)
        self.recent: list[dict[str, Any]] = []  # the last ten seconds, for live views

    def start(self) -> None:
        """Begin to sample."""
        if self._metrics is not None or self._usage is not None:
            self._thread.start()

    def run_started(self, at: float) -> None:
        """Count seconds from that time (epoch), at which the run began.

        The time of day is read once, so later corrections of the machine's clock change nothing.
        """
        self._zero = time.monotonic() + at - time.time()
        self.started_at = at

    def close(self) -> None:
        """Take one last sample, then end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._lines.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.wait(max(0.0, due - time.monotonic())):
            self._look()
            due = max(due + _PERIOD_SECONDS, time.monotonic())
        self._look()

    def _look(self) -> None:
        at = time.monotonic()
        sample = self._sample()
        if sample is None:
            return
        self.recent = [*self.recent[-10:], {"at": at, **sample}]
        self._early.append((at, sample))
        if self.started_at is None:
            return
        for seen, content in self._early:
            self._lines.write(json.dumps({"t": round(seen - self._zero, 3), **content}))
        self._early = []

    def _sample(self) -> dict[str, Any] | None:
        try:
            metrics = self._metrics() if self._metrics else Metrics(())
        except TritonctlError:
            return None
        cpu, rss = self._usage.read() if self._usage else (None, None)
        host = metrics.samples(_HOST_CPU)
        return {
            "models": _models(metrics, self._models),
            "engine": _engine(metrics, self._models),
            "cpu": cpu,
            "rss_bytes": rss,
            "host_cpu": host[0].value if host else None,
        }


def _models(metrics: Metrics, names: Collection[str]) -> dict[str, dict[str, float]]:
    """The counters of each model over all its versions."""
    models: dict[str, dict[str, float]] = {}
    for short, name in COUNTERS.items():
        for sample in metrics.samples(name):
            model = sample.labels.get("model")
            if model in names and model is not None:
                counters = models.setdefault(model, {})
                counters[short] = counters.get(short, 0) + sample.value
    return models


def _engine(metrics: Metrics, names: Collection[str]) -> dict[str, float]:
    """The engines' own metrics by name; labels other than the model follow it in braces."""
    values: dict[str, float] = {}
    for sample in metrics:
        ours = sample.labels.get("model", "") in names or "model" not in sample.labels
        if ours and sample.name.startswith(_ENGINE) and not sample.name.endswith(_UNUSED):
            name = _name(sample)
            values[name] = values.get(name, 0) + sample.value
    return values


def _name(sample: Sample) -> str:
    labels = {k: v for k, v in sample.labels.items() if k not in _MODEL_LABELS}
    if not labels:
        return sample.name
    return f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(labels.items()))}}}"
