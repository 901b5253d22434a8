# SPDX-License-Identifier: Apache-2.0
"""Compare the settings of two load tests: the load, which must be equal, and everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.loadtest.analysis.summarise import RecordedRun

# Plan fields that may differ: time and place, the draw of the load and its length.
_VARYING_PLAN_FIELDS = (
    "schema",
    "endpoint.url",
    "started_at",
    "seed",
    "duration_seconds",
    "count",
    "slo",
)
_LOAD = "load"
# Facts that belong to a single run.
_RUN_SPECIFIC_FACTS = ("started_at", "project", "scenario", "workers", "lost_workers", "stopped")
_PROMPTS = ("prompts", "file")


@dataclass(frozen=True)
class SettingDifference:
    """A field with different values on both sides; None means the field is missing."""

    field: str
    left: Any
    right: Any
    load: bool  # a field of the load, not of the environment


def setting_differences(baseline: RecordedRun, candidate: RecordedRun) -> list[SettingDifference]:
    """Return the differences between two runs, the load's first."""
    differences = list(
        _field_differences(_load_fields(baseline), _load_fields(candidate), load=True)
    )
    names = ("seed", "duration_seconds", "count")
    draws = [{name: run.plan.get(name) for name in names} for run in (baseline, candidate)]
    differences += _field_differences(*draws, load=False)
    return differences + list(
        _field_differences(
            _environment_fields(baseline), _environment_fields(candidate), load=False
        )
    )


def differences_within(runs: Sequence[RecordedRun]) -> list[SettingDifference]:
    """Return the differences within a side; its runs need the same load and server."""
    return [
        difference
        for run in runs[1:]
        for difference in setting_differences(runs[0], run)
        if difference.load or difference.field.startswith(("models.", "server."))
    ]


def summarise_differences(differences: Sequence[SettingDifference]) -> str:
    """Return the first four differences in one line."""
    displayed = [f"{d.field}: {_value(d.left)} and {_value(d.right)}" for d in differences[:4]]
    more = len(differences) - len(displayed)
    return "; ".join(displayed) + (f"; and {more} more" if more else "")


def _value(value: Any) -> str:
    return "nothing" if value is None else f"{value}"


def _load_fields(run: RecordedRun) -> dict[str, Any]:
    fields = {
        name: value for name, value in _flatten("", run.plan) if name not in _VARYING_PLAN_FIELDS
    }
    scenario = run.facts.get("scenario")
    return {f"{_LOAD}.{name}": value for name, value in fields.items()} | {
        f"{_LOAD}.scenario": scenario
    }


def _environment_fields(run: RecordedRun) -> dict[str, Any]:
    return {
        name: value
        for name, value in _flatten("", run.facts)
        if not name.startswith(_RUN_SPECIFIC_FACTS) and name != "slo"
    }


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, scalar) pairs of `value`; list elements by name or index."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            key = inner.get("name", number) if isinstance(inner, dict) else number
            yield from _flatten(f"{name}.{key}", inner)
    else:
        yield name, value


def _field_differences(
    baseline: dict[str, Any], candidate: dict[str, Any], *, load: bool
) -> Iterator[SettingDifference]:
    for field in dict.fromkeys([*baseline, *candidate]):
        baseline_value, candidate_value = baseline.get(field), candidate.get(field)
        if baseline_value != candidate_value and not (
            field.endswith(_PROMPTS) and _have_same_content(baseline_value, candidate_value)
        ):
            yield SettingDifference(field, baseline_value, candidate_value, load)


def _have_same_content(baseline: Any, candidate: Any) -> bool:
    """Whether two paths name files with equal content: a project may have been copied."""
    if not (isinstance(baseline, str) and isinstance(candidate, str)):
        return False
    try:
        return Path(baseline).read_bytes() == Path(candidate).read_bytes()
    except OSError:
        return False
