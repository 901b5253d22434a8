# SPDX-License-Identifier: Apache-2.0
"""Rows to a model and results back, several requests in flight: waiting with threads or asyncio.

`tritonctl embed` and the client's `embed` are the same code: `RowStream` takes rows as they come
and gives outcomes as they come, in any order.
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
from tritonctl.protocol.connection import AsyncConnection, Connection, traced
from tritonctl.protocol.tasks import Result, Row, ServedTask

_FACTS_SECONDS = 10.0


def served_task(connection: Connection, model: str) -> ServedTask:
    """What a model is served for. Raises RequestRejectedError where there is none of that name."""
    metadata, config = _facts(model)
    described = connection.ask(metadata, seconds=_FACTS_SECONDS)
    try:
        return ServedTask.of(described, connection.send(config, seconds=_FACTS_SECONDS))
    except grpc.RpcError as error:
        if not _is_withheld(error):
            raise connection.explained(error) from error
        return ServedTask.of(described, None)


async def served_task_async(connection: AsyncConnection, model: str) -> ServedTask:
    """The same."""
    metadata, config = _facts(model)
    described = await connection.ask(metadata, seconds=_FACTS_SECONDS)
    try:
        return ServedTask.of(described, await connection.send(config, seconds=_FACTS_SECONDS))
    except grpc.RpcError as error:
        if not _is_withheld(error):
            raise connection.explained(error) from error
        return ServedTask.of(described, None)


def _is_withheld(error: grpc.RpcError) -> bool:
    """Whether a gateway lets nobody see a model's configuration."""
    return bool(error.code() is grpc.StatusCode.PERMISSION_DENIED)


def _facts(model: str) -> tuple[Any, Any]:
    return service_pb2.ModelMetadataRequest(name=model), service_pb2.ModelConfigRequest(name=model)


@dataclass
class RowStream:
    """Rows in, outcomes out. Another thread may `offer` rows while this one takes `outcomes`."""

    connection: Connection
    batches: Batches
    _events: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    _calls: dict[Any, Batch] = field(default_factory=dict)
    _ended: bool = False

    def offer(self, rows: Sequence[Row]) -> None:
        """Rows to ask for."""
        self._events.put(rows)

    def end(self, failure: BaseException | None = None) -> None:
        """No rows are left; failure: why there are no more, to be raised by `outcomes`."""
        self._events.put(failure)

    def outcomes(self) -> Generator[list[Outcome], None, None]:
        """Results and errors of rows, as they come, until `end`; [] when rows were offered.

        Leaving the loop cancels what is in flight.

        Raises ServerError when the server does not answer, or not in time.
        """
        try:
            while True:
                self._send()
                if self._ended and not self._calls and self.batches.empty:
                    return
                yield from self._wait()
        finally:
            for call in self._calls:
                call.cancel()

    def _send(self) -> None:
        now = time.monotonic()
        while len(self._calls) < self.batches.allowed:
            more = not self._ended and bool(self._calls)
            if (batch := self.batches.take(now, more=more)) is None:
                return
            delivery = self.batches.delivery
            call = self.connection.start(
                self.batches.request(batch),
                seconds=delivery.timeout,
                metadata=traced(delivery.traceparent),
            )
            self._calls[call] = batch
            call.add_done_callback(self._events.put)

    def _wait(self) -> Iterator[list[Outcome]]:
        """Until something has happened, and all that has."""
        try:
            full = len(self._calls) >= self.batches.allowed
            pause = None if full else self.batches.pause(time.monotonic())
            event = self._events.get(timeout=pause)
            while True:
                if isinstance(event, grpc.Future):
                    yield self._done(event)
                elif isinstance(event, BaseException):
                    raise event
                elif event is None:
                    self._ended = True
                else:
                    self.batches.add(event)
                    yield []  # whoever offered them may want to know
                event = self._events.get_nowait()
        except Empty:
            return

    def _done(self, call: Any) -> list[Outcome]:
        batch = self._calls.pop(call)
        if (error := call.exception()) is None:
            return self.batches.answered(batch, call.result(), time.monotonic())
        explained = self.connection.explained(error)
        return self.batches.failed(batch, error, explained, time.monotonic())


async def ask_async(
    connection: AsyncConnection,
    batches: Batches,
    rows: Sequence[Row],
) -> list[Any]:
    """The result of each row, in their order. Errors as in `ask`."""
    batches.add(rows)
    outcomes: list[Outcome] = []
    calls: set[asyncio.Task[list[Outcome]]] = set()

    async def one(batch: Batch) -> list[Outcome]:
        try:
            response = await connection.send(
                batches.request(batch),
                seconds=batches.delivery.timeout,
                metadata=traced(batches.delivery.traceparent),
            )
        except grpc.RpcError as error:
            explained = connection.explained(error)
            return batches.failed(batch, error, explained, time.monotonic())
        return batches.answered(batch, response, time.monotonic())

    try:
        while calls or not batches.empty:
            now = time.monotonic()
            while len(calls) < batches.allowed and (batch := batches.take(now)):
                calls.add(asyncio.ensure_future(one(batch)))
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
        # Also of those that have failed beside the one whose error is raised.
        await asyncio.gather(*calls, return_exceptions=True)
    return in_order(rows, outcomes)


def ask(
    connection: Connection,
    batches: Batches,
    rows: Sequence[Row],
) -> list[Any]:
    """The result of each row, in their order.

    Raises ItemsRejectedError, which has the results of the others, where the server refuses rows;
    ServerError when it does not answer.
    """
    stream = RowStream(connection, batches)
    stream.offer(rows)
    stream.end()
    return in_order(rows, [outcome for some in stream.outcomes() for outcome in some])


def in_order(rows: Sequence[Row], outcomes: Iterable[Outcome]) -> list[Any]:
    """The results in the rows' order. Raises ItemsRejectedError where one is an error."""
    given = {id(row): outcome for row, outcome in outcomes}
    results = [given[id(row)] for row in rows]
    errors = {
        index: result for index, result in enumerate(results) if isinstance(result, TritonctlError)
    }
    if errors:
        kept: list[Result | None] = [
            None if isinstance(result, TritonctlError) else result for result in results
        ]
        raise ItemsRejectedError(errors, kept)
    return results
