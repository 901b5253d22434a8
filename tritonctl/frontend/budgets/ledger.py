# SPDX-License-Identifier: Apache-2.0
"""The ledger of a tenant's minute: used tokens, and tokens reserved by running requests.

Every ledger follows one rule: it admits a request only if the tokens used in the last minute, the
tokens that running requests may still use, and the request's own fit into `tokens_per_minute`. Used
tokens count from the moment they are reported, which is never before they are generated. So a
tenant exceeds its limit in no minute (docs/explanation/token-budgets.md has the proof).

The ledger adds up the amounts of each second and counts them until a minute after that second's
end. So a minute lasts 60 to 61 seconds, and an account has at most 62 entries.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tritonctl.frontend.budgets.tenant import TenantLimits

MINUTE = 60.0
SLOT = 1.0
ExceededLimit = Literal["requests", "tokens", "size", "concurrency"]


@dataclass(frozen=True)
class AccountStatus:
    """An account after an operation; times in seconds from now."""

    used: int  # tokens of the last minute
    held: int  # tokens that running requests may still use
    requests: int  # admitted in the last minute
    in_flight: int
    reset_tokens: float
    reset_requests: float
    # The limit that refused the request. `size`: it does not fit into an empty minute either.
    exceeded: ExceededLimit | None = None
    # When the request fits, without other requests; 1 if that depends on running requests.
    retry_after: float = 0.0


@dataclass
class TokenClaim:
    """A request's reservation in a ledger."""

    tenant: TenantLimits
    grant: str
    reserved: int
    used: int = 0  # tokens so far; more than `reserved` only by mistake


class LedgerUnreachable(Exception):  # noqa: N818 - not always an error: a setting decides
    """The store does not answer."""


class TokenLedger(Protocol):
    """A store of accounts. Each operation is atomic."""

    lease: float  # seconds for which a claim lives without `renew`

    async def reserve(self, claim: TokenClaim) -> AccountStatus:
        """Reserve `claim.reserved` tokens, or set `exceeded`. Idempotent.

        Raises LedgerUnreachable: the reservation may exist until its lease ends.
        """

    async def renew(self, claims: Sequence[TokenClaim]) -> None:
        """Renew the leases and count `used` so far. Raises LedgerUnreachable."""

    async def settle(self, claim: TokenClaim) -> AccountStatus:
        """Count `used` and release the remaining tokens. Idempotent.

        Raises LedgerUnreachable.
        """

    async def aclose(self) -> None:
        """Close connections."""


@dataclass
class _Slot:
    second: int
    tokens: int = 0
    requests: int = 0

    def until(self, minute: float) -> float:
        """The time at which its amounts expire."""
        return (self.second + 1) * SLOT + minute


@dataclass
class _Account:
    slots: deque[_Slot] = field(default_factory=deque)
    held: dict[str, int] = field(default_factory=dict)  # tokens that each grant may still use
    tokens: int = 0
    requests: int = 0
    held_tokens: int = 0


class MemoryLedger:
    """A ledger in this process, for one frontend. It ends with its requests: no leases needed."""

    lease = float("inf")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, minute: float = MINUTE
    ) -> None:
        self._clock = clock
        self._minute = minute
        self._accounts: dict[str, _Account] = {}

    async def reserve(self, claim: TokenClaim) -> AccountStatus:
        """As in Ledger."""
        account, now = self._account(claim.tenant)
        if claim.grant in account.held:
            return self._status(account, now)
        exceeded, retry_after = self._exceeded_limit(account, claim, now)
        if exceeded is not None:
            return self._status(account, now, exceeded, retry_after)
        account.held[claim.grant] = claim.reserved
        account.held_tokens += claim.reserved
        self._count(account, now, requests=1)
        return self._status(account, now)

    async def renew(self, claims: Sequence[TokenClaim]) -> None:
        """As in Ledger."""
        for claim in claims:
            account, now = self._account(claim.tenant)
            remaining = account.held.get(claim.grant)
            if remaining is None:
                continue
            used = min(claim.used, claim.reserved) - (claim.reserved - remaining)
            if used > 0:
                account.held[claim.grant] -= used
                account.held_tokens -= used
                self._count(account, now, tokens=used)

    async def settle(self, claim: TokenClaim) -> AccountStatus:
        """As in Ledger."""
        account, now = self._account(claim.tenant)
        remaining = account.held.pop(claim.grant, None)
        if remaining is not None:
            account.held_tokens -= remaining
            self._count(account, now, tokens=max(0, claim.used - (claim.reserved - remaining)))
        return self._status(account, now)

    async def aclose(self) -> None:
        """As in Ledger."""

    def _account(self, tenant: TenantLimits) -> tuple[_Account, float]:
        """Return the tenant's account without expired amounts, and the current time."""
        now = self._clock()
        account = self._accounts.setdefault(tenant.name, _Account())
        while account.slots and account.slots[0].until(self._minute) <= now:
            expired = account.slots.popleft()
            account.tokens -= expired.tokens
            account.requests -= expired.requests
        return account, now

    def _count(self, account: _Account, now: float, tokens: int = 0, requests: int = 0) -> None:
        second = int(now // SLOT)
        if not account.slots or account.slots[-1].second != second:
            account.slots.append(_Slot(second))
        account.slots[-1].tokens += tokens
        account.slots[-1].requests += requests
        account.tokens += tokens
        account.requests += requests

    def _exceeded_limit(
        self, account: _Account, claim: TokenClaim, now: float
    ) -> tuple[ExceededLimit | None, float]:
        """Return the exceeded limit, and the seconds until it frees enough."""
        tenant = claim.tenant
        if (limit := tenant.tokens_per_minute) is not None:
            if claim.reserved > limit:
                return "size", 0.0
            if (excess := account.tokens + account.held_tokens + claim.reserved - limit) > 0:
                return "tokens", self._seconds_until_freed(account, now, "tokens", excess)
        limit = tenant.requests_per_minute
        if limit is not None and account.requests >= limit:
            return "requests", self._seconds_until_freed(
                account, now, "requests", account.requests + 1 - limit
            )
        if tenant.concurrency is not None and len(account.held) >= tenant.concurrency:
            return "concurrency", SLOT
        return None, 0.0

    def _seconds_until_freed(
        self, account: _Account, now: float, amount_name: Literal["tokens", "requests"], amount: int
    ) -> float:
        for slot in account.slots:
            amount -= getattr(slot, amount_name)
            if amount <= 0:
                return slot.until(self._minute) - now
        return SLOT

    def _status(
        self,
        account: _Account,
        now: float,
        exceeded: ExceededLimit | None = None,
        retry_after: float = 0.0,
    ) -> AccountStatus:
        last_tokens = next((slot for slot in reversed(account.slots) if slot.tokens), None)
        last_request = next((slot for slot in reversed(account.slots) if slot.requests), None)
        reset = max(
            last_tokens.until(self._minute) - now if last_tokens else 0.0,
            self._minute if account.held_tokens else 0.0,
        )
        return AccountStatus(
            used=account.tokens,
            held=account.held_tokens,
            requests=account.requests,
            in_flight=len(account.held),
            reset_tokens=reset,
            reset_requests=last_request.until(self._minute) - now if last_request else 0.0,
            exceeded=exceeded,
            retry_after=retry_after,
        )
