# SPDX-License-Identifier: Apache-2.0
"""TC522 to TC529: the sequence batcher.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/architecture.md#stateful-models
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.streams import instances
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

_SECOND = 1_000_000


@advice(
    "TC522 sequences-soon-forgotten",
    summary="a sequence batcher that forgets a sequence within a second",
    why="The next request of a forgotten sequence is refused, as it has no START flag. "
    "Without max_sequence_idle_microseconds Triton takes one second.",
    answers=("server#3577", "server#6846"),
)
def soon_forgotten(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    if sequences.iterative_sequence:
        return
    idle = sequences.max_sequence_idle_microseconds
    # 0 is Triton's default, a second.
    if idle == 0 or idle < _SECOND:
        shown = f"{(idle or _SECOND) / 1000:g} ms"
        yield Hit(
            f"a sequence is forgotten when its next request does not come within {shown}",
            "set max_sequence_idle_microseconds to more than the longest pause of a client",
            config.name_span("sequence_batching", "max_sequence_idle_microseconds")
            if idle
            else config.name_span("sequence_batching"),
        )


@warning(
    "TC523 few-candidate-sequences",
    summary="fewer candidate sequences than `max_batch_size`",
    why="A batch has at most one request of a sequence, so that it never becomes larger than "
    "the number of sequences that are candidates.",
)
def few_candidates(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    if not sequences.HasField("oldest"):
        return
    candidates, most = sequences.oldest.max_candidate_sequences, config.message.max_batch_size
    if 0 < candidates < most:
        yield Hit(
            f"no batch becomes larger than {candidates}, though max_batch_size is {most}: it has "
            "one request of a sequence at most",
            f"raise max_candidate_sequences to {most} or more, or remove it",
            config.span("sequence_batching", "oldest", "max_candidate_sequences"),
        )


@advice(
    "TC524 one-sequence-at-a-time",
    summary="a sequence batcher with one place",
    why="A sequence keeps its place until it ends or has been idle for too long; meanwhile "
    "others wait.",
)
def one_at_a_time(
    config: ConfigMessage, sequences: Any, model: Model, repository: Repository
) -> Iterator[Hit]:
    if instances(model, repository.target) > 1:
        return
    places = max(1, config.message.max_batch_size)
    if sequences.HasField("oldest") and sequences.oldest.max_candidate_sequences:
        places = sequences.oldest.max_candidate_sequences
    if places == 1:
        yield Hit(
            "the model holds one sequence: a second one waits until the first has ended",
            "raise max_batch_size (or oldest.max_candidate_sequences), or the number of instances",
            config.name_span("sequence_batching"),
        )
