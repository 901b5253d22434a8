# SPDX-License-Identifier: Apache-2.0
"""How items travel to a model: in how many requests, how urgent, and for how long tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tritonctl.errors import UsageError


@dataclass(frozen=True)
class Delivery:
    """How items travel. `in_flight`: requests at once. `timeout`: seconds for each request.

    `rows`: of a request, at most, and never more than the model takes. `retry_seconds`: how long a
    busy or restarting server is asked again. `priority`: 1 goes first, the model's default level
    when None. `traceparent`: of the span that the requests are part of. `heard`: is told the
    model's version with each answer.
    """

    in_flight: int = 4
    timeout: float | None = None
    rows: int | None = None
    retry_seconds: float = 60.0
    priority: int | None = None
    traceparent: str | None = None
    heard: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for numbers with which nothing would ever arrive."""
        least = {"in_flight": 1, "rows": 1, "timeout": 0, "retry_seconds": 0, "priority": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and not value >= smallest:
                raise UsageError(
                    f"{name} is {value}, expected {smallest} or more", remedy="leave it out"
                )


USUAL = Delivery()
