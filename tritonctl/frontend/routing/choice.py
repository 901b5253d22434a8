# SPDX-License-Identifier: Apache-2.0
"""The choice of a replica, as a pure function of what is known about all of them.

In this order: replicas of one's own release while any is healthy, the other release's otherwise;
among them those that are healthy and were not tried for this request; among them those of
the request's pool; among them the one that has the prompt's beginning in its cache, if it is not
busier than the others; else the one where the request begins first (docs/explanation/routing.md
says why that is so, and not the one with the least work).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

# An affine replica may have this share more than the mean of its rivals, and one request more.
_AFFINE_LOAD = 1.25
# And it may be so much slower than the typical one: a cache does not make up for more.
_AFFINE_PACE = 1.5
# A replica counts as slower or faster than the typical one at most by this: what has been learned
# of it may be wrong, and a replica that nobody asks can show nothing better.
MOST_APART = 16.0
# What a replica's queue counts for when its KV cache is full: running answers wait for each other.
_FULL = 4.0


class Reason(StrEnum):
    """Why this replica was chosen; a label of the metrics."""

    ONLY = "only"
    FIRST_FREE = "first_free"
    AFFINITY = "affinity"
    SPILLED = "spilled"  # no replica of its pool is healthy
    UNHEALTHY = "unhealthy"  # none at all is: it may have come back
    FALLBACK = "fallback"  # its own replicas are gone: the other release's has it


@dataclass(frozen=True, slots=True)
class View:
    """A replica at the moment of a choice.

    load: requests there, ours and others'. slots: requests that it answers at once; None where
    nobody knows. pace: seconds between two tokens of an answer there; None before any was seen.
    full: its KV cache is full, and requests wait for it. fallback: it serves another release, for
    when no other replica is healthy.
    """

    name: str
    healthy: bool = True
    load: float = 0.0
    slots: int | None = None
    pace: float | None = None
    full: bool = False
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. pool: the replicas that it should go to; None: any.

    cached: the replica that has lately read the prompt's beginning. tried: where it failed.
    """

    pool: Collection[str] | None = None
    cached: str | None = None
    tried: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica, and why."""

    name: str
    reason: Reason


def choose(views: Sequence[View], ask: Ask, draw: Callable[[], float]) -> Choice:
    """One of `views`, which are one or more. `draw`: a random number from 0 to 1, to break ties."""
    views, others = _by_release(views)
    if others and not any(view.healthy for view in views):
        untried = [view for view in others if view.name not in ask.tried] or others
        return Choice(_first_free(untried, draw).name, Reason.FALLBACK)
    if len(views) == 1:
        return Choice(views[0].name, Reason.ONLY)
    healthy = [view for view in views if view.healthy]
    candidates = [view for view in healthy or views if view.name not in ask.tried] or views
    if not healthy:
        return Choice(_first_free(candidates, draw).name, Reason.UNHEALTHY)
    candidates = [view for view in candidates if view.healthy] or healthy
    pool = [view for view in candidates if ask.pool is None or view.name in ask.pool]
    if pool and (affine := _affine(pool, ask.cached)):
        return Choice(affine.name, Reason.AFFINITY)
    reason = Reason.FIRST_FREE if pool else Reason.SPILLED
    return Choice(_first_free(pool or candidates, draw).name, reason)


def _by_release(views: Sequence[View]) -> tuple[Sequence[View], Sequence[View]]:
    """The replicas of one's own release, and the healthy ones of the other."""
    own = [view for view in views if not view.fallback]
    if not own:
        return views, ()
    return own, [view for view in views if view.fallback and view.healthy]


def _affine(candidates: Sequence[View], cached: str | None) -> View | None:
    for view in candidates:
        if view.name == cached:
            others = [other.load for other in candidates if other.name != cached]
            mean = sum(others) / len(others) if others else view.load
            busy = view.slots is not None and view.load >= view.slots
            slow = view.pace is not None and view.pace > _AFFINE_PACE * _typical(candidates)
            even = view.load <= _AFFINE_LOAD * mean + 1
            return view if even and not busy and not slow else None
    return None


def _typical(candidates: Sequence[View]) -> float:
    """The middle one of the paces that are known; 1 without any."""
    known = sorted(view.pace for view in candidates if view.pace is not None)
    return known[len(known) // 2] if known else 1.0


def _first_free(candidates: Sequence[View], draw: Callable[[], float]) -> View:
    """The one with the shortest wait for a slot, in its own time; least requests without slots."""
    typical = _typical(candidates)
    low, high = typical / MOST_APART, typical * MOST_APART
    by_slots = all(view.slots is not None for view in candidates)

    def cost(view: View) -> tuple[float, float, float]:
        pace = typical if view.pace is None else min(max(view.pace, low), high)
        load = view.load * (_FULL if view.full else 1.0)
        if view.slots is None or not by_slots:
            return load, pace, draw()
        wait = max(0.0, load + 1 - view.slots) / view.slots * pace
        return wait, (load + 1) * pace, draw()

    return min(candidates, key=cost)
