# SPDX-License-Identifier: Apache-2.0
"""Several streams as one: order, back-pressure, errors, and streams that are closed early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from tritonctl.frontend.async_streams import merge_streams

_TURNS = 20  # of the event loop: every stream has gone on as far as it can


class Source:
    """A stream of `name` with numbers. made: items so far; closed: it has ended or been left."""

    def __init__(self, name: str, count: int, error: Exception | None = None) -> None:
        self.name, self.count, self.error = name, count, error
        self.made = 0
        self.closed = False

    async def items(self) -> AsyncGenerator[str]:
        """`a0`, `a1`, ... and then the error."""
        try:
            for number in range(self.count):
                self.made += 1
                yield f"{self.name}{number}"
                await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


async def _let_run() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def read_all(*sources: Source) -> list[str]:
    """The items of the merged sources, once those have gone on as far as they can."""
    async with merge_streams([source.items() for source in sources]) as merged:
        await _let_run()
        return [item async for item in merged]


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, which reports no exception that nobody retrieved."""
    reported: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: reported.append(each))
        await work

    asyncio.run(watched())
    assert reported == []


@pytest.mark.parametrize("counts", [(3,), (0, 0), (1, 4), (2, 0, 5)])
def test_every_item_once_and_in_the_order_of_its_stream(counts: tuple[int, ...]) -> None:
    """However many streams, and however long."""

    async def work() -> None:
        sources = [Source(name, count) for name, count in zip("abc", counts, strict=False)]
        seen = await read_all(*sources)
        for source in sources:
            mine = [item for item in seen if item.startswith(source.name)]
            assert mine == [f"{source.name}{number}" for number in range(source.count)]
        assert len(seen) == sum(counts)
        assert all(source.closed for source in sources)

    run(work())


def test_a_slow_reader_holds_back_every_stream() -> None:
    """Each is one item ahead at most, however long the reader takes."""

    async def work() -> None:
        sources = [Source("a", 50), Source("b", 50)]
        async with merge_streams([source.items() for source in sources]) as merged:
            read = 0
            async for _ in merged:
                read += 1
                await _let_run()
                assert sum(source.made for source in sources) <= read + len(sources) - 1
        assert read == 100

    run(work())


def test_the_first_error_ends_all_streams() -> None:
    """Also one that waits for its item to be processed; the reader gets the error itself."""

    async def work() -> None:
        failing, waiting = Source("a", 1, OSError("broke")), Source("b", 50)
        with pytest.raises(OSError, match="broke"):
            await read_all(failing, waiting)
        assert (failing.closed, waiting.closed) == (True, True)
        assert waiting.made < 50

    run(work())


def test_two_errors_at_once() -> None:
    """The reader gets the first; the event loop reports neither as lost."""

    async def work() -> None:
        sources = [Source("a", 0, OSError("first")), Source("b", 0, OSError("second"))]
        with pytest.raises(OSError, match="first"):
            await read_all(*sources)

    run(work())


@pytest.mark.parametrize("streams", [1, 3])
def test_a_reader_that_leaves_closes_all_streams(streams: int) -> None:
    """By an error of its own amid an item, or by being cancelled while it waits."""

    async def work() -> None:
        sources = [Source(name, 50) for name in "abc"[:streams]]
        with suppress(KeyError):
            async with merge_streams([source.items() for source in sources]) as merged:
                await anext(merged)
                await _let_run()
                raise KeyError
        assert all(source.closed for source in sources)

        started, closed = asyncio.Event(), []

        async def endless() -> AsyncGenerator[str]:
            try:
                started.set()
                await asyncio.Event().wait()
                yield ""
            finally:
                closed.append(True)

        async def read() -> None:
            async with merge_streams([endless() for _ in range(streams)]) as merged:
                await anext(merged)

        reading = asyncio.create_task(read())
        await started.wait()
        await _let_run()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert len(closed) == streams

    run(work())
