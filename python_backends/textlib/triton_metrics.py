# SPDX-License-Identifier: Apache-2.0
"""textlib.engine_metrics' Publisher over the Python backend's metric API."""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from textlib.engine_metrics import COUNTERS, GAUGES, Key


class TritonPublisher:
    """Labels: the engine's `model`, as Triton's own metrics have it, and its `model_instance`.

    Instances of one model are processes of their own: without a label of its own each of them
    would write, and at its end delete, the values of the others.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        self._labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "model_instance": args["model_instance_name"],
        }
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=kind)
            for kind, texts in (
                (pb_utils.MetricFamily.GAUGE, GAUGES),
                (pb_utils.MetricFamily.COUNTER, COUNTERS),
            )
            for name, text in texts.items()
        }
        self._metrics: dict[Key, Any] = {}

    def set(self, key: Key, value: float) -> None:
        """Set a gauge."""
        self._metric(key).set(float(value))

    def add(self, key: Key, value: float) -> None:
        """Add to a counter."""
        self._metric(key).increment(float(value))

    def close(self) -> None:
        """Delete the metrics, then their families: Triton wants that order."""
        self._metrics.clear()
        self._families.clear()

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            name, labels = key
            self._metrics[key] = self._families[name].Metric(labels=self._labels | dict(labels))
        return self._metrics[key]
