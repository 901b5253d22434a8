# SPDX-License-Identifier: Apache-2.0
"""From admission to the refund: cancels, failures, a ledger that does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tritonctl.frontend.budgets.admission import Budgets
from tritonctl.frontend.budgets.ledger import (
    AccountStatus,
    LedgerUnreachable,
    MemoryLedger,
    TokenClaim,
)
from tritonctl.frontend.budgets.tenant import ALL_CLIENTS, TenantLimits
from tritonctl.frontend.errors import ApiError, Headers

pytestmark = pytest.mark.timed

GRACE = TenantLimits("grace", requests_per_minute=1000, tokens_per_minute=100, concurrency=50)
Scene = Callable[[Budgets], Awaitable[None]]


class Timed(MemoryLedger):
    """Its time is told; it can be out of reach, and slow."""

    lease = 30.0

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now, self.away, self.slow = 100.5, False, False

    def clock(self) -> float:
        """Seconds."""
        return self.now

    async def _reach(self) -> None:
        if self.slow:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if self.away:
            raise LedgerUnreachable

    async def reserve(self, claim: TokenClaim) -> AccountStatus:
        """When it can be reached."""
        standing = await super().reserve(claim) if self.slow else None
        await self._reach()
        return standing or await super().reserve(claim)

    async def renew(self, claims: Sequence[TokenClaim]) -> None:
        """Same."""
        await self._reach()
        await super().renew(claims)

    async def settle(self, claim: TokenClaim) -> AccountStatus:
        """Same."""
        await self._reach()
        return await super().settle(claim)

    def account(self) -> tuple[int, int, int]:
        """Grace's tokens used, held, and requests under way."""
        standing = asyncio.run(MemoryLedger.settle(self, TokenClaim(GRACE, "nobody's", 0)))
        return standing.used, standing.held, standing.in_flight


def play(
    ledger: Timed, scene: Callable[[Budgets], Awaitable[None]], *, alone: bool = False
) -> None:
    """With budgets over this ledger; alone: count in the process while it is away."""

    async def run() -> None:
        fallback = MemoryLedger(ledger.clock) if alone else None
        budgets = Budgets(ledger, fallback, ledger.clock)
        budgets.start()
        try:
            await scene(budgets)
        finally:
            await budgets.close()

    asyncio.run(run())


def remaining(headers: Headers) -> int:
    """Tokens, as a client is told."""
    return int(dict(headers)[b"x-ratelimit-remaining-tokens"])


def test_settled() -> None:
    """What `usage` says is used, the rest is given back; times n while under way."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 20, n=3) as grant:
            assert remaining(grant.headers) == 10
            grant.output(11)
            grant.settle(10, 12)
        assert grant.used == 22
        assert remaining(grant.headers) == 78

    play(ledger, scene)
    assert ledger.account() == (22, 0, 0)


@pytest.mark.parametrize(("outputs", "used"), [([], 10), ([1, 4], 15)])
def test_a_request_that_fails_keeps_what_it_used(outputs: list[int], used: int) -> None:
    """Its prompt, which was sent, and what came."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 20) as grant:
            for tokens in outputs:
                grant.output(tokens)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        play(ledger, scene)
    assert ledger.account() == (used, 0, 0)


def test_a_request_that_went_nowhere_costs_nothing() -> None:
    """No replica, say."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 20) as grant:
            grant.settle(0, 0)

    play(ledger, scene)
    assert ledger.account() == (0, 0, 0)


def test_over_budget() -> None:
    """Refused before anything else happens, and holding nothing."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 50, 50):
            with pytest.raises(ApiError, match="Used 100, Requested 1") as caught:
                async with budgets.admit(GRACE, 0, 1):
                    pytest.fail("admitted")
            assert (caught.value.status, caught.value.type) == (429, "tokens")

    play(ledger, scene)
    assert ledger.account() == (50, 0, 0)


@pytest.mark.parametrize("turns", range(6))
def test_a_client_that_goes_away_at_any_time(turns: int) -> None:
    """While it waits for admission, while it is served, while it is settled."""
    ledger = Timed()
    ledger.slow = True

    async def scene(budgets: Budgets) -> None:
        async def client() -> None:
            async with budgets.admit(GRACE, 10, 20) as grant:
                grant.output(1)
                await asyncio.sleep(0)

        task = asyncio.create_task(client())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    play(ledger, scene)
    used, held, under_way = ledger.account()
    assert used in {0, 11}
    assert (held, under_way) == (0, 0)


async def one_of_many(budgets: Budgets, ledger: Timed, chance: random.Random) -> list[int]:
    """Ten requests of a client; what used and held tokens came to, at each admission."""
    seen = []
    for _ in range(10):
        try:
            async with budgets.admit(GRACE, chance.randrange(9), chance.randrange(1, 30)) as grant:
                seen.append(grant.status.used + grant.status.held)
                for _ in range(chance.randrange(1 + grant.claim.reserved - grant.prompt)):
                    grant.output(1)
                    await asyncio.sleep(0)
                if chance.random() < 0.2:
                    raise ConnectionError
                grant.settle(grant.prompt, grant.output_so_far)
        except (ApiError, ConnectionError):
            ledger.now += 0.05
            await asyncio.sleep(0)
    return seen


def test_two_hundred_clients() -> None:
    """A third cancelled, some failing: never a token above, none held in the end."""
    ledger, chance = Timed(), random.Random(7)  # noqa: S311 - not a secret
    seen: list[int] = []

    async def scene(budgets: Budgets) -> None:
        clients = [one_of_many(budgets, ledger, chance) for _ in range(200)]
        tasks = [asyncio.create_task(client) for client in clients]
        for task in tasks[::3]:
            await asyncio.sleep(0)
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        seen.extend(one for some in ended if isinstance(some, list) for one in some)

    play(ledger, scene)
    assert 90 <= max(seen) <= 100
    used, held, under_way = ledger.account()
    assert (held, under_way) == (0, 0)
    assert used <= 100


def test_the_heartbeat_counts_what_came_so_far() -> None:
    """Used from then on for a minute, not from the end."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 90) as grant:
            grant.output(30)
            await budgets.renew()
            ledger.now += 62
            await budgets.renew()
            grant.output(10)
            grant.settle(10, 40)

    play(ledger, scene)
    assert ledger.account() == (10, 0, 0)


def test_a_store_that_is_away_refuses() -> None:
    """503, to be retried; and what may hold all the same is given back when it answers again."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        ledger.away = ledger.slow = True
        with pytest.raises(ApiError) as caught:
            async with budgets.admit(GRACE, 10, 20):
                pytest.fail("admitted")
        assert caught.value.status == 503
        ledger.away = ledger.slow = False
        await budgets.renew()

    play(ledger, scene)
    assert ledger.account() == (0, 0, 0)


def test_a_store_that_is_away_at_the_end() -> None:
    """Settled by a heartbeat, with what was used."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 20) as grant:
            grant.settle(10, 5)
            ledger.away = True
        with pytest.raises(LedgerUnreachable):
            await budgets.renew()
        ledger.away = False
        await budgets.renew()

    play(ledger, scene)
    assert ledger.account() == (15, 0, 0)


def test_no_token_beyond_the_lease() -> None:
    """What is held may be another's by then: the stream ends with an error."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(GRACE, 10, 20) as grant:
            ledger.now += 20
            await budgets.renew()
            ledger.now += 30
            grant.output(1)
            ledger.now += 0.1
            with pytest.raises(ApiError):
                grant.output(1)

    play(ledger, scene)


def test_counting_alone_while_the_store_is_away() -> None:
    """`allow`: within this process' own account, for as long as it takes."""
    ledger = Timed()

    async def scene(budgets: Budgets) -> None:
        ledger.away = True
        async with budgets.admit(GRACE, 10, 20) as grant:
            ledger.now += 100
            grant.output(1)
            with pytest.raises(ApiError, match="Used 30, Requested 71"):
                async with budgets.admit(GRACE, 1, 70):
                    pytest.fail("admitted")
        ledger.away = False
        await budgets.renew()
        async with budgets.admit(GRACE, 100, 0) as grant:
            grant.settle(0, 0)

    play(ledger, scene, alone=True)
    assert ledger.account() == (0, 0, 0)


def test_nothing_is_counted_where_nothing_is_limited() -> None:
    """Not even a store that is away is asked."""
    ledger = Timed()
    ledger.away = True

    async def scene(budgets: Budgets) -> None:
        async with budgets.admit(ALL_CLIENTS, 10, 20) as grant:
            assert grant.headers == ()
            grant.settle(10, 1)

    play(ledger, scene)
