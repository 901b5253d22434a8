# SPDX-License-Identifier: Apache-2.0
"""Which texts share a run where its tokens are bounded, padding included. Without numpy.

Who goes first: who has waited longest for its length. Up to _ALIKE tokens that is the oldest; a
longer one waits in proportion to what it costs. So a short text waits for the run that is under
way and at most for one long text more; and a long text gets its turn, because its claim grows
while that of new ones starts at nothing.

Who shares its run: waiting texts are sorted by length and cut into the runs that cost least, each
its padded tokens and `run_tokens` more. That of the first one is taken.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

# Texts that cost so little that only their age counts.
_ALIKE = 512
# Without a bound of the project's: with more tokens than these a run gets longer, not better.
_RUNS = 32
_LEAST_TOKENS = 512
# No run is free, though one that was measured on a busy machine may seem so.
_CHEAPEST_RUN = 1.0


class Row(Protocol):
    """One text that waits: when it came, and its tokens."""

    arrived: float
    length: int


_Row = TypeVar("_Row", bound=Row)


def default_tokens(run_tokens: float) -> int:
    """Tokens of a run where the project sets no bound."""
    return max(_LEAST_TOKENS, int(_RUNS * run_tokens))


def first_of(rows: Sequence[_Row], now: float) -> _Row:
    """The row that the next run is for; of equals the first in the sequence."""
    return max(rows, key=lambda row: (now - row.arrived) / max(row.length, _ALIKE))


def packed(
    rows: Sequence[_Row], first: _Row, most_rows: int, most_tokens: int, run_tokens: float
) -> list[_Row]:
    """The rows that share the run of `first`, itself among them.

    At most `most_rows`, and `most_tokens` with their padding, unless it is one row alone.
    """
    line = sorted(rows, key=lambda row: _place(row, first))
    at = next(index for index, row in enumerate(line) if row is first)
    # A run that holds `first` reaches no further than this.
    line = line[max(0, at - most_rows) : at + most_rows]
    ends = _cheapest_runs([row.length for row in line], most_rows, most_tokens, run_tokens)
    begin = 0
    for end in ends:
        if any(row is first for row in line[begin:end]):
            return line[begin:end]
        begin = end
    return [first]


def _place(row: Row, first: Row) -> tuple[int, float]:
    """By length, and of each length the oldest next to `first`."""
    return row.length, row.arrived if row.length >= first.length else -row.arrived


def _cheapest_runs(
    lengths: Sequence[int], most_rows: int, most_tokens: int, run_tokens: float
) -> list[int]:
    """Where runs over rows of ascending lengths end, so that all together cost least."""
    cost, begins = [0.0], [0]
    run_tokens = max(run_tokens, _CHEAPEST_RUN)
    for end in range(1, len(lengths) + 1):
        longest = lengths[end - 1]
        fit = max(1, min(end, most_rows, most_tokens // max(longest, 1)))
        # Of equally cheap ways that with the fuller runs in front.
        starts = range(end - 1, end - fit - 1, -1)
        begin = min(starts, key=lambda begin: cost[begin] + longest * (end - begin))
        cost.append(cost[begin] + longest * (end - begin) + run_tokens)
        begins.append(begin)
    ends, end = [], len(lengths)
    while end:
        ends.append(end)
        end = begins[end]
    return ends[::-1]
