# SPDX-License-Identifier: Apache-2.0
"""What the engine's process tells at once and what it keeps for a while."""

import pytest
from textlib.engine.contract import StreamProgress
from textlib.engine.progress_batching import HeldProgress
from textlib.errors import EngineFailedError
from textlib.tokens.token_chunk import FinishReason

pytestmark = pytest.mark.timed

HOLD = 0.0025


class Steps:
    """Steps that make an id of each stream, so many seconds apart."""

    def __init__(self, hold: float = HOLD) -> None:
        self.now = 10.0
        self.progress = HeldProgress(hold, lambda: self.now)

    def told(
        self, *made: StreamProgress, seconds: float = 0.001, urgent: bool = False
    ) -> list[StreamProgress]:
        """What is told after such a step."""
        self.now += seconds
        return self.progress.take_due(made, urgent=urgent)


def test_first_ids_and_ends_go_at_once_with_all_that_is_held() -> None:
    """Of every stream one Progress, its ids in order."""
    steps = Steps()
    assert steps.told(StreamProgress(1, [1], log_probs=[-0.1])) == [
        StreamProgress(1, [1], log_probs=[-0.1])
    ]
    assert steps.told(StreamProgress(1, [2], log_probs=[-0.2])) == []
    assert steps.told(StreamProgress(1, [3], log_probs=[-0.3]), StreamProgress(2, [7])) == [
        StreamProgress(1, [2, 3], log_probs=[-0.2, -0.3]),
        StreamProgress(2, [7], log_probs=()),
    ]
    assert steps.told(StreamProgress(1, [4]), StreamProgress(2, [8])) == []
    assert steps.told(StreamProgress(1, [5], FinishReason.STOP)) == [
        StreamProgress(1, [4, 5], FinishReason.STOP, log_probs=[]),
        StreamProgress(2, [8]),
    ]
    assert steps.told(StreamProgress(2, [9])) == []
    error = EngineFailedError("full")
    assert steps.told(StreamProgress(2, [], error=error)) == [
        StreamProgress(2, [9], error=error, log_probs=[])
    ]


def test_nothing_is_held_for_longer() -> None:
    """However many ids there are; and nothing at all where steps take as long."""
    steps = Steps()
    steps.told(StreamProgress(1, [0]))
    told = [len(steps.told(StreamProgress(1, [number]))) for number in range(9)]
    assert told == [0, 0, 1] * 3
    assert steps.told(StreamProgress(1, [9]), seconds=HOLD) == [StreamProgress(1, [9])]


def test_without_an_interval_every_step_is_told() -> None:
    """`stream_interval_ms: 0`: each token alone."""
    steps = Steps(hold=0.0)
    assert [len(steps.told(StreamProgress(1, [number]))) for number in range(3)] == [1, 1, 1]


def test_streams_that_may_end_at_any_id_hold_nothing_back() -> None:
    """Until they have ended, by themselves or because nobody wants them."""
    steps = Steps()
    steps.progress.add_stop_word_stream(1)
    steps.progress.add_stop_word_stream(2)
    steps.told(StreamProgress(1, [0]), StreamProgress(2, [0]), StreamProgress(3, [0]))
    assert steps.told(StreamProgress(3, [1])) == [StreamProgress(3, [1])]
    steps.told(StreamProgress(1, [1], FinishReason.LENGTH))
    assert steps.told(StreamProgress(3, [2])) == [StreamProgress(3, [2])]
    steps.progress.forget(2)
    assert steps.told(StreamProgress(3, [3])) == []


def test_a_step_that_fails_takes_nothing_with_it() -> None:
    """What was made before is told with the failure."""
    steps = Steps()
    steps.told(StreamProgress(1, [0]))
    steps.told(StreamProgress(1, [1]))
    assert steps.told(urgent=True) == [StreamProgress(1, [1])]
    assert steps.told(urgent=True) == []
