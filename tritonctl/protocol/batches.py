# SPDX-License-Identifier: Apache-2.0
"""Pack rows into requests, and decide about failed requests. It does no waiting or I/O.

Rows of similar length share a request, to reduce padding. A refused request is split in two and
sent again, until only the row that causes the error fails. Requests to a busy or restarting server
are retried after pauses, for `Delivery.retry_seconds`.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from tritonctl.errors import RequestRejectedError, ServerBusyError, StepGoneError, TritonctlError
from tritonctl.protocol.delivery import DEFAULT_DELIVERY, Delivery
from tritonctl.protocol.error_map import connection_broke
from tritonctl.protocol.tasks import (
    Result,
    RowOptions,
    ServedTask,
    TaskRow,
    read_rows,
    rows_request,
)

# Rows of this many requests are sorted by length together.
SORTED_BATCHES = 16
MAX_REQUEST_BYTES = 8 << 20
_FIRST_PAUSE, _MAX_PAUSE = 0.05, 2.0
# Errors of a model about its rows. UNKNOWN and INTERNAL: from models that set no code.
_ROW_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}

# How our steps name a request's item: python_backends/tasklib/item_errors.py.
_ITEM = re.compile(r"\w\[(\d+)\]")

Outcome = tuple[TaskRow, Result | TritonctlError]


@dataclass(eq=False)
class Batch:
    """Rows of one request. Times are seconds of the clock."""

    rows: list[TaskRow]
    attempts: int = 0
    failing_since: float = 0.0
    due: float = 0.0  # when it may be sent


@dataclass
class Batches:
    """Waiting rows, and requests to send. Times are seconds of one clock."""

    served_task: ServedTask
    options: RowOptions = field(default_factory=RowOptions)
    delivery: Delivery = DEFAULT_DELIVERY
    _waiting: deque[TaskRow] = field(default_factory=deque)
    _ready: deque[Batch] = field(default_factory=deque)
    _retries: list[Batch] = field(default_factory=list)
    _answered_at: float = 0.0

    def __post_init__(self) -> None:
        """Limit requests to the rows that the model takes."""
        max_rows = max(self.served_task.max_rows, 1)
        self._rows = min(self.delivery.rows or max_rows, max_rows)
        self._allowed = float(self.delivery.in_flight)

    @property
    def allowed(self) -> int:
        """Maximum concurrent requests; reduced while the server's queue is full."""
        return int(self._allowed)

    @property
    def window(self) -> int:
        """Number of rows that are sorted together; fewer rows cause more padding."""
        return self._rows * SORTED_BATCHES

    @property
    def empty(self) -> bool:
        """Whether all rows have been sent."""
        return not (self._waiting or self._ready or self._retries)

    def add(self, rows: Iterable[TaskRow]) -> None:
        """Add rows to send."""
        self._waiting.extend(rows)

    def take(self, now: float, *, more: bool = False) -> Batch | None:
        """Return the next request to send; None if none is due.

        more: further rows will follow, so an incomplete request may wait for them.
        """
        due = next((batch for batch in self._retries if batch.due <= now), None)
        if due is not None:
            self._retries.remove(due)
            return due
        if not self._ready and self._waiting and not (more and len(self._waiting) < self._rows):
            self._ready.extend(self._cut())
        return self._ready.popleft() if self._ready else None

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next retry; None without retries."""
        return max(0.0, min(batch.due for batch in self._retries) - now) if self._retries else None

    def request(self, batch: Batch) -> Any:
        """Build the ModelInferRequest of a batch."""
        request = rows_request(self.served_task, batch.rows, self.options)
        if self.delivery.priority is not None:
            request.parameters["priority"].uint64_param = self.delivery.priority
        return request

    def on_response(self, batch: Batch, response: Any, now: float) -> list[Outcome]:
        """Return the outcome of each row. Raises ServerError for a response without its tensors."""
        self._answered_at = now
        self._allowed = min(self._allowed + 1 / self._allowed, self.delivery.in_flight)
        if self.delivery.on_version is not None:
            self.delivery.on_version(response.model_version)
        results = read_rows(self.served_task, response, len(batch.rows))
        return list(zip(batch.rows, results, strict=True))

    def on_error(
        self, batch: Batch, error: Any, tritonctl_error: TritonctlError, now: float
    ) -> list[Outcome]:
        """Handle a grpc.RpcError: return outcomes, or schedule retries.

        Raises `tritonctl_error`, the converted error, if a retry is pointless.
        """
        lost_connection = (
            connection_broke(error) or error.code() == grpc.StatusCode.CANCELLED
        )  # not by us
        if lost_connection or isinstance(tritonctl_error, ServerBusyError | StepGoneError):
            self._send_later(batch, tritonctl_error, now)
            return []
        if error.code() not in _ROW_ERRORS:
            raise tritonctl_error
        if len(batch.rows) > 1:
            self._ready.extendleft(Batch(rows) for rows in _split(batch.rows, error.details()))
            return []
        if not isinstance(tritonctl_error, RequestRejectedError):
            tritonctl_error = RequestRejectedError(
                f"{self.served_task.model} failed: {error.details()}",
                remedy="`tritonctl logs` may say more; the other items are not affected",
            )
        return [(batch.rows[0], tritonctl_error)]

    def _send_later(self, batch: Batch, tritonctl_error: TritonctlError, now: float) -> None:
        since = batch.failing_since = batch.failing_since or now
        if isinstance(tritonctl_error, ServerBusyError):
            # The server is busy, with our requests or others'. While it answers, it has not failed.
            since = max(since, self._answered_at)
            self._allowed = max(self._allowed - 1, 1.0)
        if now - since >= self.delivery.retry_seconds:
            raise tritonctl_error
        pause = min(_FIRST_PAUSE * 2.0 ** min(batch.attempts, 8), _MAX_PAUSE)
        batch.attempts += 1
        batch.due = now + pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads requests
        self._retries.append(batch)

    def _cut(self) -> Iterator[Batch]:
        """Pack a window of waiting rows into requests, the longest rows first."""
        count = min(len(self._waiting), self.window)
        rows_by_inputs: dict[tuple[str, ...], list[TaskRow]] = {}
        for row in (self._waiting.popleft() for _ in range(count)):
            rows_by_inputs.setdefault(tuple(row.tensors), []).append(row)
        for rows in rows_by_inputs.values():
            rows.sort(key=lambda row: row.size, reverse=True)
            yield from self._pack(rows)

    def _pack(self, rows: list[TaskRow]) -> Iterator[Batch]:
        rows_of_batch: list[TaskRow] = []
        size = 0
        for row in rows:
            if rows_of_batch and (
                len(rows_of_batch) == self._rows or size + row.size > MAX_REQUEST_BYTES
            ):
                yield Batch(rows_of_batch)
                rows_of_batch, size = [], 0
            rows_of_batch.append(row)
            size += row.size
        yield Batch(rows_of_batch)


def _split(rows: list[TaskRow], reason: str) -> tuple[list[TaskRow], list[TaskRow]]:
    """Separate the row that the server names, else split the rows in half."""
    match = _ITEM.search(reason or "")
    if match and (index := int(match[1])) < len(rows):
        return [rows[index]], rows[:index] + rows[index + 1 :]
    half = len(rows) // 2
    return rows[:half], rows[half:]
