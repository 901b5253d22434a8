# SPDX-License-Identifier: Apache-2.0
"""What two load tests were run with: the load, which must be equal, and what is compared by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.loadtest.analysis.summarise import Run

# Of the plan: when and where, another draw of the same load, and how much of it.
_CHANCE = ("schema", "endpoint.url", "started_at", "seed", "duration_seconds", "count", "slo")
_LOAD = "load"
# Of the facts: this run's own.
_OWN = ("started_at", "project", "scenario", "workers", "lost_workers", "stopped")
_PROMPTS = ("prompts", "file")


@dataclass(frozen=True)
class SettingDifference:
    """One field with its values, None where it is absent; `load`: of what was sent."""

    field: str
    left: Any
    right: Any
    load: bool


def between(left: Run, right: Run) -> list[SettingDifference]:
    """What differs between two runs: the load first."""
    differences = list(_different(_load(left), _load(right), load=True))
    names = ("seed", "duration_seconds", "count")
    chance = [{name: run.plan.get(name) for name in names} for run in (left, right)]
    differences += _different(*chance, load=False)
    return differences + list(_different(_circumstances(left), _circumstances(right), load=False))


def within(runs: Sequence[Run]) -> list[SettingDifference]:
    """What differs within a side, whose runs should be of one load on one server."""
    return [
        difference
        for run in runs[1:]
        for difference in between(runs[0], run)
        if difference.load or difference.field.startswith(("models.", "server."))
    ]


def explain(differences: Sequence[SettingDifference]) -> str:
    """The first few in a line."""
    shown = [f"{d.field}: {_value(d.left)} and {_value(d.right)}" for d in differences[:4]]
    more = len(differences) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _value(value: Any) -> str:
    return "nothing" if value is None else f"{value}"


def _load(run: Run) -> dict[str, Any]:
    fields = {name: value for name, value in _flat("", run.plan) if name not in _CHANCE}
    scenario = run.facts.get("scenario")
    return {f"{_LOAD}.{name}": value for name, value in fields.items()} | {
        f"{_LOAD}.scenario": scenario
    }


def _circumstances(run: Run) -> dict[str, Any]:
    return {
        name: value
        for name, value in _flat("", run.facts)
        if not name.startswith(_OWN) and name != "slo"
    }


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`value` as (dotted name, scalar) pairs; elements of lists by their name or number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            key = inner.get("name", number) if isinstance(inner, dict) else number
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _different(
    left: dict[str, Any], right: dict[str, Any], *, load: bool
) -> Iterator[SettingDifference]:
    for field in dict.fromkeys([*left, *right]):
        one, other = left.get(field), right.get(field)
        if one != other and not (field.endswith(_PROMPTS) and _same_content(one, other)):
            yield SettingDifference(field, one, other, load)


def _same_content(left: Any, right: Any) -> bool:
    """Whether two paths lead to equal files: a project may have been copied."""
    if not (isinstance(left, str) and isinstance(right, str)):
        return False
    try:
        return Path(left).read_bytes() == Path(right).read_bytes()
    except OSError:
        return False
