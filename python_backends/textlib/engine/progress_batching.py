# SPDX-License-Identifier: Apache-2.0
"""Batch the progress that the engine's process sends to its stub.

A message costs both processes a system call, a context switch and JSON parsing. A stream's first
ids, its end and an error go at once, together with everything held; other ids go within `hold`
seconds. A step that takes longer is never held. Streams with stop words may end at any id, so
nothing is held while one is live.
"""

from collections.abc import Callable, Sequence

from textlib.engine.contract import StreamProgress

# Maximum delay, as a share of the seconds between two responses of a stream.
HOLD_SHARE = 0.25


class HeldProgress:
    """Progress that is not sent yet. hold: maximum seconds, 0: hold nothing. clock: monotonic."""

    def __init__(self, hold: float, clock: Callable[[], float]) -> None:
        self._hold, self._clock = hold, clock
        self._last_report = 0.0
        self._held: dict[int, StreamProgress] = {}
        self._started: set[int] = set()
        self._stop_word_streams: set[int] = set()

    def add_stop_word_stream(self, stream_id: int) -> None:
        """Add a stream with stop words: any of its ids may be the last."""
        self._stop_word_streams.add(stream_id)

    def forget(self, stream_id: int) -> None:
        """Drop a stream that has ended."""
        self._started.discard(stream_id)
        self._stop_word_streams.discard(stream_id)

    def take_due(
        self, step_progress: Sequence[StreamProgress], *, urgent: bool = False
    ) -> list[StreamProgress]:
        """Add the progress of a step, one entry per stream; return what to send now.

        urgent: send everything.
        """
        if not self._hold:
            return list(step_progress)
        urgent = urgent or bool(self._stop_word_streams)
        for item in step_progress:
            is_final = bool(item.finish or item.error)
            urgent |= is_final or item.stream_id not in self._started
            self._started.add(item.stream_id)
            if is_final:
                self.forget(item.stream_id)
            self._held[item.stream_id] = _merge(self._held.get(item.stream_id), item)
        now = self._clock()
        if not urgent and now < self._last_report + self._hold:
            return []
        self._last_report = now
        due_progress, self._held = list(self._held.values()), {}
        return due_progress


def _merge(earlier: StreamProgress | None, later: StreamProgress) -> StreamProgress:
    if earlier is None:
        return later
    return StreamProgress(
        later.stream_id,
        [*earlier.token_ids, *later.token_ids],
        later.finish,
        later.error,
        [*earlier.log_probs, *later.log_probs],
    )
