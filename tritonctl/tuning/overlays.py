# SPDX-License-Identifier: Apache-2.0
"""What a knob's value writes below `models.<name>`, and which values are candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritonctl.repository.ensembles import ENGINE_STEP
from tritonctl.tuning.trials import Value


def in_serving(section: str, key: str, value: Value) -> dict[str, Any]:
    """A setting of a section of `serving`."""
    return {"serving": {section: {key: value}}}


def of_step(step: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Raw fields of a step's configuration."""
    return {"serving": {"config": {step: dict(fields)}}}


def of_parameter(key: str, text: str) -> dict[str, Any]:
    """A parameter of the engine step."""
    return of_step(ENGINE_STEP, {"parameters": {key: {"string_value": text}}})


def doubling(lowest: int, most: int) -> list[int]:
    """`lowest`, twice as much and so on, and `most` at the end."""
    values = []
    while lowest < most:
        values.append(lowest)
        lowest *= 2
    return [*values, most] if most > 0 else values


def halving(most: int, lowest: int) -> list[int]:
    """`most`, half as much and so on, down to `lowest`."""
    values = [most]
    while most // 2 >= lowest:
        most //= 2
        values.append(most)
    return values


def with_base(base: int, candidates: Sequence[int]) -> tuple[Value, ...]:
    """The candidates with today's value among them, in order."""
    return tuple(sorted({base, *candidates}))
