# SPDX-License-Identifier: Apache-2.0
"""A stream whose first item is waited for before anybody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


@asynccontextmanager
async def running(items: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """The same items. What `items` does for its first one, it does now, beside the block."""

    async def begin() -> _T | None:
        return await anext(items, None)

    first = asyncio.create_task(begin())
    try:
        async with aclosing(_from(first, items)) as rest:
            yield rest
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def _from(first: asyncio.Task[_T | None], items: AsyncIterator[_T]) -> AsyncGenerator[_T]:
    item = await first
    if item is not None:
        yield item
        async for item in items:
            yield item
