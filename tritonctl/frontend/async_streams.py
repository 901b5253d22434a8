# SPDX-License-Identifier: Apache-2.0
"""Combine async iterators: fetch the first item early, merge several."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")
# An item with the future that lets its source continue; or the task of a source that has ended.
_Arrival = tuple[_T, asyncio.Future[None]] | asyncio.Task[None]


@asynccontextmanager
async def prefetch_first(items: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Yield the same items; fetch the first one concurrently with the block."""

    async def fetch_first() -> _T | None:
        return await anext(items, None)

    first = asyncio.create_task(fetch_first())
    try:
        async with aclosing(_chain(first, items)) as prefetched:
            yield prefetched
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def _chain(first: asyncio.Task[_T | None], items: AsyncIterator[_T]) -> AsyncGenerator[_T]:
    item = await first
    if item is not None:
        yield item
        async for item in items:
            yield item


@asynccontextmanager
async def merge_streams(streams: Sequence[AsyncGenerator[_T]]) -> AsyncIterator[AsyncIterator[_T]]:
    """Yield the streams' items in the order of arrival; close all streams after the block.

    A stream continues only when the item after its own is requested, so a slow reader holds back
    all of them. The first error of a stream is raised to the reader. A single stream is read
    directly: a task and a queue would cost time per item.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            yield stream
        return
    arrivals = _Arrivals[_T]()
    tasks = [asyncio.create_task(_forward(stream, arrivals)) for stream in streams]
    for task in tasks:
        task.add_done_callback(arrivals.put)
    try:
        async with aclosing(arrivals.items(len(tasks))) as items:
            yield items
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Arrivals(Generic[_T]):
    """A queue for one reader, which costs less time per item than asyncio.Queue."""

    def __init__(self) -> None:
        self._queue: deque[_Arrival[_T]] = deque()  # one item per stream at most
        self._reader: asyncio.Future[None] | None = None  # waits for an arrival

    def put(self, event: _Arrival[_T]) -> None:
        """Add an item or the end of a stream, and wake the reader."""
        self._queue.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def items(self, open_streams: int) -> AsyncGenerator[_T]:
        """Yield items until all streams have ended. Raises the first error of a stream."""
        loop = asyncio.get_running_loop()
        while open_streams:
            if not self._queue:
                self._reader = loop.create_future()
                await self._reader
            arrival = self._queue.popleft()
            if isinstance(arrival, asyncio.Task):
                arrival.result()
                open_streams -= 1
            else:
                item, processed = arrival
                yield item
                processed.set_result(None)


async def _forward(stream: AsyncGenerator[_T], arrivals: _Arrivals[_T]) -> None:
    loop = asyncio.get_running_loop()
    async with aclosing(stream):
        async for item in stream:
            processed: asyncio.Future[None] = loop.create_future()
            arrivals.put((item, processed))
            await processed
