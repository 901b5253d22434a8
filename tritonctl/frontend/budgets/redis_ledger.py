# SPDX-License-Identifier: Apache-2.0
"""The ledger of several frontends, in Redis: each operation is one run of ledger.lua.

What is true after a frontend's death, a lost answer or Redis' restart is said in ledger.lua and
tested in tests/frontend/test_redis_ledger.py. Redis' clock is the only one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tritonctl.frontend.budgets.ledger import (
    MINUTE,
    Claim,
    LedgerUnreachable,
    Over,
    Standing,
)

LEASE_SECONDS = 30.0
_CONNECTIONS = 64
_ANSWER_SECONDS = 1.0
_REST_SECONDS = 0.5  # after a failure: what asks meanwhile is told so at once
_CLAIMS = 500  # in one script: some ms, in which Redis does nothing else


class RedisLedger:
    """Accounts under `PREFIX:{TENANT}:*`, one hash slot each, so that a cluster serves, too.

    `now`: milliseconds in place of Redis' clock, for tests.
    """

    def __init__(
        self,
        url: str,
        password: str | None = None,
        ca: Path | None = None,
        *,
        prefix: str = "tritonctl",
        lease: float = LEASE_SECONDS,
        minute: float = MINUTE,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.lease = lease
        self._prefix, self._minute = prefix, minute
        self._clock, self._now = clock, now
        self._down_until = -float("inf")
        secrets: dict[str, Any] = {} if password is None else {"password": password}
        if ca is not None:
            secrets["ssl_ca_certs"] = str(ca)
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            socket_connect_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 1),
            **secrets,
        )
        self._redis = Redis.from_pool(pool)
        text = Path(__file__).with_name("ledger.lua").read_text(encoding="utf-8")
        self._script = self._redis.register_script(text)

    async def reserve(self, claim: Claim) -> Standing:
        """As in Ledger."""
        tenant = claim.tenant
        limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrency)
        asked = ("" if limit is None else limit for limit in limits)
        return await self._run("reserve", tenant.name, claim.grant, claim.reserved, *asked)

    async def renew(self, claims: Sequence[Claim]) -> None:
        """As in Ledger."""
        by_tenant = sorted(claims, key=lambda claim: claim.tenant.name)
        for name, group in groupby(by_tenant, key=lambda claim: claim.tenant.name):
            mine = list(group)
            for start in range(0, len(mine), _CLAIMS):
                told: list[str | int] = []
                for claim in mine[start : start + _CLAIMS]:
                    told += (claim.grant, claim.reserved, claim.used)
                await self._run("renew", name, *told)

    async def settle(self, claim: Claim) -> Standing:
        """As in Ledger."""
        told = (claim.grant, claim.reserved, claim.used)
        return await self._run("settle", claim.tenant.name, *told)

    async def aclose(self) -> None:
        """As in Ledger."""
        await self._redis.aclose()

    async def _run(self, operation: str, tenant: str, *told: str | int) -> Standing:
        if self._clock() < self._down_until:
            raise LedgerUnreachable
        keys = [f"{self._prefix}:{{{tenant}}}:{part}" for part in ("minute", "held", "leases")]
        now = "" if self._now is None else self._now()
        minute, lease = round(self._minute * 1000), round(self.lease * 1000)
        try:
            answer = await cast(
                "Awaitable[list[Any]]",
                self._script(keys=keys, args=[operation, now, minute, lease, *told]),
            )
        except (RedisError, OSError, TimeoutError) as error:
            self._down_until = self._clock() + _REST_SECONDS
            raise LedgerUnreachable(str(error)) from error
        over, used, held, requests, under_way, *times = answer
        reset_tokens, reset_requests, retry_after = (int(one) / 1000 for one in times)
        return Standing(
            used=int(used),
            held=int(held),
            requests=int(requests),
            under_way=int(under_way),
            reset_tokens=reset_tokens,
            reset_requests=reset_requests,
            over=cast("Over | None", over.decode() or None),
            retry_after=retry_after,
        )
