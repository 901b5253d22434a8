# SPDX-License-Identifier: Apache-2.0
"""Pools of replicas by a request's length: short ones do not wait behind long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """Servers for requests of at most `most_tokens`, prompt and expected answer; None: any."""

    name: str
    upstreams: frozenset[str]
    most_tokens: int | None = None


def pool_of(pools: Sequence[Pool], work: float) -> Pool | None:
    """The tightest pool that takes this work; the widest when none does, None without pools."""
    if not pools:
        return None
    return min(pools, key=lambda pool: (_bound(pool) < work, _tightness(pool, work)))


def _bound(pool: Pool) -> float:
    return float("inf") if pool.most_tokens is None else pool.most_tokens


def _tightness(pool: Pool, work: float) -> float:
    bound = _bound(pool)
    return bound if bound >= work else -bound
