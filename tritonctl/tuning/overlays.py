# SPDX-License-Identifier: Apache-2.0
"""Build the overlays that knob values write below `models.<name>`, and candidate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.repository.ensembles import ENGINE_STEP
from tritonctl.tuning.trials import Value


def serving_overlay(section: str, key: str, value: Value) -> dict[str, Any]:
    """Return an overlay for a setting in a section of `serving`."""
    return {"serving": {section: {key: value}}}


def step_overlay(step: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an overlay for raw fields of a step's configuration."""
    return {"serving": {"config": {step: dict(fields)}}}


def parameter_overlay(key: str, text: str) -> dict[str, Any]:
    """Return an overlay for a parameter of the engine step."""
    return step_overlay(ENGINE_STEP, {"parameters": {key: {"string_value": text}}})


def doubled_values(lowest: int, highest: int) -> list[int]:
    """Return `lowest`, doubled repeatedly, ending with `highest`."""
    values = []
    while lowest < highest:
        values.append(lowest)
        lowest *= 2
    return [*values, highest] if highest > 0 else values


def halved_values(highest: int, lowest: int) -> list[int]:
    """Return `highest`, halved repeatedly down to `lowest`."""
    values = [highest]
    while highest // 2 >= lowest:
        highest //= 2
        values.append(highest)
    return values


def include_base(base: int, candidates: Sequence[int]) -> tuple[Value, ...]:
    """Return the sorted candidates including the current value."""
    return tuple(sorted({base, *candidates}))
