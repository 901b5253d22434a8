# SPDX-License-Identifier: Apache-2.0
"""A ledger shared by several frontends, in Redis: each operation is one run of ledger.lua.

ledger.lua documents the guarantees after a frontend's crash, a lost answer and a restart of Redis;
tests/frontend/test_redis_ledger.py tests them. Only Redis' clock counts.
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
    AccountStatus,
    ExceededLimit,
    LedgerUnreachable,
    TokenClaim,
)

LEASE_SECONDS = 30.0
_CONNECTIONS = 64
_ANSWER_SECONDS = 1.0
_BACKOFF_SECONDS = 0.5  # after a failure, operations fail at once for this long
_MAX_CLAIMS = 500  # per script run: it blocks Redis for some ms


class RedisLedger:
    """Accounts under `PREFIX:{TENANT}:*`, one hash slot each, which suits a Redis cluster.

    `now`: replaces Redis' clock in tests, milliseconds.
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

    async def reserve(self, claim: TokenClaim) -> AccountStatus:
        """As in Ledger."""
        tenant = claim.tenant
        limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrency)
        limit_arguments = ("" if limit is None else limit for limit in limits)
        return await self._run(
            "reserve", tenant.name, claim.grant, claim.reserved, *limit_arguments
        )

    async def renew(self, claims: Sequence[TokenClaim]) -> None:
        """As in Ledger."""
        by_tenant = sorted(claims, key=lambda claim: claim.tenant.name)
        for name, group in groupby(by_tenant, key=lambda claim: claim.tenant.name):
            tenant_claims = list(group)
            for start in range(0, len(tenant_claims), _MAX_CLAIMS):
                arguments: list[str | int] = []
                for claim in tenant_claims[start : start + _MAX_CLAIMS]:
                    arguments += (claim.grant, claim.reserved, claim.used)
                await self._run("renew", name, *arguments)

    async def settle(self, claim: TokenClaim) -> AccountStatus:
        """As in Ledger."""
        arguments = (claim.grant, claim.reserved, claim.used)
        return await self._run("settle", claim.tenant.name, *arguments)

    async def aclose(self) -> None:
        """As in Ledger."""
        await self._redis.aclose()

    async def _run(self, operation: str, tenant: str, *arguments: str | int) -> AccountStatus:
        if self._clock() < self._down_until:
            raise LedgerUnreachable
        keys = [f"{self._prefix}:{{{tenant}}}:{part}" for part in ("minute", "held", "leases")]
        now = "" if self._now is None else self._now()
        minute, lease = round(self._minute * 1000), round(self.lease * 1000)
        try:
            answer = await cast(
                "Awaitable[list[Any]]",
                self._script(keys=keys, args=[operation, now, minute, lease, *arguments]),
            )
        except (RedisError, OSError, TimeoutError) as error:
            self._down_until = self._clock() + _BACKOFF_SECONDS
            raise LedgerUnreachable(str(error)) from error
        exceeded, used, held, requests, in_flight, *times = answer
        reset_tokens, reset_requests, retry_after = (
            int(milliseconds) / 1000 for milliseconds in times
        )
        return AccountStatus(
            used=int(used),
            held=int(held),
            requests=int(requests),
            in_flight=int(in_flight),
            reset_tokens=reset_tokens,
            reset_requests=reset_requests,
            exceeded=cast("ExceededLimit | None", exceeded.decode() or None),
            retry_after=retry_after,
        )
