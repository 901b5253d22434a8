# SPDX-License-Identifier: Apache-2.0
"""Computes the sizes of an engine like trtllm-build (tensorrt_llm/_common.py, builder.py).

Standard library only.
"""

import dataclasses
import math
from typing import Any

from build_options import TrtllmBuildOptions
from buildlib.checkpoint import DecoderCheckpoint
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.problems import read_json_object
from buildlib.request_types import RequestedLimits
from llm_arguments import DEFAULT_MAX_NUM_TOKENS

# Their factor does not change max_position_embeddings (tensorrt_llm/builder.py).
_UNSTRETCHED = ("su", "longrope", "llama3")
_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


def size_engine(
    limits: RequestedLimits,
    checkpoint: DecoderCheckpoint,
    options: TrtllmBuildOptions,
    draft_len: int,
) -> ResolvedLimits:
    """Return the sizes of the engine with the tool's values for open ones.

    Raises:
        BuildError: the sizes contradict each other or the checkpoint.
    """
    stretched = dataclasses.replace(
        checkpoint, max_position_embeddings=max_sequence_length(checkpoint)
    )
    resolved = resolve_limits(limits, stretched, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS)
    if limits.max_num_tokens is None:
        resolved = dataclasses.replace(
            resolved, max_num_tokens=effective_max_num_tokens(resolved, options, draft_len)
        )
    return resolved


def effective_max_num_tokens(
    limits: ResolvedLimits, options: TrtllmBuildOptions, draft_len: int
) -> int:
    """Return the max_num_tokens that the tool uses. It is unchanged for consistent sizes.

    The tool clips it to the tokens of a full batch. Then it raises it to a prompt, or to a block if
    prompts may be chunked, and finally to the drafts of a full batch.
    """
    tokens = min(limits.max_num_tokens, limits.max_batch_size * limits.max_seq_len)
    chunks = options.is_enabled("context_fmha")
    tokens = max(tokens, options.number("tokens_per_block") if chunks else limits.max_input_len)
    if options.choice("speculative_decoding_mode"):
        tokens = max(tokens, limits.max_batch_size * (draft_len + 1))
    return tokens


def max_sequence_length(checkpoint: DecoderCheckpoint) -> int:
    """Return max_position_embeddings times the factor of a linear position scaling."""
    config: dict[str, Any] = read_json_object(
        checkpoint.folder / "config.json", remedy=_QUANTISE_AGAIN
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    factor = float(rope.get("factor") or 1.0) if kind not in _UNSTRETCHED else 1.0
    return math.ceil(checkpoint.max_position_embeddings * factor)
