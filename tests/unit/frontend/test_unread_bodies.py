# SPDX-License-Identifier: Apache-2.0
"""Bodies that do not arrive: whoever holds many loses their own, and keeps nobody out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tritonctl.frontend.budgets.keys import Keys
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.unread_bodies import Client, UnreadBodies

FOREVER = 3600.0


class Clients:
    """Clients that begin bodies and never end them."""

    def __init__(self, bodies: UnreadBodies) -> None:
        self._bodies = bodies
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, client: Client, size: int = 1) -> asyncio.Task[None]:
        """Another body, of which so many bytes have come."""

        async def read() -> None:
            async with self._bodies.reading(client, FOREVER) as body:
                self._bodies.add_received(body, size)
                await asyncio.Event().wait()

        task = asyncio.create_task(read())
        self._tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def end(self) -> None:
        """Go away."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def run(bodies: UnreadBodies, test: Callable[[Clients], Awaitable[None]]) -> None:
    """Run a test; nothing is left over."""

    async def inner() -> None:
        clients = Clients(bodies)
        await test(clients)
        await clients.end()
        assert len(bodies) == 0

    asyncio.run(inner())


async def refusal(task: asyncio.Task[None]) -> ApiError:
    """Why a body was given up."""
    with pytest.raises(ApiError) as raised:
        await asyncio.wait_for(task, 30)
    return raised.value


@pytest.mark.parametrize(
    "limits",
    [
        {"max_count": 1000, "max_per_address": 3},
        {"max_count": 1000, "max_per_tenant": 4},
        {"max_count": 4},
        {"max_count": 1000, "max_bytes": 4},
    ],
)
def test_who_holds_many_loses_the_oldest(limits: dict[str, Any]) -> None:
    """Never the body of a client with one, and never the newest."""

    async def test(clients: Clients) -> None:
        other = await clients.begin(("", "10.0.0.1"))
        tasks = [await clients.begin(("", "10.0.0.2")) for _ in range(4)]
        error = await refusal(tasks[0])
        assert (error.status, error.code) == (429, "server_overloaded")
        assert (b"connection", b"close") in error.headers
        assert not other.done()
        assert not any(task.done() for task in tasks[1:])

    run(UnreadBodies(**limits), test)


def test_tenants_do_not_share_a_bound() -> None:
    """One tenant's bodies leave another's alone, from the same address too."""

    async def test(clients: Clients) -> None:
        other = await clients.begin(("frank", "10.0.0.1"))
        tasks = [await clients.begin(("erin", f"10.0.0.{number}")) for number in range(4)]
        await refusal(tasks[0])
        assert not other.done()

    run(UnreadBodies(1000, max_per_tenant=3), test)


def test_large_bodies_count_by_their_bytes() -> None:
    """Memory is bounded, however few bodies hold it."""

    async def test(clients: Clients) -> None:
        other = await clients.begin(("", "10.0.0.1"), 10)
        first = await clients.begin(("", "10.0.0.2"), 60)
        second = await clients.begin(("", "10.0.0.2"), 40)
        await refusal(first)
        assert not other.done()
        assert not second.done()

    run(UnreadBodies(1000, max_bytes=100), test)


def test_a_body_that_takes_too_long() -> None:
    """408, other than for one that is given up."""

    async def read() -> None:
        async with UnreadBodies(10).reading(("", ""), 0.01):
            await asyncio.Event().wait()

    async def inner() -> ApiError:
        return await refusal(asyncio.create_task(read()))

    error = asyncio.run(inner())
    assert (error.status, error.code) == (408, "request_timeout")


@pytest.mark.parametrize(
    ("secret", "address"),
    [(b"gateway", "10.0.0.7"), (b"guessed", "10.0.0.1"), (b"", "10.0.0.1")],
)
def test_whose_address_counts(tmp_path: Path, secret: bytes, address: str) -> None:
    """The gateway's word for its client's, and nobody else's."""
    (tmp_path / "erin").write_text("key-of-erin\n")
    (tmp_path / "secret").write_text("gateway\n")
    keys = Keys({"erin": TenantLimits("erin")}, {"erin": tmp_path / "erin"}, tmp_path / "secret")
    headers = [
        (b"x-tritonctl-gateway", secret),
        (b"x-tritonctl-tenant", b"erin"),
        (b"x-api-key", b"key-of-erin"),
        (b"x-forwarded-for", b"1.2.3.4, 10.0.0.7"),
    ]
    assert keys.tenant_of(headers) is not None
    assert keys.client_address({"headers": headers, "client": ("10.0.0.1", 5)}) == address
