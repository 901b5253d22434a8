# SPDX-License-Identifier: Apache-2.0
"""The mock decoder as a textlib Engine, for `ours` and for `single`."""

from collections.abc import Sequence
from dataclasses import dataclass

from mockdecoder.steps import Pace, token_id
from textlib.engine.contract import StreamProgress
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.request_tensors import GenerationRequest


@dataclass(slots=True)
class _Sequence:
    first_prompt_id: int
    budget: int
    made: int = 0


class MockDecoder:
    """One id per sequence and step; a sequence ends with its budget."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._pace = Pace()
        self._sequences: dict[int, _Sequence] = {}

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        """Take a request in."""
        budget = request.sampling.max_tokens
        self._sequences[stream_id] = _Sequence(int(request.token_ids[0]), budget)

    def step(self) -> Sequence[StreamProgress]:
        """Wait for the tick, then give every sequence its next id."""
        self._pace.wait()
        progress = [self._advance(key, item) for key, item in self._sequences.items()]
        for item in progress:
            if item.finish:
                del self._sequences[item.stream_id]
        return progress

    def cancel(self, stream_id: int) -> None:
        """Forget a sequence."""
        self._sequences.pop(stream_id, None)

    def _advance(self, stream_id: int, sequence: _Sequence) -> StreamProgress:
        made = token_id(sequence.first_prompt_id, sequence.made, self._vocab_size)
        sequence.made += 1
        done = sequence.made >= sequence.budget
        return StreamProgress(stream_id, [made], FinishReason.LENGTH if done else FinishReason.NONE)
