# SPDX-License-Identifier: Apache-2.0
"""Everything that can happen to a ledger, against a log of each single token.

The log knows when each token was made, a ledger only what it was told and when. After each step:
no minute whatsoever has more tokens, or more requests, than the tenant may have. And nothing is
lost: whatever a ledger refuses is really held, or was really used in the last 61 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tritonctl.frontend.budgets.ledger import TokenClaim, TokenLedger
from tritonctl.frontend.budgets.tenant import TenantLimits

MINUTE, SLOT = 60.0, 1.0
T = TypeVar("T")
ALICE = TenantLimits("alice", requests_per_minute=12, tokens_per_minute=1000, concurrency=5)
BOB = TenantLimits("bob", tokens_per_minute=300)
CAROL = TenantLimits("carol", requests_per_minute=3, concurrency=2)
TENANTS = (ALICE, BOB, CAROL)


@dataclass
class Request:
    """A request under way. `made`: tokens; `told`: those that the ledger knows."""

    claim: TokenClaim
    covered_until: float
    made: int = 0
    told: int = 0


@dataclass
class Log:
    """What really happened to a tenant."""

    made: list[tuple[float, int]] = field(default_factory=list)  # when, tokens
    told: list[tuple[float, int]] = field(default_factory=list)  # same, as the ledger may count
    admitted: list[float] = field(default_factory=list)
    orphans: list[tuple[float, Request]] = field(default_factory=list)  # when their lease ends

    def in_minute(self, now: float) -> int:
        """Tokens made in the minute that ends now."""
        return sum(tokens for when, tokens in self.made if now - MINUTE < when <= now)


class LedgerMachine(RuleBasedStateMachine):
    """Give it a `ledger`, a `clock` that the ledger reads, and whether frontends may die."""

    requests: Bundle[Request] = Bundle("requests")
    lease = float("inf")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.grants = 0
        self.logs = {tenant.name: Log() for tenant in TENANTS}
        self.open: list[Request] = []
        self.loop = asyncio.new_event_loop()
        self.ledger = self.made_ledger()

    def made_ledger(self) -> TokenLedger:
        """An empty one, whose time is self.now."""
        raise NotImplementedError

    def clock(self) -> float:
        """Seconds; the ledger's time."""
        return self.now

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one operation."""
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        """All requests end; a minute and a second later the whole budget is there again."""
        for request in list(self.open):
            self.settle(request)
        self.now += MINUTE + SLOT + (self.lease if self.lease != float("inf") else 0.0)
        try:
            for tenant in TENANTS:
                for _ in range(min(tenant.requests_per_minute or 1, tenant.concurrency or 1)):
                    claim = self.claim(tenant, 0)
                    assert self.wait(self.ledger.reserve(claim)).exceeded is None
                whole = self.claim(BOB, 300) if tenant is BOB else None
                if whole is not None:
                    standing = self.wait(self.ledger.reserve(whole))
                    assert (standing.exceeded, standing.used, standing.held) == (None, 0, 300)
        finally:
            self.wait(self.ledger.aclose())
            self.loop.close()

    def claim(self, tenant: TenantLimits, tokens: int) -> TokenClaim:
        """A new one."""
        self.grants += 1
        return TokenClaim(tenant, f"{id(self)}-{self.grants}", tokens)

    @rule(seconds=st.one_of(st.floats(0, 3), st.sampled_from([0.999, 1.0, 29.0, 59.0, 60.0, 61.0])))
    def advance(self, seconds: float) -> None:
        """Time goes by."""
        self.now += round(seconds, 3)

    @rule(target=requests, tenant=st.sampled_from(TENANTS), tokens=st.integers(0, 400))
    def reserve(self, tenant: TenantLimits, tokens: int) -> Request:
        """Admitted within the limits; refused only where something is in the way."""
        claim = self.claim(tenant, tokens)
        standing = self.wait(self.ledger.reserve(claim))
        again = self.wait(self.ledger.reserve(claim)) if standing.exceeded is None else standing
        assert (again.used, again.held, again.requests) == (
            standing.used,
            standing.held,
            standing.requests,
        )
        log, most = self.logs[tenant.name], tenant.tokens_per_minute
        request = Request(claim, self.now + self.lease)
        if standing.exceeded is None:
            log.admitted.append(self.now)
            self.open.append(request)
        elif standing.exceeded == "size":
            assert most is not None
            assert tokens > most
        elif standing.exceeded == "tokens":
            assert most is not None
            assert self.at_most(tenant) + tokens > most
            assert standing.retry_after > 0
        elif standing.exceeded == "requests":
            recent = [when for when in log.admitted if when > self.now - MINUTE - SLOT]
            assert len(recent) >= (tenant.requests_per_minute or 0)
        else:
            mine = [one for one in self.open if one.claim.tenant is tenant]
            dead = [until for until, _ in log.orphans if until > self.now]
            assert len(mine) + len(dead) >= (tenant.concurrency or 0)
        return request

    def at_most(self, tenant: TenantLimits) -> int:
        """Tokens that may be in a new request's way: what is held, and the last 61 seconds."""
        log, since = self.logs[tenant.name], self.now - MINUTE - SLOT
        held = sum(one.claim.reserved - one.told for one in self.open if one.claim.tenant is tenant)
        dead = sum(one.claim.reserved - one.told for until, one in log.orphans if until > since)
        return held + dead + sum(tokens for when, tokens in log.told if when > since)

    @rule(request=requests, share=st.floats(0, 1))
    def make(self, request: Request, share: float) -> None:
        """Some of what is left is made, as long as the lease covers it."""
        if request in self.open and self.now <= request.covered_until:
            tokens = int((request.claim.reserved - request.made) * share)
            request.made += tokens
            self.logs[request.claim.tenant.name].made.append((self.now, tokens))

    @rule()
    def renew(self) -> None:
        """The heartbeat: leases prolonged, the ledger told what was made."""
        for request in self.open:
            request.claim.used = request.made
            self.tell(request)
            request.covered_until = self.now + self.lease
        self.wait(self.ledger.renew([request.claim for request in self.open]))

    def tell(self, request: Request) -> None:
        """Note what the ledger is told."""
        fresh = request.made - request.told
        self.logs[request.claim.tenant.name].told.append((self.now, fresh))
        request.told = request.made

    @rule(request=consumes(requests))
    def settle(self, request: Request) -> None:
        """The end of a request, twice: an answer may be lost."""
        if request not in self.open:
            return
        self.open.remove(request)
        if self.now >= request.covered_until:
            self.logs[request.claim.tenant.name].orphans.append((request.covered_until, request))
        request.claim.used = request.made
        self.tell(request)
        first = self.wait(self.ledger.settle(request.claim))
        again = self.wait(self.ledger.settle(request.claim))
        assert (first.used, first.held) == (again.used, again.held)

    @invariant()
    def no_minute_has_more(self) -> None:
        """To the token."""
        for tenant in TENANTS:
            log = self.logs[tenant.name]
            if tenant.tokens_per_minute is not None:
                assert log.in_minute(self.now) <= tenant.tokens_per_minute
            if tenant.requests_per_minute is not None:
                recent = [when for when in log.admitted if when > self.now - MINUTE]
                assert len(recent) <= tenant.requests_per_minute
            if tenant.concurrency is not None:
                mine = [one for one in self.open if one.claim.tenant is tenant]
                assert (
                    len([one for one in mine if self.now <= one.covered_until])
                    <= tenant.concurrency
                )
