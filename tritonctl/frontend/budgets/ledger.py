# SPDX-License-Identifier: Apache-2.0
"""The ledger of a tenant's minute: what was used, and what requests under way may still use.

The rule, of every ledger: a request is admitted only if the tokens used in the last minute, the
tokens that requests under way may still use, and its own fit into `tokens_per_minute`. Used tokens
count from when the ledger is told of them, which is never before they are made. So in no minute
whatsoever does a tenant use more (docs/explanation/token-budgets.md has the proof).

A second's amounts are kept together and count until a minute after that second's end: a minute is
60 to 61 seconds, never less, and an account has at most 62 entries.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tritonctl.frontend.budgets.tenant import Tenant

MINUTE = 60.0
SLOT = 1.0
Over = Literal["requests", "tokens", "size", "concurrency"]


@dataclass(frozen=True)
class Standing:
    """What an account holds after an operation; times in seconds from now.

    `used`: tokens of the last minute. `held`: tokens that requests under way may still use.
    `requests`: admitted in the last minute. `under_way`: requests that have not ended.
    `over`: which limit refused the request; `size`: it does not fit into an empty minute, either.
    `retry_after`: when it would fit if nobody else asked; 1 where requests under way decide.
    """

    used: int
    held: int
    requests: int
    under_way: int
    reset_tokens: float
    reset_requests: float
    over: Over | None = None
    retry_after: float = 0.0


@dataclass
class Claim:
    """A request's place in a ledger. `used`: tokens so far, beyond `reserved` only by mistake."""

    tenant: Tenant
    grant: str
    reserved: int
    used: int = 0


class LedgerUnreachable(Exception):  # noqa: N818 - no error of its own: what follows is a setting
    """The store does not answer."""


class Ledger(Protocol):
    """Each operation is atomic. `lease`: seconds for which a claim lives without `renew`."""

    lease: float

    async def reserve(self, claim: Claim) -> Standing:
        """Hold `claim.reserved` tokens, or say in `over` why not. Asked again it changes nothing.

        Raises LedgerUnreachable: the claim may hold all the same, until its lease ends.
        """

    async def renew(self, claims: Sequence[Claim]) -> None:
        """Prolong the leases, and count `used` so far. Raises LedgerUnreachable."""

    async def settle(self, claim: Claim) -> Standing:
        """Count `used`, give the rest back. Asked again it changes nothing.

        Raises LedgerUnreachable.
        """

    async def aclose(self) -> None:
        """Let connections go."""


@dataclass
class _Slot:
    second: int
    tokens: int = 0
    requests: int = 0

    def until(self, minute: float) -> float:
        """When its amounts count no longer."""
        return (self.second + 1) * SLOT + minute


@dataclass
class _Account:
    slots: deque[_Slot] = field(default_factory=deque)
    held: dict[str, int] = field(default_factory=dict)  # by grant: what it may still use
    tokens: int = 0
    requests: int = 0
    held_tokens: int = 0


class MemoryLedger:
    """In this process, for one frontend: it ends with its requests, so there are no leases."""

    lease = float("inf")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, minute: float = MINUTE
    ) -> None:
        self._clock = clock
        self._minute = minute
        self._accounts: dict[str, _Account] = {}

    async def reserve(self, claim: Claim) -> Standing:
        """As in Ledger."""
        account, now = self._account(claim.tenant)
        if claim.grant in account.held:
            return self._standing(account, now)
        over, retry_after = self._refusal(account, claim, now)
        if over is not None:
            return self._standing(account, now, over, retry_after)
        account.held[claim.grant] = claim.reserved
        account.held_tokens += claim.reserved
        self._count(account, now, requests=1)
        return self._standing(account, now)

    async def renew(self, claims: Sequence[Claim]) -> None:
        """As in Ledger."""
        for claim in claims:
            account, now = self._account(claim.tenant)
            left = account.held.get(claim.grant)
            if left is None:
                continue
            used = min(claim.used, claim.reserved) - (claim.reserved - left)
            if used > 0:
                account.held[claim.grant] -= used
                account.held_tokens -= used
                self._count(account, now, tokens=used)

    async def settle(self, claim: Claim) -> Standing:
        """As in Ledger."""
        account, now = self._account(claim.tenant)
        left = account.held.pop(claim.grant, None)
        if left is not None:
            account.held_tokens -= left
            self._count(account, now, tokens=max(0, claim.used - (claim.reserved - left)))
        return self._standing(account, now)

    async def aclose(self) -> None:
        """As in Ledger."""

    def _account(self, tenant: Tenant) -> tuple[_Account, float]:
        """The tenant's account without what counts no longer; and the time."""
        now = self._clock()
        account = self._accounts.setdefault(tenant.name, _Account())
        while account.slots and account.slots[0].until(self._minute) <= now:
            gone = account.slots.popleft()
            account.tokens -= gone.tokens
            account.requests -= gone.requests
        return account, now

    def _count(self, account: _Account, now: float, tokens: int = 0, requests: int = 0) -> None:
        second = int(now // SLOT)
        if not account.slots or account.slots[-1].second != second:
            account.slots.append(_Slot(second))
        account.slots[-1].tokens += tokens
        account.slots[-1].requests += requests
        account.tokens += tokens
        account.requests += requests

    def _refusal(self, account: _Account, claim: Claim, now: float) -> tuple[Over | None, float]:
        """Which limit is in the way, and for how long."""
        tenant = claim.tenant
        if (most := tenant.tokens_per_minute) is not None:
            if claim.reserved > most:
                return "size", 0.0
            if (excess := account.tokens + account.held_tokens + claim.reserved - most) > 0:
                return "tokens", self._until_gone(account, now, "tokens", excess)
        most = tenant.requests_per_minute
        if most is not None and account.requests >= most:
            return "requests", self._until_gone(
                account, now, "requests", account.requests + 1 - most
            )
        if tenant.concurrency is not None and len(account.held) >= tenant.concurrency:
            return "concurrency", SLOT
        return None, 0.0

    def _until_gone(
        self, account: _Account, now: float, what: Literal["tokens", "requests"], amount: int
    ) -> float:
        for slot in account.slots:
            amount -= getattr(slot, what)
            if amount <= 0:
                return slot.until(self._minute) - now
        return SLOT

    def _standing(
        self, account: _Account, now: float, over: Over | None = None, retry_after: float = 0.0
    ) -> Standing:
        last_tokens = next((one for one in reversed(account.slots) if one.tokens), None)
        last_request = next((one for one in reversed(account.slots) if one.requests), None)
        reset = max(
            last_tokens.until(self._minute) - now if last_tokens else 0.0,
            self._minute if account.held_tokens else 0.0,
        )
        return Standing(
            used=account.tokens,
            held=account.held_tokens,
            requests=account.requests,
            under_way=len(account.held),
            reset_tokens=reset,
            reset_requests=last_request.until(self._minute) - now if last_request else 0.0,
            over=over,
            retry_after=retry_after,
        )
