# SPDX-License-Identifier: Apache-2.0
"""What a step without a decoder loop tells Prometheus: that it lives, its errors, the memory."""

import os
from collections.abc import Mapping

from textlib.engine_metrics import ErrorCounts, MetricsThread
from textlib.errors import TextPathError
from textlib.server_memory import ServerMemory
from textlib.triton_metrics import TritonPublisher


class StepMetrics:
    """Starts publishing."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._errors = ErrorCounts()
        self._thread = MetricsThread(
            TritonPublisher(args),
            lambda: (self._errors.totals(), None),
            memory=ServerMemory(os.getppid()).read,
        )
        self._thread.start()

    def failed(self, error: TextPathError) -> None:
        """A request is answered with an error."""
        self._errors.add(error)

    def close(self) -> None:
        """Take the metrics back."""
        self._thread.close()
