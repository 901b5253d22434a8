# SPDX-License-Identifier: Apache-2.0
"""What the engine's process tells its stub, and when: no more often than streams send.

A message costs both processes a system call, a switch and a walk through JSON. A stream's first
ids, its end and an error go at once, with all that is held; other ids within `hold`. A step that
takes longer than that is never held. Streams with stop words may end at any id: nothing is held
while one lives.
"""

from collections.abc import Callable, Sequence

from textlib.engine_contract import Progress

# Of the seconds between two responses of a stream: so much later may one of them be.
HOLD_SHARE = 0.25


class HeldProgress:
    """`hold`: seconds at most, 0 for nothing. `clock`: seconds that never go back."""

    def __init__(self, hold: float, clock: Callable[[], float]) -> None:
        self._hold, self._clock = hold, clock
        self._told = 0.0
        self._held: dict[int, Progress] = {}
        self._begun: set[int] = set()
        self._watched: set[int] = set()

    def watched(self, stream_id: int) -> None:
        """A new stream whose every id may be its last."""
        self._watched.add(stream_id)

    def ended(self, stream_id: int) -> None:
        """A stream that nothing more is made of."""
        self._begun.discard(stream_id)
        self._watched.discard(stream_id)

    def due(self, made: Sequence[Progress], *, urgent: bool = False) -> list[Progress]:
        """What must be told after a step that made this, a Progress a stream; `urgent`: all."""
        if not self._hold:
            return list(made)
        urgent = urgent or bool(self._watched)
        for item in made:
            ends = bool(item.finish or item.error)
            urgent |= ends or item.stream_id not in self._begun
            self._begun.add(item.stream_id)
            if ends:
                self.ended(item.stream_id)
            self._held[item.stream_id] = _joined(self._held.get(item.stream_id), item)
        now = self._clock()
        if not urgent and now < self._told + self._hold:
            return []
        self._told = now
        due, self._held = list(self._held.values()), {}
        return due


def _joined(before: Progress | None, after: Progress) -> Progress:
    if before is None:
        return after
    return Progress(
        after.stream_id,
        [*before.token_ids, *after.token_ids],
        after.finish,
        after.error,
        [*before.log_probs, *after.log_probs],
    )
