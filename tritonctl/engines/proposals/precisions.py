# SPDX-License-Identifier: Apache-2.0
"""The precisions that `init` proposes for text generation, and the reasons for a precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.engines.estimates.table import estimate_table
from tritonctl.host.resources import cpu_flags
from tritonctl.project.tasks import task_for_builder

# By builder, in order: the first that the device supports and has memory for.
DECODER_PRECISIONS = {"openvino": ("int8", "int4"), "tensorrt_llm": ("fp8", "bf16", "fp16")}
_REASONS = {
    "fp8": "half the memory of 16 bits with nearly equal answers",
    "bf16": "this GPU has no FP8 arithmetic, or the model needs 16 bits",
    "int8": "a quarter of fp32's memory with nearly equal answers; `evaluation:` measures yours",
    "int4": "int8 does not fit; `evaluation:` measures the effect on your answers",
    "fp32": "the checkpoint's exact answers; int8 is faster: `--precision int8`",
}


def precision_reason(model: Mapping[str, Any]) -> str:
    """Return the reason for the precision of a model's project-file entry on this machine."""
    engine = model["engine"]
    reason = _REASONS.get(engine["precision"], "half of fp32's memory")
    figures = estimate_table().builders[engine["builder"]]
    faster = figures.faster.get(engine["precision"]) if task_for_builder(model["task"]) else None
    if faster is None or cpu_flags().isdisjoint(faster.flags):
        return reason
    return f"{reason}; `--precision {faster.precision}` makes {faster.why}"
