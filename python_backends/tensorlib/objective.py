# SPDX-License-Identifier: Apache-2.0
"""Runs chosen so that as many texts as possible are answered within a time. Without numpy.

A text that cannot be any more waits for those that can; a run holds no more texts than those in it
can wait for. How long runs take is learnt from those that ran with nothing beside them, in work: a
run's tokens, padding included, and what it costs besides.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

# Of the time, for what is done before and after the engine: transport, the client.
_OWN_SHARE = 0.9
# Of a late text: after so many times the time it goes before all others, whatever becomes of them.
_PATIENCE = 4.0
# Earlier runs say less of the next one by so much with each run.
_FADING = 0.95


class Row(Protocol):
    """One text: when it came, in seconds, and its tokens."""

    arrived: float
    length: int


_Row = TypeVar("_Row", bound=Row)


class Objective:
    """`seconds`: from a text's arrival to its answer. `run_tokens`: what a run costs besides."""

    def __init__(self, seconds: float, run_tokens: float) -> None:
        self._patience = _PATIENCE * seconds
        self._within = _OWN_SHARE * seconds
        self._run_tokens = run_tokens
        self._seconds = 0.0
        self._work = 0.0

    def took(self, tokens: int, seconds: float) -> None:
        """What a run took, and how many tokens it had."""
        self._seconds = _FADING * self._seconds + seconds
        self._work = _FADING * self._work + tokens + self._run_tokens

    def takes(self, tokens: int) -> float:
        """Seconds of a run of so many tokens; 0 before the first one."""
        return (tokens + self._run_tokens) * self._seconds / self._work if self._work else 0.0

    def in_time(self, rows: Sequence[_Row], now: float) -> Sequence[_Row]:
        """Those that could be answered in time by a run of their own.

        All, if none could; those that have waited for too long, if there are any.
        """
        forgotten = [row for row in rows if now - row.arrived > self._patience]
        return forgotten or [row for row in rows if not self._late(row, now, row.length)] or rows

    def bounded(self, run: Sequence[_Row], first: _Row, now: float) -> list[_Row]:
        """As much of a run, `first` among it, as makes none of its texts late; `first` at least.

        The youngest are left out first: they can wait for longest.
        """
        kept = sorted(run, key=lambda row: (row is not first, row.arrived))
        while len(kept) > 1:
            tokens = len(kept) * max(row.length for row in kept)
            if not any(
                self._late(row, now, tokens) and not self._late(row, now, row.length)
                for row in kept
            ):
                break
            kept.pop()
        return kept

    def _late(self, row: Row, now: float, tokens: int) -> bool:
        """By a run of so many tokens that begins now."""
        return now + self.takes(tokens) - row.arrived > self._within
