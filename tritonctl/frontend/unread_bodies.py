# SPDX-License-Identifier: Apache-2.0
"""Bounds on bodies that have not arrived completely.

A body that arrives slowly must not keep others out. So a new body is always accepted, and beyond a
bound the oldest unread body of the client with the most is given up: the client that holds many
loses its own. Clients are told apart by tenant and address.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tritonctl.frontend.errors import SERVER, ApiError

MAX_PER_ADDRESS = 128
MAX_PER_TENANT = 512
MAX_BYTES = 256_000_000

Client = tuple[str, str]  # tenant and address


@dataclass(eq=False)
class UnreadBody:
    """A body that is being read."""

    client: Client
    deadline: asyncio.Timeout
    size: int = 0
    is_given_up: bool = False


class UnreadBodies:
    """The unread bodies of one process. max_count: of all clients."""

    def __init__(
        self,
        max_count: int,
        *,
        max_per_address: int = MAX_PER_ADDRESS,
        max_per_tenant: int = MAX_PER_TENANT,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._max_count = max_count
        self._max_per_address = max_per_address
        self._max_per_tenant = max_per_tenant
        self._max_bytes = max_bytes
        self._bodies: dict[UnreadBody, None] = {}  # oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    @asynccontextmanager
    async def reading(self, client: Client, seconds: float) -> AsyncIterator[UnreadBody]:
        """Read a body in the block, within a time limit.

        Raises ApiError: 408 when the time is over, 429 when the body is given up for others.
        """
        body: UnreadBody | None = None
        try:
            async with asyncio.timeout(seconds) as deadline:
                body = UnreadBody(client, deadline)
                self._bodies[body] = None
                self._enforce_counts(client)
                try:
                    yield body
                finally:
                    self._remove(body)
        except TimeoutError:
            if body is not None and body.is_given_up:
                raise _given_up() from None
            raise ApiError(
                408,
                f"the request's body took longer than {seconds:g} seconds",
                code="request_timeout",
                headers=((b"connection", b"close"),),
            ) from None

    def add_received(self, body: UnreadBody, size: int) -> None:
        """Count received bytes of a body; beyond the bound of all, give up bodies."""
        if body in self._bodies:
            body.size += size
            self._bytes += size
        while self._bytes > self._max_bytes:
            self._give_up_one(self._bodies, by_size=True)

    def _enforce_counts(self, client: Client) -> None:
        of_tenant = [each for each in self._bodies if each.client[0] == client[0]]
        of_address = [each for each in of_tenant if each.client[1] == client[1]]
        if len(of_address) > self._max_per_address:
            self._give_up_one(of_address)
        elif len(of_tenant) > self._max_per_tenant:
            self._give_up_one(of_tenant)
        elif len(self._bodies) > self._max_count:
            self._give_up_one(self._bodies)

    def _give_up_one(self, bodies: Iterable[UnreadBody], *, by_size: bool = False) -> None:
        """Give up the oldest body of the client with the most bodies, or bytes."""
        held: Counter[Client] = Counter()
        for body in bodies:
            held[body.client] += body.size if by_size else 1
        client = held.most_common(1)[0][0]
        oldest = next(each for each in bodies if each.client == client)
        self._remove(oldest)
        oldest.is_given_up = True
        oldest.deadline.reschedule(asyncio.get_running_loop().time())

    def _remove(self, body: UnreadBody) -> None:
        if body in self._bodies:
            del self._bodies[body]
            self._bytes -= body.size


def _given_up() -> ApiError:
    return ApiError(
        429,
        "this request's body did not arrive before many newer ones of the same client. Send fewer "
        "requests at once",
        type=SERVER,
        code="server_overloaded",
        headers=((b"retry-after", b"1"), (b"connection", b"close")),
    )
