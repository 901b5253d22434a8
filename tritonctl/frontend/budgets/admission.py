# SPDX-License-Identifier: Apache-2.0
"""Admission: reserve before a request, count as it goes, give the rest back whatever happens.

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

from tritonctl.frontend.budgets.headers import over_budget, rate_limits, unreachable
from tritonctl.frontend.budgets.ledger import (
    Claim,
    Ledger,
    LedgerUnreachable,
    MemoryLedger,
    Standing,
)
from tritonctl.frontend.budgets.tenant import Tenant
from tritonctl.frontend.errors import Headers

RENEW_SECONDS = 1.0
_LAST_SECONDS = 5.0  # for what is to be given back when the process ends

log = logging.getLogger(__name__)


@dataclass
class Grant:
    """What one request may use. Without `settle` its prompt and the output so far are kept."""

    claim: Claim
    prompt: int
    standing: Standing
    ledger: Ledger
    covered_until: float  # by the clock of Budgets
    clock: Callable[[], float]
    output_so_far: int = 0
    settled: tuple[int, int] | None = None

    @property
    def headers(self) -> Headers:
        """Of the answer, as of the last operation."""
        return rate_limits(self.claim.tenant, self.standing)

    @property
    def priority(self) -> int | None:
        """Triton's, for this request."""
        return self.claim.tenant.priority

    @property
    def used(self) -> int:
        """Tokens so far, the prompt's among them."""
        return sum(self.settled or (self.prompt, self.output_so_far))

    def output(self, tokens: int) -> None:
        """So many more have come, of whichever choice.

        Raises ApiError 503 when Redis has not answered for so long that what is held for this
        request may be another's by now.
        """
        self.output_so_far += tokens
        if self.clock() > self.covered_until:
            raise unreachable()

    def settle(self, prompt: int, output: int) -> None:
        """What was really used, as in `usage`; (0, 0) for a request that went nowhere."""
        self.settled = (prompt, output)

    def end(self) -> None:
        """Nothing more comes."""
        self.settled = self.settled or (self.prompt, self.output_so_far)
        self.claim.used = self.used


@dataclass
class Budgets:
    """One for a process: it renews leases from `start` to `close`.

    `fallback`: counts while `ledger` cannot be reached, in this process alone; None: refuse then.
    """

    ledger: Ledger
    fallback: Ledger | None = None
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, Grant] = field(default_factory=dict)
    _unsettled: dict[str, tuple[Claim, float]] = field(default_factory=dict)
    _ending: set[asyncio.Task[object]] = field(default_factory=set)
    _renewal: asyncio.Task[None] | None = None
    _heart: asyncio.Task[None] | None = None
    _boundless: Ledger = field(default_factory=MemoryLedger)

    def start(self) -> None:
        """Begin; in an event loop."""
        self._heart = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """Settle what can be settled in five seconds, close connections."""
        if self._heart is not None:
            self._heart.cancel()
            with suppress(asyncio.CancelledError):
                await self._heart
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LAST_SECONDS)
        with suppress(LedgerUnreachable):
            await self._settle_again()
        await self.ledger.aclose()

    @asynccontextmanager
    async def admit(
        self, tenant: Tenant, prompt_tokens: int, max_new_tokens: int, n: int = 1
    ) -> AsyncIterator[Grant]:
        """Reserve (prompt + new) * n tokens for the length of the block.

        Raises ApiError: 429 over a limit, 503 where Redis does not answer and must.
        """
        reserved = (prompt_tokens + max_new_tokens) * n
        claim = Claim(tenant, uuid.uuid4().hex, reserved)
        grant = await self._reserve(claim, prompt_tokens)
        self._open[claim.grant] = grant
        try:
            yield grant
        finally:
            grant.end()
            del self._open[claim.grant]
            await self._end(grant)

    async def _reserve(self, claim: Claim, prompt: int) -> Grant:
        ledger = self._boundless if claim.tenant.unlimited else self.ledger
        began = self.clock()
        try:
            standing = await ledger.reserve(claim)
        except LedgerUnreachable as error:
            # It may hold all the same, where only the answer was lost.
            self._unsettled[claim.grant] = (replace(claim), began + ledger.lease)
            if self.fallback is None:
                raise unreachable() from error
            ledger = self.fallback
            standing = await ledger.reserve(claim)
        except BaseException:
            # The client went away meanwhile.
            self._spawn(self._settle(ledger, claim))
            raise
        if standing.over is not None:
            raise over_budget(claim, standing)
        covered = began + ledger.lease if self.fallback is None else float("inf")
        return Grant(claim, prompt, standing, ledger, covered, self.clock)

    async def _end(self, grant: Grant) -> None:
        """In a task of its own: a client that goes away cancels the request's, never this one.

        Where nothing is limited nothing is waited for: nothing can come between.
        """
        if grant.ledger is self._boundless and self._renewal is None:
            grant.standing = await grant.ledger.settle(grant.claim)
            return
        await asyncio.shield(self._spawn(self._give_back(grant)))

    async def _give_back(self, grant: Grant) -> None:
        # A renewal under way that names this grant would hold it anew.
        if self._renewal is not None:
            await asyncio.wait([self._renewal])
        standing = await self._settle(grant.ledger, grant.claim)
        grant.standing = standing or grant.standing

    async def _settle(self, ledger: Ledger, claim: Claim) -> Standing | None:
        try:
            return await ledger.settle(claim)
        except LedgerUnreachable:
            self._unsettled[claim.grant] = (claim, self.clock() + ledger.lease)
            return None

    def _spawn(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.renew()
            except LedgerUnreachable as error:
                log.warning("the store of token budgets does not answer: %s", error)
            except Exception:
                log.exception("leases of token budgets were not renewed")

    async def renew(self) -> None:
        """Prolong every lease, count the output so far, settle what could not be settled before.

        Raises LedgerUnreachable.
        """
        self._renewal = asyncio.create_task(self._renew())
        try:
            await self._renewal
        finally:
            self._renewal = None

    async def _renew(self) -> None:
        began, grants = self.clock(), list(self._open.values())
        for grant in grants:
            # Before the first token nobody knows whether the prompt has been read.
            grant.claim.used = grant.used if grant.output_so_far else 0
        for ledger in (self._boundless, self.fallback, self.ledger):
            mine = [grant for grant in grants if grant.ledger is ledger]
            if ledger is None or not mine:
                continue
            await ledger.renew([grant.claim for grant in mine])
            for grant in mine:
                grant.covered_until = max(grant.covered_until, began + ledger.lease)
        await self._settle_again()

    async def _settle_again(self) -> None:
        for key, (claim, until) in list(self._unsettled.items()):
            if self.clock() <= until:
                await self.ledger.settle(claim)
            del self._unsettled[key]
