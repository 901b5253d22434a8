# SPDX-License-Identifier: Apache-2.0
"""The sizes of an engine, as the checkpoint allows them. Standard library only."""

from dataclasses import dataclass

from buildlib.checkpoint import Checkpoint
from buildlib.problems import BuildError
from buildlib.request import Limits


@dataclass(frozen=True)
class ResolvedLimits:
    """The `limits` object of the build result. Lengths are tokens, sizes GPUs."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    # Tokens in one step of the engine, over all its sequences.
    max_num_tokens: int
    max_beam_width: int = 1
    tp_size: int = 1
    pp_size: int = 1


def resolve_limits(
    limits: Limits, checkpoint: Checkpoint, *, default_max_num_tokens: int
) -> ResolvedLimits:
    """Return `limits` with what was left open filled in, from the checkpoint where it can.

    Raises:
        BuildError: the limits contradict each other or the checkpoint.
    """
    longest = checkpoint.max_position_embeddings
    max_seq_len = limits.max_seq_len or longest
    if max_seq_len > longest:
        raise BuildError(
            f"engine.max_seq_len is {max_seq_len}, and {checkpoint.folder} was trained for "
            f"{longest} tokens (max_position_embeddings)",
            remedy=f"Set engine.max_seq_len to {longest} or less.",
        )
    max_input_len = limits.max_input_len or max_seq_len - 1
    if not 1 <= max_input_len < max_seq_len:
        raise BuildError(
            f"engine.max_input_len is {max_input_len} with a max_seq_len of {max_seq_len}: "
            "no room is left for a single answer token",
            remedy="Keep engine.max_seq_len above engine.max_input_len (and at least 2).",
        )
    default = max(default_max_num_tokens, limits.max_batch_size)
    max_num_tokens = limits.max_num_tokens or default
    if max_num_tokens < limits.max_batch_size:
        raise BuildError(
            f"engine.max_num_tokens is {max_num_tokens}, below a max_batch_size of "
            f"{limits.max_batch_size}: one step could not give every request its token",
            remedy=f"Set engine.max_num_tokens to {limits.max_batch_size} or more.",
        )
    return ResolvedLimits(
        max_batch_size=limits.max_batch_size,
        max_input_len=max_input_len,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        max_beam_width=limits.max_beam_width,
        tp_size=limits.tp_size,
        pp_size=limits.pp_size,
    )
