# SPDX-License-Identifier: Apache-2.0
"""The tensors of the text-generation contract that TensorRT-LLM serves, in both worlds.

Names, types and shapes follow TensorRT-LLM's Triton backend (decision 4).
"""

from typing import Any

_INPUTS = (
    ("input_ids", "TYPE_INT32", (-1,)),
    ("input_lengths", "TYPE_INT32", (1,)),
    ("request_output_len", "TYPE_INT32", (1,)),
    ("end_id", "TYPE_INT32", (-1,)),
    ("temperature", "TYPE_FP32", (1,)),
    ("runtime_top_k", "TYPE_INT32", (1,)),
    ("runtime_top_p", "TYPE_FP32", (1,)),
    ("repetition_penalty", "TYPE_FP32", (1,)),
    ("presence_penalty", "TYPE_FP32", (1,)),
    ("frequency_penalty", "TYPE_FP32", (1,)),
    ("seed", "TYPE_UINT64", (1,)),
    ("min_tokens", "TYPE_INT32", (1,)),
    ("streaming", "TYPE_BOOL", (1,)),
    ("return_log_probs", "TYPE_BOOL", (1,)),
)
_OUTPUTS = (
    ("output_ids", "TYPE_INT32", (-1, -1)),
    ("sequence_length", "TYPE_INT32", (-1,)),
    ("cum_log_probs", "TYPE_FP32", (-1,)),
    ("output_log_probs", "TYPE_FP32", (-1, -1)),
)


def text_generation_tensors() -> dict[str, list[dict[str, Any]]]:
    """Return the `tensors` object of the build result."""
    return {"inputs": _specs(_INPUTS), "outputs": _specs(_OUTPUTS)}


def _specs(rows: tuple[tuple[str, str, tuple[int, ...]], ...]) -> list[dict[str, Any]]:
    return [{"name": name, "data_type": kind, "dims": list(dims)} for name, kind, dims in rows]
