# SPDX-License-Identifier: Apache-2.0
"""Send rows to a model with several requests in flight, using threads or asyncio.

`tritonctl embed` and the client's `embed` share this code: `RowStream` accepts rows and yields
outcomes as they arrive, in any order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tritonctl.errors import ItemsRejectedError, TritonctlError
from tritonctl.protocol.batches import Batch, Batches, Outcome
from tritonctl.protocol.connection import AsyncConnection, Connection, trace_metadata
from tritonctl.protocol.tasks import Result, ServedTask, TaskRow

_DESCRIBE_SECONDS = 10.0


def describe_task(connection: Connection, model: str) -> ServedTask:
    """Return a deployed model's task. Raises RequestRejectedError for an unknown name."""
    metadata, config = _describe_requests(model)
    metadata_response = connection.ask(metadata, seconds=_DESCRIBE_SECONDS)
    try:
        return ServedTask.of(metadata_response, connection.send(config, seconds=_DESCRIBE_SECONDS))
    except grpc.RpcError as error:
        if not _is_withheld(error):
            raise connection.to_tritonctl_error(error) from error
        return ServedTask.of(metadata_response, None)


async def describe_task_async(connection: AsyncConnection, model: str) -> ServedTask:
    """As `describe_task`."""
    metadata, config = _describe_requests(model)
    metadata_response = await connection.ask(metadata, seconds=_DESCRIBE_SECONDS)
    try:
        return ServedTask.of(
            metadata_response, await connection.send(config, seconds=_DESCRIBE_SECONDS)
        )
    except grpc.RpcError as error:
        if not _is_withheld(error):
            raise connection.to_tritonctl_error(error) from error
        return ServedTask.of(metadata_response, None)


def _is_withheld(error: grpc.RpcError) -> bool:
    """Whether a gateway refuses to show a model's configuration."""
    return bool(error.code() is grpc.StatusCode.PERMISSION_DENIED)


def _describe_requests(model: str) -> tuple[Any, Any]:
    return service_pb2.ModelMetadataRequest(name=model), service_pb2.ModelConfigRequest(name=model)


@dataclass
class RowStream:
    """Converts rows to outcomes. Other threads may `offer` rows while one reads `outcomes`."""

    connection: Connection
    batches: Batches
    _events: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _calls: dict[Any, Batch] = field(default_factory=dict)
    _is_complete: bool = False

    def offer(self, rows: Sequence[TaskRow]) -> None:
        """Add rows to send."""
        self._events.put(rows)

    def end(self, failure: BaseException | None = None) -> None:
        """Mark the end of the rows. failure: raised by `outcomes`."""
        self._events.put(failure)

    def outcomes(self) -> Generator[list[Outcome], None, None]:
        """Yield results and errors of rows as they arrive, until `end`; [] after an `offer`.

        Leaving the loop cancels the requests in flight. Raises ServerError if the server does not
        answer in time.
        """
        try:
            while True:
                self._send()
                if self._is_complete and not self._calls and self.batches.empty:
                    return
                yield from self._wait()
        finally:
            for call in self._calls:
                call.cancel()

    def _send(self) -> None:
        now = time.monotonic()
        while len(self._calls) < self.batches.allowed:
            more = not self._is_complete and bool(self._calls)
            if (batch := self.batches.take(now, more=more)) is None:
                return
            delivery = self.batches.delivery
            call = self.connection.start(
                self.batches.request(batch),
                seconds=delivery.timeout,
                metadata=trace_metadata(delivery.traceparent),
            )
            self._calls[call] = batch
            call.add_done_callback(self._events.put)

    def _wait(self) -> Iterator[list[Outcome]]:
        """Wait for an event, then handle all queued events."""
        try:
            full = len(self._calls) >= self.batches.allowed
            pause = None if full else self.batches.pause(time.monotonic())
            event = self._events.get(timeout=pause)
            while True:
                if isinstance(event, grpc.Future):
                    yield self._finish_call(event)
                elif isinstance(event, BaseException):
                    raise event
                elif event is None:
                    self._is_complete = True
                else:
                    self.batches.add(event)
                    yield []  # tells the reader that rows were accepted
                event = self._events.get_nowait()
        except Empty:
            return

    def _finish_call(self, call: Any) -> list[Outcome]:
        batch = self._calls.pop(call)
        if (error := call.exception()) is None:
            return self.batches.on_response(batch, call.result(), time.monotonic())
        tritonctl_error = self.connection.to_tritonctl_error(error, self.batches.served_task.model)
        return self.batches.on_error(batch, error, tritonctl_error, time.monotonic())


async def ask_async(
    connection: AsyncConnection,
    batches: Batches,
    rows: Sequence[TaskRow],
) -> list[Any]:
    """Return the result of each row, in their order. Errors as in `ask`."""
    batches.add(rows)
    outcomes: list[Outcome] = []
    calls: set[asyncio.Task[list[Outcome]]] = set()

    async def send_batch(batch: Batch) -> list[Outcome]:
        try:
            response = await connection.send(
                batches.request(batch),
                seconds=batches.delivery.timeout,
                metadata=trace_metadata(batches.delivery.traceparent),
            )
        except grpc.RpcError as error:
            tritonctl_error = connection.to_tritonctl_error(error, batches.served_task.model)
            return batches.on_error(batch, error, tritonctl_error, time.monotonic())
        return batches.on_response(batch, response, time.monotonic())

    try:
        while calls or not batches.empty:
            now = time.monotonic()
            while len(calls) < batches.allowed and (batch := batches.take(now)):
                calls.add(asyncio.ensure_future(send_batch(batch)))
            if not calls:
                await asyncio.sleep(batches.pause(now) or 0.0)
                continue
            pause = None if len(calls) >= batches.allowed else batches.pause(now)
            done, calls = await asyncio.wait(
                calls, timeout=pause, return_when=asyncio.FIRST_COMPLETED
            )
            calls |= done
            for call in done:
                outcomes += call.result()
            calls -= done
    finally:
        for call in calls:
            call.cancel()
        # Retrieve all exceptions, also of calls that failed at the same time.
        await asyncio.gather(*calls, return_exceptions=True)
    return in_order(rows, outcomes)


def ask(
    connection: Connection,
    batches: Batches,
    rows: Sequence[TaskRow],
) -> list[Any]:
    """Return the result of each row, in their order.

    Raises ItemsRejectedError, which contains the other results, if the server refuses rows;
    ServerError if it does not answer.
    """
    stream = RowStream(connection, batches)
    stream.offer(rows)
    stream.end()
    return in_order(rows, [outcome for group in stream.outcomes() for outcome in group])


def in_order(rows: Sequence[TaskRow], outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the results in the rows' order. Raises ItemsRejectedError if any is an error."""
    outcome_by_row = {id(row): outcome for row, outcome in outcomes}
    results = [outcome_by_row[id(row)] for row in rows]
    errors = {
        index: result for index, result in enumerate(results) if isinstance(result, TritonctlError)
    }
    if errors:
        partial_results: list[Result | None] = [
            None if isinstance(result, TritonctlError) else result for result in results
        ]
        raise ItemsRejectedError(errors, partial_results)
    return results
