# SPDX-License-Identifier: Apache-2.0
"""The sizes of an engine, as the checkpoint allows them. Standard library only."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from buildlib.builder_toml import read_description
from buildlib.checkpoint import Checkpoint
from buildlib.problems import BuildError
from buildlib.request import Limits


@dataclass(frozen=True)
class ResolvedLimits(Limits):
    """The `limits` object of the build result: nothing is left open."""

    # field(): without it they would inherit None.
    max_input_len: int = field()
    max_seq_len: int = field()
    # Tokens in one step of the engine, over all its sequences.
    max_num_tokens: int = field()


def require_single(limits: Limits, builder: Path) -> None:
    """Raise BuildError for limits above 1 that builder.toml lists under `[single]`, with why."""
    description = read_description(builder)
    for key, reason in description["single"].items():
        value = getattr(limits, key)
        if value != 1:
            raise BuildError(
                f"engine.{key} is {value}, and the {description['name']} builder supports only 1: "
                f"{reason}",
                remedy=f"Remove engine.{key}, or generate text on GPUs with the tensorrt_llm "
                "builder.",
            )


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
    lengths = {
        "max_input_len": max_input_len,
        "max_seq_len": max_seq_len,
        "max_num_tokens": max_num_tokens,
    }
    return ResolvedLimits(**asdict(limits) | lengths)
