# SPDX-License-Identifier: Apache-2.0
"""Metrics of a step without a decoder loop: uptime, errors, memory."""

import os
from collections.abc import Mapping

from textlib.engine.activity import EngineActivity
from textlib.errors import TextPathError
from textlib.triton.engine_metrics import ErrorCounts, MetricsThread
from textlib.triton.metrics_publisher import TritonPublisher
from textlib.triton.server_memory import ServerMemory


class StepMetrics:
    """Publishes the metrics of a step until it is closed."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._errors = ErrorCounts()
        self._thread = MetricsThread(
            TritonPublisher(args),
            lambda: (self._errors.totals(), None),
            memory=ServerMemory(os.getppid()).read,
            is_running=EngineActivity(os.getpid()).is_running,
        )
        self._thread.start()

    def count_error(self, error: TextPathError) -> None:
        """Count an error response."""
        self._errors.add(error)

    def close(self) -> None:
        """Remove the metrics."""
        self._thread.close()
