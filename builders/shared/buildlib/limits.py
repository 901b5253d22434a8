# SPDX-License-Identifier: Apache-2.0
"""Resolves the size limits of an engine against its checkpoint. Standard library only."""

from dataclasses import asdict, dataclass, field

from buildlib.checkpoint import DecoderCheckpoint
from buildlib.problems import BuildError
from buildlib.request_types import RequestedLimits


@dataclass(frozen=True)
class ResolvedLimits(RequestedLimits):
    """The `limits` object of the build result. Every limit has a value."""

    # Without field() they would inherit None.
    max_input_len: int = field()
    max_seq_len: int = field()
    # Tokens in one step of the engine, over all its sequences.
    max_num_tokens: int = field()


def resolve_limits(
    limits: RequestedLimits, checkpoint: DecoderCheckpoint, *, default_max_num_tokens: int
) -> ResolvedLimits:
    """Return `limits` with the open values filled in, from the checkpoint where possible.

    Raises:
        BuildError: the limits contradict each other or the checkpoint.
    """
    if limits.max_batch_size < 1:
        raise BuildError(
            f"engine.max_batch_size is {limits.max_batch_size}, and an engine of text batches its "
            "sequences",
            remedy="Set engine.max_batch_size to 1 or more.",
        )
    trained_length = checkpoint.max_position_embeddings
    max_seq_len = limits.max_seq_len or trained_length
    if max_seq_len > trained_length:
        raise BuildError(
            f"engine.max_seq_len is {max_seq_len}, and {checkpoint.folder} was trained for "
            f"{trained_length} tokens (max_position_embeddings)",
            remedy=f"Set engine.max_seq_len to {trained_length} or less.",
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
    lengths = {
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "max_num_tokens": max_num_tokens,
    }
    return ResolvedLimits(**asdict(limits) | lengths)
