# SPDX-License-Identifier: Apache-2.0
"""Admission: reserve tokens before a request, count them during it, refund the unused ones.

async with budgets.admit(tenant, prompt_tokens, max_new_tokens) as grant:
    ...                            # answer; headers: grant.headers
    grant.output(tokens)           # with each part of a stream
    grant.settle(prompt, output)   # what `usage` says
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from tritonctl.frontend.budgets.headers import ledger_unreachable, over_budget, rate_limits
from tritonctl.frontend.budgets.ledger import (
    AccountStatus,
    LedgerUnreachable,
    MemoryLedger,
    TokenClaim,
    TokenLedger,
)
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.frontend.errors import Headers

RENEW_SECONDS = 1.0
_CLOSE_SECONDS = 5.0  # for settlements when the process ends

log = logging.getLogger(__name__)


@dataclass
class Grant:
    """One request's reservation. Without `settle` the prompt and the output so far are charged."""

    claim: TokenClaim
    prompt: int
    status: AccountStatus
    ledger: TokenLedger
    lease_until: float  # by the clock of Budgets
    clock: Callable[[], float]
    output_so_far: int = 0
    settled: tuple[int, int] | None = None

    @property
    def headers(self) -> Headers:
        """Rate limit headers of the answer, after the last operation."""
        return rate_limits(self.claim.tenant, self.status)

    @property
    def priority(self) -> int | None:
        """Triton's priority of this request."""
        return self.claim.tenant.priority

    @property
    def used(self) -> int:
        """Tokens so far, including the prompt's."""
        return sum(self.settled or (self.prompt, self.output_so_far))

    def output(self, tokens: int) -> None:
        """Count new output tokens of any answer.

        Raises ApiError 503 if the lease has expired because Redis did not answer: another request
        may hold the tokens by now.
        """
        self.output_so_far += tokens
        if self.clock() > self.lease_until:
            raise ledger_unreachable()

    def settle(self, prompt: int, output: int) -> None:
        """Set the actual usage; (0, 0) for a request that reached no server."""
        self.settled = (prompt, output)

    def end(self) -> None:
        """Fix the usage at the end of the request."""
        self.settled = self.settled or (self.prompt, self.output_so_far)
        self.claim.used = self.used


@dataclass
class Budgets:
    """The budgets of one process. It renews leases from `start` to `close`."""

    ledger: TokenLedger
    # Counts in this process while `ledger` is unreachable; None: refuse requests then.
    fallback: TokenLedger | None = None
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, Grant] = field(default_factory=dict)
    _unsettled: dict[str, tuple[TokenClaim, float]] = field(default_factory=dict)
    _release_tasks: set[asyncio.Task[object]] = field(default_factory=set)
    _renewal: asyncio.Task[None] | None = None
    _renewal_loop: asyncio.Task[None] | None = None
    _unlimited_ledger: TokenLedger = field(default_factory=MemoryLedger)

    def start(self) -> None:
        """Start renewing leases, in the running event loop."""
        self._renewal_loop = asyncio.create_task(self._renew_periodically())

    async def close(self) -> None:
        """Settle for up to five seconds, then close connections."""
        if self._renewal_loop is not None:
            self._renewal_loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal_loop
        if self._release_tasks:
            await asyncio.wait(self._release_tasks, timeout=_CLOSE_SECONDS)
        with suppress(LedgerUnreachable):
            await self._retry_settlements()
        await self.ledger.aclose()

    @asynccontextmanager
    async def admit(
        self, tenant: TenantLimits, prompt_tokens: int, max_new_tokens: int, n: int = 1
    ) -> AsyncIterator[Grant]:
        """Reserve (prompt + new) * n tokens for the duration of the block.

        Raises ApiError: 429 over a limit, 503 if Redis is required and does not answer.
        """
        reserved = (prompt_tokens + max_new_tokens) * n
        claim = TokenClaim(tenant, uuid.uuid4().hex, reserved)
        grant = await self._reserve(claim, prompt_tokens)
        self._open[claim.grant] = grant
        try:
            yield grant
        finally:
            grant.end()
            del self._open[claim.grant]
            await self._release(grant)

    async def _reserve(self, claim: TokenClaim, prompt: int) -> Grant:
        ledger = self._unlimited_ledger if claim.tenant.unlimited else self.ledger
        started = self.clock()
        try:
            status = await ledger.reserve(claim)
        except LedgerUnreachable as error:
            # The reservation may exist: perhaps only the answer was lost.
            self._unsettled[claim.grant] = (replace(claim), started + ledger.lease)
            if self.fallback is None:
                raise ledger_unreachable() from error
            ledger = self.fallback
            status = await ledger.reserve(claim)
        except BaseException:
            # The client disconnected during the reservation.
            self._start_release(self._settle(ledger, claim))
            raise
        if status.exceeded is not None:
            raise over_budget(claim, status)
        covered = started + ledger.lease if self.fallback is None else float("inf")
        return Grant(claim, prompt, status, ledger, covered, self.clock)

    async def _release(self, grant: Grant) -> None:
        """Settle in a separate task: a client that disconnects cancels only the request's task.

        Without limits settle directly: the memory ledger never waits, so nothing can interrupt it.
        """
        if grant.ledger is self._unlimited_ledger and self._renewal is None:
            grant.status = await grant.ledger.settle(grant.claim)
            return
        await asyncio.shield(self._start_release(self._give_back(grant)))

    async def _give_back(self, grant: Grant) -> None:
        # A renewal in progress that includes this grant would reserve it again.
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        status = await self._settle(grant.ledger, grant.claim)
        grant.status = status or grant.status

    async def _settle(self, ledger: TokenLedger, claim: TokenClaim) -> AccountStatus | None:
        try:
            return await ledger.settle(claim)
        except LedgerUnreachable:
            self._unsettled[claim.grant] = (claim, self.clock() + ledger.lease)
            return None

    def _start_release(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.create_task(work)
        self._release_tasks.add(task)
        task.add_done_callback(self._release_tasks.discard)
        return task

    async def _renew_periodically(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.renew()
            except LedgerUnreachable as error:
                log.warning("the store of token budgets does not answer: %s", error)
            except Exception:
                log.exception("leases of token budgets were not renewed")

    async def renew(self) -> None:
        """Renew every lease, count the output so far, and retry failed settlements.

        Raises LedgerUnreachable.
        """
        self._renewal = asyncio.create_task(self._renew())
        try:
            await self._renewal
        finally:
            self._renewal = None

    async def _renew(self) -> None:
        started, grants = self.clock(), list(self._open.values())
        for grant in grants:
            # Before the first token it is unknown whether the model has read the prompt.
            grant.claim.used = grant.used if grant.output_so_far else 0
        for ledger in (self._unlimited_ledger, self.fallback, self.ledger):
            ledger_grants = [grant for grant in grants if grant.ledger is ledger]
            if ledger is None or not ledger_grants:
                continue
            await ledger.renew([grant.claim for grant in ledger_grants])
            for grant in ledger_grants:
                grant.lease_until = max(grant.lease_until, started + ledger.lease)
        await self._retry_settlements()

    async def _retry_settlements(self) -> None:
        for key, (claim, until) in list(self._unsettled.items()):
            if self.clock() <= until:
                await self.ledger.settle(claim)
            del self._unsettled[key]
