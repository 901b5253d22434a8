# SPDX-License-Identifier: Apache-2.0
"""The nesting order of ensembles, and ensembles that contain themselves.

The functions do not recurse: a repository may hold a chain of thousands of ensembles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tritonctl.checks.memoize import memoized
from tritonctl.checks.repository import Model, Repository

# More names do not fit into a message.
MAX_REPORTED_CYCLE = 8


def step_models(model: Model) -> list[str]:
    """Return the names of an ensemble's models in step order."""
    return [step.model_name for step in model.config.message.ensemble_scheduling.step]


def innermost_first(repository: Repository) -> list[str]:
    """Return the ensembles, each after those it contains, without those that contain a cycle."""
    inner = _ensembles_in_each(repository)
    outer: dict[str, list[str]] = {name: [] for name in inner}
    for name, names in inner.items():
        for neighbor in names:
            outer[neighbor].append(name)
    pending = {name: len(names) for name, names in inner.items()}
    order = [name for name, count in pending.items() if not count]
    for name in order:
        for neighbor in outer[name]:
            pending[neighbor] -= 1
            if not pending[neighbor]:
                order.append(neighbor)
    return order


def containment_cycle(model: Model, repository: Repository) -> tuple[str, ...]:
    """Return the cycle through which an ensemble contains itself, its name first and last; or ().

    For a long cycle, return only the next members: all members share the cycle.
    """
    long_cycles: dict[str, tuple[list[str], int]] = memoized(repository, "long circles", dict)
    name = model.name
    if name not in long_cycles:
        inner = memoized(repository, "unsound", lambda: _ensembles_around_cycles(repository))
        cycle = shortest_path(name, name, lambda outer: sorted(inner.get(outer, ())))
        if len(cycle) <= MAX_REPORTED_CYCLE:
            return tuple(cycle)
        ring = cycle[:-1]
        for offset, member in enumerate(ring):
            long_cycles.setdefault(member, (ring, offset))
    ring, offset = long_cycles[name]
    return (*(ring[(offset + i) % len(ring)] for i in range(MAX_REPORTED_CYCLE)), name)


def _ensembles_around_cycles(repository: Repository) -> dict[str, set[str]]:
    """Map each ensemble that lies in a cycle or contains one to the ensembles in it."""
    sound = set(innermost_first(repository))
    inner = _ensembles_in_each(repository)
    return {name: names for name, names in inner.items() if name not in sound}


def shortest_path(start: str, end: str, neighbors: Callable[[str], Iterable[str]]) -> list[str]:
    """Return the shortest path from start to end, both included; [] if none exists.

    The path has at least one step: it is a cycle if start and end are the same.
    """
    predecessors: dict[str, str] = {}
    queue = [start]
    for name in queue:
        for neighbor in neighbors(name):
            if neighbor == end:
                path = [end, name]
                while path[-1] != start:
                    path.append(predecessors[path[-1]])
                return path[::-1]
            if neighbor not in predecessors and neighbor != start:
                predecessors[neighbor] = name
                queue.append(neighbor)
    return []


def _ensembles_in_each(repository: Repository) -> dict[str, set[str]]:
    ensembles = {name: m for name, m in repository.models.items() if m.backend == "ensemble"}
    return {
        name: {inner_name for inner_name in step_models(m) if inner_name in ensembles}
        for name, m in ensembles.items()
    }
