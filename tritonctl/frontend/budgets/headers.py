# SPDX-License-Identifier: Apache-2.0
"""Rate limit headers for every answer, and the errors of keys and limits, as OpenAI has them."""

from __future__ import annotations

import math

from tritonctl.frontend.budgets.ledger import AccountStatus, TokenClaim
from tritonctl.frontend.budgets.tenant import TenantLimits
from tritonctl.frontend.errors import SERVER, ApiError, Headers

_CODE = "rate_limit_exceeded"
_WORDS = {"tokens": "tokens per min (TPM)", "requests": "requests per min (RPM)"}


def invalid_api_key() -> ApiError:
    """401: the key is missing or unknown."""
    return ApiError(
        401,
        "Incorrect API key provided. Send yours as `authorization: Bearer KEY`.",
        code="invalid_api_key",
        headers=((b"www-authenticate", b"Bearer"),),
    )


def ledger_unreachable() -> ApiError:
    """503: the remaining budget is unknown."""
    return ApiError(
        503,
        "The store of token budgets cannot be reached. Try again soon.",
        type=SERVER,
        code="budgets_unavailable",
        headers=((b"retry-after", b"1"),),
    )


def rate_limits(tenant: TenantLimits, status: AccountStatus) -> Headers:
    """`x-ratelimit-*` of the tenant's limits. Reserved tokens do not count as remaining."""
    headers: dict[str, str] = {}
    parts = (
        ("requests", tenant.requests_per_minute, status.requests, status.reset_requests),
        ("tokens", tenant.tokens_per_minute, status.used + status.held, status.reset_tokens),
    )
    for limit_name, limit, spent, reset in parts:
        if limit is not None:
            headers[f"x-ratelimit-limit-{limit_name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{limit_name}"] = str(max(0, limit - spent))
            headers[f"x-ratelimit-reset-{limit_name}"] = format_duration(reset)
    return tuple((name.encode(), value.encode()) for name, value in headers.items())


def over_budget(claim: TokenClaim, status: AccountStatus) -> ApiError:
    """429: the exceeded limit, its usage, and when to retry, if at all."""
    tenant, exceeded = claim.tenant, status.exceeded
    headers = rate_limits(tenant, status)
    if exceeded == "size":
        # Waiting does not help. OpenAI's clients would retry, so forbid it.
        return ApiError(
            429,
            f"Request too large on tokens per min (TPM): Limit {tenant.tokens_per_minute}, "
            f"Requested {claim.reserved}. The prompt and `max_tokens` of all choices must fit; "
            "ask for fewer.",
            type="tokens",
            code=_CODE,
            headers=(*headers, (b"x-should-retry", b"false")),
        )
    wait = str(max(1, math.ceil(status.retry_after)))
    headers = (*headers, (b"retry-after", wait.encode()))
    retry_hint = f"Please try again in {format_duration(status.retry_after)}."
    if exceeded == "concurrency":
        message = (
            f"Rate limit reached on requests in flight: Limit {tenant.concurrency}, "
            f"In flight {status.in_flight}. {retry_hint}"
        )
        return ApiError(429, message, type="requests", code=_CODE, headers=headers)
    if exceeded == "tokens":
        limit, spent, requested = (
            tenant.tokens_per_minute,
            status.used + status.held,
            claim.reserved,
        )
    else:
        exceeded, limit, spent, requested = (
            "requests",
            tenant.requests_per_minute,
            status.requests,
            1,
        )
    message = (
        f"Rate limit reached on {_WORDS[exceeded]}: Limit {limit}, Used {spent}, "
        f"Requested {requested}. {retry_hint}"
    )
    return ApiError(429, message, type=exceeded, code=_CODE, headers=headers)


def format_duration(seconds: float) -> str:
    """Format as OpenAI does, rounded up to milliseconds: 120ms, 1.5s, 1m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    minutes, remainder = divmod(milliseconds, 60_000)
    text = f"{remainder / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{text}s" if minutes else f"{text}s"
