# SPDX-License-Identifier: Apache-2.0
"""The sizes of an engine, as trtllm-build settles them (tensorrt_llm/_common.py, builder.py).

Standard library only.
"""

import dataclasses
import math
from typing import Any

from build_options import Options
from buildlib.checkpoint import Checkpoint
from buildlib.limits import ResolvedLimits, resolve_limits
from buildlib.problems import read_json_object
from buildlib.request import Limits
from llm_arguments import DEFAULT_MAX_NUM_TOKENS

# The factor of these does not stretch max_position_embeddings (tensorrt_llm/builder.py).
_UNSTRETCHED = ("su", "longrope", "llama3")
_QUANTISE_AGAIN = "Quantise again: `tritonctl build --force`."


def size_engine(
    limits: Limits, checkpoint: Checkpoint, options: Options, draft_len: int
) -> ResolvedLimits:
    """Return the sizes of the engine, with what was left open filled in as the tool would.

    Raises:
        BuildError: they contradict each other or the checkpoint.
    """
    stretched = dataclasses.replace(
        checkpoint, max_position_embeddings=longest_sequence(checkpoint)
    )
    resolved = resolve_limits(limits, stretched, default_max_num_tokens=DEFAULT_MAX_NUM_TOKENS)
    if limits.max_num_tokens is None:
        resolved = dataclasses.replace(
            resolved, max_num_tokens=settled_tokens(resolved, options, draft_len)
        )
    return resolved


def settled_tokens(limits: ResolvedLimits, options: Options, draft_len: int) -> int:
    """Return what the tool makes of a max_num_tokens: equal, where the sizes go together.

    It clips to what a full batch can bring, and then raises to a prompt, or to a block where
    prompts may come in chunks; last, to the drafts of a full batch.
    """
    tokens = min(limits.max_num_tokens, limits.max_batch_size * limits.max_seq_len)
    chunks = options.enabled("context_fmha")
    tokens = max(tokens, options.number("tokens_per_block") if chunks else limits.max_input_len)
    if options.choice("speculative_decoding_mode"):
        tokens = max(tokens, limits.max_batch_size * (draft_len + 1))
    return tokens


def longest_sequence(checkpoint: Checkpoint) -> int:
    """Return max_position_embeddings, stretched by a linear position scaling."""
    config: dict[str, Any] = read_json_object(
        checkpoint.folder / "config.json", remedy=_QUANTISE_AGAIN
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    factor = float(rope.get("factor") or 1.0) if kind not in _UNSTRETCHED else 1.0
    return math.ceil(checkpoint.max_position_embeddings * factor)
