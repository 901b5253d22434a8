# SPDX-License-Identifier: Apache-2.0
"""The ledger of several frontends in a real Redis: time is injected, Redis is not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import consumes, rule

from tests.examples import examples
from tests.ledger_machine import LedgerMachine, Request
from tests.redis_server import RedisServer
from tritonctl.frontend.budgets.ledger import (
    AccountStatus,
    LedgerUnreachable,
    TokenClaim,
    TokenLedger,
)
from tritonctl.frontend.budgets.redis_ledger import RedisLedger
from tritonctl.frontend.budgets.tenant import TenantLimits

pytestmark = pytest.mark.server

LEASE = 30.0
DAVE = TenantLimits("dave", requests_per_minute=30, tokens_per_minute=100, concurrency=20)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """For the whole module: each ledger has keys of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    InRedis.server = server
    yield server
    server.close()


class InRedis(LedgerMachine):
    """As in memory, and frontends die with their requests."""

    server: RedisServer
    lease = LEASE
    runs = 0

    def made_ledger(self) -> TokenLedger:
        """Under keys of its own."""
        InRedis.runs += 1
        prefix = f"run{InRedis.runs}"
        now = lambda: round(self.now * 1000)  # noqa: E731 - short
        return RedisLedger(self.server.url, prefix=prefix, lease=LEASE, now=now)

    @rule(request=consumes(LedgerMachine.requests))
    def die(self, request: Request) -> None:
        """kill -9: nobody settles; whatever was made since the last renewal is not told."""
        if request in self.open:
            self.open.remove(request)
            self.logs[request.claim.tenant.name].orphans.append((request.covered_until, request))

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0]))
    def advance_far(self, seconds: float) -> None:
        """Leases end."""
        self.now += seconds


InRedis.TestCase.settings = examples(200)


def test_everything_that_can_happen(redis: RedisServer) -> None:
    """Limits to the token, nothing lost, frontends that die: against a log of each token."""
    InRedis.TestCase("runTest").runTest()


class Frontend:
    """A ledger whose time stands still unless told; others with the same prefix share it."""

    now = 2_000_000.0

    def __init__(self, redis: RedisServer, prefix: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.ledger = RedisLedger(
            redis.url, prefix=prefix, lease=LEASE, now=lambda: round(Frontend.now * 1000)
        )
        self.made = 0
        self.name = f"{prefix}-{id(self)}"

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it."""
        return self.loop.run_until_complete(work)

    def reserve(self, tokens: int) -> tuple[TokenClaim, AccountStatus]:
        """For Dave."""
        self.made += 1
        claim = TokenClaim(DAVE, f"{self.name}-{self.made}", tokens)
        return claim, self.wait(self.ledger.reserve(claim))

    def close(self) -> None:
        """Connections are closed."""
        self.wait(self.ledger.aclose())
        self.loop.close()


@pytest.fixture
def pair(redis: RedisServer, request: pytest.FixtureRequest) -> Iterator[tuple[Frontend, Frontend]]:
    """Two frontends with one ledger."""
    one, other = (Frontend(redis, request.node.name) for _ in range(2))
    yield one, other
    one.close()
    other.close()


def test_frontends_share_a_budget(pair: tuple[Frontend, Frontend]) -> None:
    """What one holds the other does not give out."""
    one, other = pair
    assert one.reserve(60)[1].exceeded is None
    refused = other.reserve(41)[1]
    assert (refused.exceeded, refused.held, refused.in_flight) == ("tokens", 60, 1)
    assert other.reserve(40)[1].exceeded is None


def test_what_a_dead_frontend_held_counts_in_full_for_a_minute(
    pair: tuple[Frontend, Frontend],
) -> None:
    """From its lease's end; nothing is stuck, and nothing that it may have used is forgotten."""
    one, other = pair
    one.reserve(70)
    Frontend.now += LEASE + 59
    dead = other.reserve(31)[1]
    assert (dead.exceeded, dead.used, dead.held, dead.in_flight) == ("tokens", 70, 0, 0)
    Frontend.now += 2
    assert other.reserve(100)[1].exceeded is None


def test_used_tokens_count_for_a_minute_and_no_second_less(
    pair: tuple[Frontend, Frontend],
) -> None:
    """From the end of the second in which the ledger was told of them."""
    one, other = pair
    Frontend.now = math.floor(Frontend.now) + 0.5
    claim, _ = one.reserve(100)
    claim.used = 40
    one.wait(one.ledger.renew([claim]))
    Frontend.now += 20
    claim.used = 100
    settled = one.wait(one.ledger.settle(claim))
    assert (settled.used, settled.held, settled.reset_tokens) == (100, 0, 60.5)
    Frontend.now += 40.499
    refused = other.reserve(1)[1]
    assert (refused.exceeded, refused.used) == ("tokens", 100)
    assert refused.retry_after == pytest.approx(0.001)
    Frontend.now += 0.001
    assert other.reserve(41)[1].exceeded == "tokens"
    assert other.reserve(40)[1].exceeded is None


def test_a_clock_that_is_set_back_holds_nothing_for_longer_than_a_minute(
    pair: tuple[Frontend, Frontend],
) -> None:
    """Tokens of a time to come happened before now; so did the leases'."""
    one, other = pair
    claim, _ = one.reserve(50)
    claim.used = 50
    one.wait(one.ledger.settle(claim))
    one.reserve(50)
    Frontend.now -= 7200
    assert other.reserve(1)[1].exceeded == "tokens"
    Frontend.now += LEASE + 62
    assert other.reserve(50)[1].exceeded is None
    Frontend.now += 61
    assert other.reserve(50)[1].exceeded is None


def test_redis_dies_and_comes_back_empty(tmp_path: Path) -> None:
    """Refused at once meanwhile; requests under way hold again what they may still use."""
    redis = RedisServer(tmp_path)
    frontend = Frontend(redis, "empty")
    try:
        claim, _ = frontend.reserve(80)
        redis.kill()
        for _ in range(2):
            with pytest.raises(LedgerUnreachable):
                frontend.reserve(1)
        redis.start()
        frontend.wait(asyncio.sleep(0.6))
        claim.used = 30
        frontend.wait(frontend.ledger.renew([claim]))
        assert frontend.reserve(51)[1].exceeded == "tokens"
        assert frontend.reserve(50)[1].exceeded is None
    finally:
        frontend.close()
        redis.close()


def test_with_its_own_clock(redis: RedisServer) -> None:
    """Redis' TIME, as in production."""

    async def ask() -> list[AccountStatus]:
        ledger = RedisLedger(redis.url, prefix="own-clock", minute=1.0)
        claim = TokenClaim(DAVE, "g1", 100, used=100)
        found = [await ledger.reserve(claim), await ledger.settle(claim)]
        found.append(await ledger.reserve(TokenClaim(DAVE, "g2", 1)))
        await asyncio.sleep(found[-1].retry_after)
        found.append(await ledger.reserve(TokenClaim(DAVE, "g3", 100)))
        await ledger.aclose()
        return found

    held, settled, refused, admitted = asyncio.run(ask())
    assert (held.held, settled.used, refused.exceeded) == (100, 100, "tokens")
    assert 0 < refused.retry_after <= 2
    assert admitted.exceeded is None


def test_two_hundred_at_once_get_what_there_is(redis: RedisServer) -> None:
    """Of four frontends: not one token more, and not one less."""

    async def ask() -> list[AccountStatus]:
        ledgers = [RedisLedger(redis.url, prefix="many") for _ in range(4)]
        tenant = TenantLimits("erin", tokens_per_minute=1003)
        claims = [TokenClaim(tenant, f"g{index}", 7) for index in range(200)]
        asked = (ledgers[index % 4].reserve(claim) for index, claim in enumerate(claims))
        found = await asyncio.gather(*asked)
        for ledger in ledgers:
            await ledger.aclose()
        return found

    standings = asyncio.run(ask())
    assert sum(7 for one in standings if one.exceeded is None) == 1001


def test_a_lost_password_is_unreachable(tmp_path: Path) -> None:
    """Errors of Redis' own, too, are answered by the setting, not by a crash."""
    with TemporaryDirectory(dir=tmp_path) as folder:
        redis = RedisServer(Path(folder), "--requirepass", "secret")
        try:
            for password, fine in ((None, False), ("secret", True)):
                assert asyncio.run(_one(RedisLedger(redis.url, password))) is fine
        finally:
            redis.close()


async def _one(ledger: RedisLedger) -> bool:
    try:
        await ledger.reserve(TokenClaim(DAVE, "g1", 1))
    except LedgerUnreachable:
        return False
    finally:
        await ledger.aclose()
    return True
