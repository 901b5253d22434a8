# SPDX-License-Identifier: Apache-2.0
"""A tenant: what it may have in any minute, at once, and before whom it is served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    """One of `gateway.tenants`, or everybody where there are none. None: without a limit.

    `priority`: Triton's, 1 goes first; None: the server's default level.
    """

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int | None = None

    @property
    def unlimited(self) -> bool:
        """Whether there is nothing to count."""
        limits = (self.requests_per_minute, self.tokens_per_minute, self.concurrency)
        return limits == (None, None, None)


EVERYBODY = Tenant("")  # where no tenants are configured
