# SPDX-License-Identifier: Apache-2.0
"""What a client is told of its limits: OpenAI's headers, on every answer, and OpenAI's error."""

from __future__ import annotations

import math

from tritonctl.frontend.budgets.ledger import Claim, Standing
from tritonctl.frontend.budgets.tenant import Tenant
from tritonctl.frontend.errors import SERVER, ApiError, Headers

_CODE = "rate_limit_exceeded"
_WORDS = {"tokens": "tokens per min (TPM)", "requests": "requests per min (RPM)"}


def stranger() -> ApiError:
    """401: no key, or none that counts."""
    return ApiError(
        401,
        "Incorrect API key provided. Send yours as `authorization: Bearer KEY`.",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def unreachable() -> ApiError:
    """503: nobody can say what is left."""
    return ApiError(
        503,
        "The store of token budgets cannot be reached. Try again soon.",
        type=SERVER,
        code="budgets_unavailable",
        headers=((b"retry-after", b"1"),),
    )


def rate_limits(tenant: Tenant, standing: Standing) -> Headers:
    """`x-ratelimit-*` of those limits that the tenant has. What is held does not remain."""
    told: dict[str, str] = {}
    parts = (
        ("requests", tenant.requests_per_minute, standing.requests, standing.reset_requests),
        ("tokens", tenant.tokens_per_minute, standing.used + standing.held, standing.reset_tokens),
    )
    for what, most, spent, reset in parts:
        if most is not None:
            told[f"x-ratelimit-limit-{what}"] = str(most)
            told[f"x-ratelimit-remaining-{what}"] = str(max(0, most - spent))
            told[f"x-ratelimit-reset-{what}"] = duration(reset)
    return tuple((name.encode(), value.encode()) for name, value in told.items())


def over_budget(claim: Claim, standing: Standing) -> ApiError:
    """429: which limit, what is used of it, and when to come again, if ever."""
    tenant, over = claim.tenant, standing.over
    headers = rate_limits(tenant, standing)
    if over == "size":
        # No waiting helps, so that clients must not retry: OpenAI's do by themselves.
        return ApiError(
            429,
            f"Request too large on tokens per min (TPM): Limit {tenant.tokens_per_minute}, "
            f"Requested {claim.reserved}. The prompt and `max_tokens` of all choices must fit; "
            "ask for fewer.",
            type="tokens",
            code=_CODE,
            headers=(*headers, (b"x-should-retry", b"false")),
        )
    wait = str(max(1, math.ceil(standing.retry_after)))
    headers = (*headers, (b"retry-after", wait.encode()))
    again = f"Please try again in {duration(standing.retry_after)}."
    if over == "concurrency":
        message = (
            f"Rate limit reached on requests in flight: Limit {tenant.concurrency}, "
            f"In flight {standing.under_way}. {again}"
        )
        return ApiError(429, message, type="requests", code=_CODE, headers=headers)
    if over == "tokens":
        most, spent, asked = tenant.tokens_per_minute, standing.used + standing.held, claim.reserved
    else:
        over, most, spent, asked = "requests", tenant.requests_per_minute, standing.requests, 1
    message = (
        f"Rate limit reached on {_WORDS[over]}: Limit {most}, Used {spent}, "
        f"Requested {asked}. {again}"
    )
    return ApiError(429, message, type=over, code=_CODE, headers=headers)


def duration(seconds: float) -> str:
    """As OpenAI writes it, rounded up to milliseconds: 120ms, 1.5s, 1m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
