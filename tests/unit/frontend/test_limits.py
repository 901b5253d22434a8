# SPDX-License-Identifier: Apache-2.0
"""What a client reads of its limits."""

from __future__ import annotations

import pytest

from tritonctl.frontend.budgets.headers import format_duration, over_budget, rate_limits
from tritonctl.frontend.budgets.ledger import AccountStatus, ExceededLimit, TokenClaim
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.frontend.errors import Headers

ERIN = TenantLimits("erin", requests_per_minute=10, tokens_per_minute=1000, concurrency=4)


def standing(over: ExceededLimit | None = None, retry_after: float = 0.0) -> AccountStatus:
    """700 used, 200 held."""
    return AccountStatus(700, 200, 9, 2, 60.0, 12.25, over, retry_after)


def told(headers: Headers) -> dict[str, str]:
    """As text."""
    return {name.decode(): value.decode() for name, value in headers}


def test_headers_have_openai_s_names() -> None:
    """What is held does not remain; a limit that there is not is not told."""
    assert told(rate_limits(ERIN, standing())) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "12.25s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    assert rate_limits(TenantLimits("frank", concurrency=1), standing()) == ()


@pytest.mark.parametrize(
    ("over", "type_", "text"),
    [
        (
            "tokens",
            "tokens",
            "Limit 1000, Used 900, Requested 150. Please try again in 3.2s",
        ),
        ("requests", "requests", "Limit 10, Used 9, Requested 1. Please try again in 3.2s"),
        ("concurrency", "requests", "in flight: Limit 4, In flight 2. Please try again in 3.2s"),
    ],
)
def test_a_limit_that_passes(over: ExceededLimit, type_: str, text: str) -> None:
    """429, whole seconds to wait, what is used and what was asked."""
    refusal = over_budget(TokenClaim(ERIN, "g", 150), standing(over, 3.2))
    assert (refusal.status, refusal.type, refusal.code) == (429, type_, "rate_limit_exceeded")
    assert text in refusal.message
    assert told(refusal.headers)["retry-after"] == "4"
    assert told(refusal.headers)["x-ratelimit-remaining-tokens"] == "100"


def test_a_request_that_never_fits() -> None:
    """Nobody is told to come again: OpenAI's clients do not retry with this header."""
    refusal = over_budget(TokenClaim(ERIN, "g", 1001), standing("size"))
    assert "Limit 1000, Requested 1001" in refusal.message
    assert told(refusal.headers)["x-should-retry"] == "false"
    assert "retry-after" not in told(refusal.headers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.12, "120ms"), (0.0001, "1ms"), (1, "1s"), (59.9, "59.9s"), (61.5, "1m1.5s")],
)
def test_durations(seconds: float, text: str) -> None:
    """As OpenAI writes them."""
    assert format_duration(seconds) == text
