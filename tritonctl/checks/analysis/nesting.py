# SPDX-License-Identifier: Apache-2.0
"""Ensembles inside each other: which come first, and which contain themselves.

Nothing here recurses: a repository may hold a chain of thousands.
"""

from __future__ import annotations

from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository

# Of more, the names do not fit into a message.
LONG_CIRCLE = 8


def models_in(model: Model) -> list[str]:
    """The names of an ensemble's models, step by step."""
    return [step.model_name for step in model.config.message.ensemble_scheduling.step]


def inside_out(repository: Repository) -> list[str]:
    """The ensembles, each behind those that it contains; without those that a circle is in."""
    inner = _ensembles_in_each(repository)
    outer: dict[str, list[str]] = {name: [] for name in inner}
    for name, names in inner.items():
        for one in names:
            outer[one].append(name)
    left = {name: len(names) for name, names in inner.items()}
    order = [name for name, count in left.items() if not count]
    for name in order:
        for one in outer[name]:
            left[one] -= 1
            if not left[one]:
                order.append(one)
    return order


def circle(model: Model, repository: Repository) -> tuple[str, ...]:
    """The ensembles by which this one contains itself, its own name first and last; or nothing.

    Of those in a long circle only the next ones: each has the same.
    """
    known: dict[str, tuple[list[str], int]] = memoized(repository, "long circles", dict)
    name = model.name
    if name not in known:
        way = _circle(name, memoized(repository, "unsound", lambda: _unsound(repository)))
        if len(way) <= LONG_CIRCLE:
            return way
        ring = list(way[:-1])
        for at, one in enumerate(ring):
            known.setdefault(one, (ring, at))
    ring, at = known[name]
    return (*(ring[(at + i) % len(ring)] for i in range(LONG_CIRCLE)), name)


def _unsound(repository: Repository) -> dict[str, set[str]]:
    """The ensembles in each of those that lie in a circle, or around one."""
    sound = set(inside_out(repository))
    inner = _ensembles_in_each(repository)
    return {name: names for name, names in inner.items() if name not in sound}


def _circle(start: str, inner: dict[str, set[str]]) -> tuple[str, ...]:
    outer: dict[str, str] = {}
    waiting = [start]
    for name in waiting:
        for one in sorted(inner.get(name, ())):
            if one == start:
                return (*way_back(name, start, outer), start)
            if one not in outer:
                outer[one] = name
                waiting.append(one)
    return ()


def way_back(end: str, start: str, before: dict[str, str]) -> list[str]:
    """From start to end, by what comes before each."""
    way = [end]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


def _ensembles_in_each(repository: Repository) -> dict[str, set[str]]:
    ensembles = {name: m for name, m in repository.models.items() if m.backend == "ensemble"}
    return {
        name: {one for one in models_in(m) if one in ensembles} for name, m in ensembles.items()
    }
