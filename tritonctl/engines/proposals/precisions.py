# SPDX-License-Identifier: Apache-2.0
"""Why a precision is proposed, and which other one this machine would be faster in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.engines.estimates.table import estimate_table
from tritonctl.host.resources import cpu_flags
from tritonctl.project.tasks import asked_task

_WHY = {
    "fp8": "half the memory of 16 bits, and nearly its answers",
    "bf16": "this GPU has no FP8 arithmetic, or the model asks for 16 bits",
    "int8": "a quarter of fp32's memory at nearly its answers; `evaluation:` measures yours",
    "int4": "int8 does not fit; `evaluation:` measures what it costs your answers",
    "fp32": "answers as the checkpoint's; int8 is faster, `--precision int8` proposes it",
}


def why_of(model: Mapping[str, Any]) -> str:
    """Of a model as the project file has it, for the machine that this is."""
    engine = model["engine"]
    why = _WHY.get(engine["precision"], "half of fp32's memory")
    figures = estimate_table().builders[engine["builder"]]
    faster = figures.faster.get(engine["precision"]) if asked_task(model["task"]) else None
    if faster is None or cpu_flags().isdisjoint(faster.flags):
        return why
    return f"{why}; `--precision {faster.precision}` makes {faster.why}"
