# SPDX-License-Identifier: Apache-2.0
"""Rows packed into requests, and what becomes of a request that fails. It waits for nothing.

Rows of similar length share a request, so that little of it is padding. A request that the server
refuses is sent again in two parts, down to the row to blame: that one alone has an error. A busy
or restarting server is asked again, after pauses, for so long as was agreed.
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
from tritonctl.protocol.delivery import USUAL, Delivery
from tritonctl.protocol.error_map import connection_broke
from tritonctl.protocol.tasks import Result, Row, RowOptions, ServedTask, read_rows, rows_request

# Rows are sorted by length among so many requests' worth.
SORTED_BATCHES = 16
MOST_BYTES = 8 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# What a model says of the rows in a request. UNKNOWN and INTERNAL: of models that name no code.
_OF_ROWS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
}

# How our steps name an item of a request: python_backends/tasklib/item_errors.py.
_ITEM = re.compile(r"\w\[(\d+)\]")

Outcome = tuple[Row, Result | TritonctlError]


@dataclass(eq=False)
class Batch:
    """Rows of one request. `failing_since`: seconds of the clock; `due`: not to be sent before."""

    rows: list[Row]
    attempts: int = 0
    failing_since: float = 0.0
    due: float = 0.0


@dataclass
class Batches:
    """Rows that wait for a request, and requests to be sent. Times are seconds of one clock."""

    served: ServedTask
    options: RowOptions = field(default_factory=RowOptions)
    delivery: Delivery = USUAL
    _waiting: deque[Row] = field(default_factory=deque)
    _ready: deque[Batch] = field(default_factory=deque)
    _again: list[Batch] = field(default_factory=list)
    _answered_at: float = 0.0

    def __post_init__(self) -> None:
        """No request has more rows than the model takes."""
        most = max(self.served.max_rows, 1)
        self._rows = min(self.delivery.rows or most, most)
        self._allowed = float(self.delivery.in_flight)

    @property
    def allowed(self) -> int:
        """Requests at once: fewer than agreed since the server's queue was full."""
        return int(self._allowed)

    @property
    def window(self) -> int:
        """Rows that are sorted together: with fewer at hand there is more padding."""
        return self._rows * SORTED_BATCHES

    @property
    def empty(self) -> bool:
        """Whether nothing is left to be sent."""
        return not (self._waiting or self._ready or self._again)

    def add(self, rows: Iterable[Row]) -> None:
        """Rows to ask for."""
        self._waiting.extend(rows)

    def take(self, now: float, *, more: bool = False) -> Batch | None:
        """The next request to send; None where there is none, or not yet.

        more: whether rows are still to come, so that a request that they would fill may wait.
        """
        due = next((batch for batch in self._again if batch.due <= now), None)
        if due is not None:
            self._again.remove(due)
            return due
        if not self._ready and self._waiting and not (more and len(self._waiting) < self._rows):
            self._ready.extend(self._cut())
        return self._ready.popleft() if self._ready else None

    def pause(self, now: float) -> float | None:
        """Seconds until a request is to be sent again; None where none is."""
        return max(0.0, min(batch.due for batch in self._again) - now) if self._again else None

    def request(self, batch: Batch) -> Any:
        """Its ModelInferRequest."""
        request = rows_request(self.served, batch.rows, self.options)
        if self.delivery.priority is not None:
            request.parameters["priority"].uint64_param = self.delivery.priority
        return request

    def answered(self, batch: Batch, response: Any, now: float) -> list[Outcome]:
        """The outcome of each row. Raises ServerError for an answer without its tensors."""
        self._answered_at = now
        self._allowed = min(self._allowed + 1 / self._allowed, self.delivery.in_flight)
        if self.delivery.heard is not None:
            self.delivery.heard(response.model_version)
        results = read_rows(self.served, response, len(batch.rows))
        return list(zip(batch.rows, results, strict=True))

    def failed(
        self, batch: Batch, error: Any, explained: TritonctlError, now: float
    ) -> list[Outcome]:
        """What a grpc.RpcError, and our error for it, decide: outcomes, or requests to send again.

        Raises `explained` where asking again has no prospect.
        """
        gone = connection_broke(error) or error.code() == grpc.StatusCode.CANCELLED  # not by us
        if gone or isinstance(explained, ServerBusyError | StepGoneError):
            self._send_later(batch, explained, now)
            return []
        if error.code() not in _OF_ROWS:
            raise explained
        if len(batch.rows) > 1:
            self._ready.extendleft(Batch(rows) for rows in _apart(batch.rows, error.details()))
            return []
        if not isinstance(explained, RequestRejectedError):
            explained = RequestRejectedError(
                f"{self.served.model} failed: {error.details()}",
                remedy="`tritonctl logs` may say more; the other items are not affected",
            )
        return [(batch.rows[0], explained)]

    def _send_later(self, batch: Batch, explained: TritonctlError, now: float) -> None:
        since = batch.failing_since = batch.failing_since or now
        if isinstance(explained, ServerBusyError):
            # Busy with others' requests, or with our own: it is no failure while it answers those.
            since = max(since, self._answered_at)
            self._allowed = max(self._allowed - 1, 1.0)
        if now - since >= self.delivery.retry_seconds:
            raise explained
        pause = min(_FIRST_PAUSE * 2.0 ** min(batch.attempts, 8), _LONGEST_PAUSE)
        batch.attempts += 1
        batch.due = now + pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads requests
        self._again.append(batch)

    def _cut(self) -> Iterator[Batch]:
        """Those that wait, as many as are sorted together, in requests; the longest first."""
        count = min(len(self._waiting), self.window)
        alike: dict[tuple[str, ...], list[Row]] = {}
        for row in (self._waiting.popleft() for _ in range(count)):
            alike.setdefault(tuple(row.tensors), []).append(row)
        for rows in alike.values():
            rows.sort(key=lambda row: row.size, reverse=True)
            yield from self._packed(rows)

    def _packed(self, rows: list[Row]) -> Iterator[Batch]:
        batch: list[Row] = []
        size = 0
        for row in rows:
            if batch and (len(batch) == self._rows or size + row.size > MOST_BYTES):
                yield Batch(batch)
                batch, size = [], 0
            batch.append(row)
            size += row.size
        yield Batch(batch)


def _apart(rows: list[Row], reason: str) -> tuple[list[Row], list[Row]]:
    """The row that the server names and the others, or two halves."""
    named = _ITEM.search(reason or "")
    if named and (index := int(named[1])) < len(rows):
        return [rows[index]], rows[:index] + rows[index + 1 :]
    half = len(rows) // 2
    return rows[:half], rows[half:]
