# SPDX-License-Identifier: Apache-2.0
"""TC522 to TC529: the sequence batcher.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/architecture.md#stateful-models
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonctl.checks.analysis.streams import min_instances
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning

_SECOND = 1_000_000


@advice(
    "TC522 sequences-soon-forgotten",
    summary="a sequence batcher that forgets a sequence within a second",
    reason="Triton refuses the next request of a forgotten sequence, because it has no START flag. "
    "The default of max_sequence_idle_microseconds is one second.",
    answers=("server#3577", "server#6846"),
)
def short_idle_time(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    if sequences.iterative_sequence:
        return
    idle = sequences.max_sequence_idle_microseconds
    # 0 is Triton's default, a second.
    if idle == 0 or idle < _SECOND:
        idle_text = f"{(idle or _SECOND) / 1000:g} ms"
        yield Hit(
            f"a sequence is forgotten when its next request does not come within {idle_text}",
            "set max_sequence_idle_microseconds to more than the longest pause of a client",
            config.name_span("sequence_batching", "max_sequence_idle_microseconds")
            if idle
            else config.name_span("sequence_batching"),
        )


@warning(
    "TC523 few-candidate-sequences",
    summary="fewer candidate sequences than `max_batch_size`",
    reason="A batch has at most one request per sequence, so it is never larger than the number of "
    "candidate sequences.",
)
def few_candidates(config: ConfigMessage, sequences: Any) -> Iterator[Hit]:
    if not sequences.HasField("oldest"):
        return
    candidates, max_batch_size = (
        sequences.oldest.max_candidate_sequences,
        config.message.max_batch_size,
    )
    if 0 < candidates < max_batch_size:
        yield Hit(
            f"no batch becomes larger than {candidates}, though max_batch_size is "
            f"{max_batch_size}: it has "
            "one request of a sequence at most",
            f"raise max_candidate_sequences to {max_batch_size} or more, or remove it",
            config.span("sequence_batching", "oldest", "max_candidate_sequences"),
        )


@advice(
    "TC524 one-sequence-at-a-time",
    summary="a sequence batcher with one slot",
    reason="A sequence keeps its slot until it ends or has been idle for too long. Meanwhile other "
    "sequences wait.",
)
def one_at_a_time(
    config: ConfigMessage, sequences: Any, model: Model, repository: Repository
) -> Iterator[Hit]:
    if min_instances(model, repository.target) > 1:
        return
    slots = max(1, config.message.max_batch_size)
    if sequences.HasField("oldest") and sequences.oldest.max_candidate_sequences:
        slots = sequences.oldest.max_candidate_sequences
    if slots == 1:
        yield Hit(
            "the model holds one sequence: a second one waits until the first has ended",
            "raise max_batch_size (or oldest.max_candidate_sequences), or the number of instances",
            config.name_span("sequence_batching"),
        )
