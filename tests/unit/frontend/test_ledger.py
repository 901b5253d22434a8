# SPDX-License-Identifier: Apache-2.0
"""The ledger of one frontend: everything that can happen, with injected time."""

from __future__ import annotations

import asyncio

from tests.examples import examples
from tests.ledger_machine import LedgerMachine
from tritonctl.frontend.budgets.ledger import AccountStatus, MemoryLedger, TokenClaim, TokenLedger
from tritonctl.frontend.budgets.tenant import TenantLimits

DAVE = TenantLimits("dave", requests_per_minute=3, tokens_per_minute=100, concurrency=2)


class InMemory(LedgerMachine):
    """The ledger in the process."""

    def made_ledger(self) -> TokenLedger:
        """Reads self.now."""
        return MemoryLedger(self.clock)


InMemory.TestCase.settings = examples(400)
TestInMemory = InMemory.TestCase


class Timed:
    """A ledger in memory whose time stands still unless told."""

    def __init__(self) -> None:
        self.now = 500.25
        self.ledger = MemoryLedger(lambda: self.now)
        self.made = 0

    def reserve(self, tokens: int) -> tuple[TokenClaim, AccountStatus]:
        """For Dave."""
        self.made += 1
        claim = TokenClaim(DAVE, f"g{self.made}", tokens)
        return claim, asyncio.run(self.ledger.reserve(claim))

    def settle(self, claim: TokenClaim, used: int) -> AccountStatus:
        """With so many tokens."""
        claim.used = used
        return asyncio.run(self.ledger.settle(claim))


def test_to_the_last_token() -> None:
    """The whole budget is given out, and not one token more."""
    timed = Timed()
    assert timed.reserve(60)[1].exceeded is None
    assert timed.reserve(41)[1].exceeded == "tokens"
    assert timed.reserve(40)[1].exceeded is None


def test_what_is_not_used_comes_back_at_once() -> None:
    """The refund is there for the next request."""
    timed = Timed()
    claim, _ = timed.reserve(100)
    assert timed.settle(claim, 7) == AccountStatus(7, 0, 1, 0, 60.75, 60.75)
    assert timed.reserve(93)[1].exceeded is None


def test_used_tokens_count_for_a_minute_after_they_were_made() -> None:
    """Not from admission on: a long answer would be forgotten while it is still made."""
    timed = Timed()
    claim, _ = timed.reserve(100)
    timed.now += 59
    timed.settle(claim, 100)
    timed.now += 59
    refused = timed.reserve(1)[1]
    assert (refused.exceeded, refused.retry_after) == ("tokens", 1.75)
    timed.now += refused.retry_after
    assert timed.reserve(100)[1].exceeded is None


def test_progress_moves_tokens_from_held_to_used() -> None:
    """So that a stream's first tokens are gone a minute later although it goes on."""
    timed = Timed()
    claim, _ = timed.reserve(100)
    claim.used = 40
    asyncio.run(timed.ledger.renew([claim]))
    timed.now += 61
    _, standing = timed.reserve(40)
    assert (standing.exceeded, standing.used, standing.held) == (None, 0, 100)
    assert timed.settle(claim, 50).used == 10


def test_each_limit_says_when_to_come_again() -> None:
    """Too large: never; requests: when the first leaves; concurrency: a moment."""
    timed = Timed()
    assert (timed.reserve(101)[1].exceeded, timed.reserve(101)[1].retry_after) == ("size", 0.0)
    first, _ = timed.reserve(1)
    second, _ = timed.reserve(1)
    assert timed.reserve(1)[1].exceeded == "concurrency"
    timed.settle(first, 0)
    timed.now += 2
    third, _ = timed.reserve(1)
    timed.settle(second, 0)
    timed.settle(third, 0)
    refused = timed.reserve(1)[1]
    assert (refused.exceeded, refused.retry_after, refused.reset_requests) == (
        "requests",
        58.75,
        60.75,
    )


def test_more_than_reserved_is_counted_all_the_same() -> None:
    """A wrong count of the prompt is told by the server, and stands in the account."""
    timed = Timed()
    claim, _ = timed.reserve(10)
    assert timed.settle(claim, 130).used == 130
