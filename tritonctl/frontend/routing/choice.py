# SPDX-License-Identifier: Apache-2.0
"""Choose a replica: a pure function of the state of all replicas.

It filters in this order: replicas of the primary release, or of the fallback release if no primary
is healthy; healthy replicas that this request has not tried; replicas of the request's pool. Among
them it prefers the one with the prompt's prefix in its cache, unless that one is busier than the
others. Otherwise it takes the one where the request starts first (docs/explanation/routing.md
explains why not the one with the least work).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

# An affine replica may have this multiple of its rivals' mean load, plus one request.
_AFFINE_LOAD = 1.25
# It may be this much slower than the typical replica: a cache hit does not outweigh more.
_AFFINE_PACE = 1.5
# A replica counts as slower or faster than the typical one by this factor at most: its measured
# pace may be wrong, and a replica without requests cannot correct it.
MAX_PACE_RATIO = 16.0
# Load factor of a replica with a full KV cache, where running answers wait for each other.
_FULL = 4.0


class ChoiceReason(StrEnum):
    """Why a replica was chosen; a label of the metrics."""

    ONLY = "only"
    FIRST_FREE = "first_free"
    AFFINITY = "affinity"
    SPILLED = "spilled"  # no replica of its pool is healthy
    UNHEALTHY = "unhealthy"  # no replica is healthy: it may have recovered
    FALLBACK = "fallback"  # no primary is healthy: the replica serves the other release


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica's state at the moment of a choice."""

    name: str
    healthy: bool = True
    load: float = 0.0  # requests, of this frontend and others
    slots: int | None = None  # requests that it answers concurrently; None: unknown
    pace: float | None = None  # seconds between two tokens of an answer; None: unknown
    full: bool = False  # its KV cache is full, and requests wait for it
    fallback: bool = False  # it serves another release, used if no other replica is healthy


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """A request's routing constraints."""

    pool: Collection[str] | None = None  # preferred replicas; None: any
    cached: str | None = None  # the replica that recently read the prompt's prefix
    tried: Collection[str] = ()  # replicas where the request failed


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """The chosen replica and the reason."""

    name: str
    reason: ChoiceReason


def choose(
    views: Sequence[ReplicaView], request: RoutingRequest, draw: Callable[[], float]
) -> ReplicaChoice:
    """Choose one of `views`, at least one. `draw`: a random number from 0 to 1, breaks ties."""
    views, fallbacks = _split_by_release(views)
    if fallbacks and not any(view.healthy for view in views):
        untried = [view for view in fallbacks if view.name not in request.tried] or fallbacks
        return ReplicaChoice(_first_free(untried, draw).name, ChoiceReason.FALLBACK)
    if len(views) == 1:
        return ReplicaChoice(views[0].name, ChoiceReason.ONLY)
    healthy = [view for view in views if view.healthy]
    candidates = [view for view in healthy or views if view.name not in request.tried] or views
    if not healthy:
        return ReplicaChoice(_first_free(candidates, draw).name, ChoiceReason.UNHEALTHY)
    candidates = [view for view in candidates if view.healthy] or healthy
    pool = [view for view in candidates if request.pool is None or view.name in request.pool]
    if pool and (affine := _affine_replica(pool, request.cached)):
        return ReplicaChoice(affine.name, ChoiceReason.AFFINITY)
    reason = ChoiceReason.FIRST_FREE if pool else ChoiceReason.SPILLED
    return ReplicaChoice(_first_free(pool or candidates, draw).name, reason)


def _split_by_release(
    views: Sequence[ReplicaView],
) -> tuple[Sequence[ReplicaView], Sequence[ReplicaView]]:
    """Return the replicas of the primary release, and the healthy ones of the fallback."""
    primaries = [view for view in views if not view.fallback]
    if not primaries:
        return views, ()
    return primaries, [view for view in views if view.fallback and view.healthy]


def _affine_replica(candidates: Sequence[ReplicaView], cached: str | None) -> ReplicaView | None:
    for view in candidates:
        if view.name == cached:
            rival_loads = [rival.load for rival in candidates if rival.name != cached]
            mean = sum(rival_loads) / len(rival_loads) if rival_loads else view.load
            busy = view.slots is not None and view.load >= view.slots
            slow = view.pace is not None and view.pace > _AFFINE_PACE * _typical_pace(candidates)
            even = view.load <= _AFFINE_LOAD * mean + 1
            return view if even and not busy and not slow else None
    return None


def _typical_pace(candidates: Sequence[ReplicaView]) -> float:
    """Return the median of the known paces; 1 without any."""
    paces = sorted(view.pace for view in candidates if view.pace is not None)
    return paces[len(paces) // 2] if paces else 1.0


def _first_free(candidates: Sequence[ReplicaView], draw: Callable[[], float]) -> ReplicaView:
    """Return the replica with the shortest wait for a slot; without slots, the least loaded."""
    typical_pace = _typical_pace(candidates)
    low, high = typical_pace / MAX_PACE_RATIO, typical_pace * MAX_PACE_RATIO
    by_slots = all(view.slots is not None for view in candidates)

    def cost(view: ReplicaView) -> tuple[float, float, float]:
        pace = typical_pace if view.pace is None else min(max(view.pace, low), high)
        load = view.load * (_FULL if view.full else 1.0)
        if view.slots is None or not by_slots:
            return load, pace, draw()
        wait = max(0.0, load + 1 - view.slots) / view.slots * pace
        return wait, (load + 1) * pace, draw()

    return min(candidates, key=cost)
