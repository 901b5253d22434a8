# SPDX-License-Identifier: Apache-2.0
"""Pools of replicas by request length: short requests do not wait behind long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaPool:
    """Servers for requests up to a length."""

    name: str
    upstreams: frozenset[str]
    max_tokens: int | None = None  # prompt and expected answer; None: any length


def pool_of(pools: Sequence[ReplicaPool], work: float) -> ReplicaPool | None:
    """Return the tightest pool that takes this work, else the widest; None without pools."""
    if not pools:
        return None
    return min(pools, key=lambda pool: (_bound(pool) < work, _tightness(pool, work)))


def _bound(pool: ReplicaPool) -> float:
    return float("inf") if pool.max_tokens is None else pool.max_tokens


def _tightness(pool: ReplicaPool, work: float) -> float:
    bound = _bound(pool)
    return bound if bound >= work else -bound
