# SPDX-License-Identifier: Apache-2.0
"""textlib.triton.engine_metrics' Publisher over the Python backend's metric API."""

import os
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from textlib.triton.engine_metrics import COUNTERS, GAUGES, MetricKey


class TritonPublisher:
    """Labels: `model` and `version` as Triton's own metrics have them, `model_instance`, `process`.

    Each instance of a model is a process. Two processes with the same labels share one value, and
    the first that ends frees it while the other uses it: tritonserver 2.51 then corrupts its heap
    (triton-inference-server/server#8663). During a reload an instance has two processes.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        self._labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "model_instance": args["model_instance_name"],
            "process": str(os.getpid()),
        }
        self._families: dict[str, Any] = {}
        self._metrics: dict[MetricKey, Any] = {}

    def set(self, key: MetricKey, value: float) -> None:
        """Set a gauge."""
        self._metric(key).set(float(value))

    def add(self, key: MetricKey, value: float) -> None:
        """Add to a counter."""
        self._metric(key).increment(float(value))

    def close(self) -> None:
        """Delete the metrics, then their families: Triton requires that order."""
        self._metrics.clear()
        self._families.clear()

    def _metric(self, key: MetricKey) -> Any:
        if key not in self._metrics:
            name, labels = key
            self._metrics[key] = self._family(name).Metric(labels=self._labels | dict(labels))
        return self._metrics[key]

    def _family(self, name: str) -> Any:
        if name not in self._families:
            kinds = pb_utils.MetricFamily
            kind, texts = (kinds.GAUGE, GAUGES) if name in GAUGES else (kinds.COUNTER, COUNTERS)
            self._families[name] = kinds(name=name, description=texts[name], kind=kind)
        return self._families[name]
