# SPDX-License-Identifier: Apache-2.0
"""A tenant: its limits and its priority."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TenantLimits:
    """One of `gateway.tenants`; without tenants, all clients together. None: no limit."""

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int | None = None  # Triton's: 1 goes first; None: the server's default level

    @property
    def unlimited(self) -> bool:
        """Whether the tenant has no limits."""
        limits = (self.requests_per_minute, self.tokens_per_minute, self.concurrency)
        return limits == (None, None, None)


ALL_CLIENTS = TenantLimits("")  # used if no tenants are configured
