# SPDX-License-Identifier: Apache-2.0
"""How items are sent to a model: request sizes, concurrency, priority and retries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tritonctl.errors import UsageError


@dataclass(frozen=True)
class Delivery:
    """How items are sent."""

    in_flight: int = 4  # concurrent requests
    timeout: float | None = None  # seconds per request
    rows: int | None = None  # maximum per request; the model's limit also applies
    retry_seconds: float = 60.0  # how long to retry a busy or restarting server
    priority: int | None = None  # 1 goes first; None: the model's default level
    traceparent: str | None = None  # the parent span of the requests
    on_version: Callable[[str], object] | None = None  # called with each response's model version

    def __post_init__(self) -> None:
        """Raises UsageError for values that are too small."""
        minimums = {"in_flight": 1, "rows": 1, "timeout": 0, "retry_seconds": 0, "priority": 1}
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if value is not None and not value >= minimum:
                raise UsageError(
                    f"{name} is {value}, expected {minimum} or more", remedy="leave it out"
                )


DEFAULT_DELIVERY = Delivery()
