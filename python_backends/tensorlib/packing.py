# SPDX-License-Identifier: Apache-2.0
"""Choose the texts that share a run with a token limit, padding included. Without numpy.

The text with the longest waiting time for its length goes first. Up to _AGE_ONLY_TOKENS that is the
oldest; a longer one waits in proportion to its cost. So a short text waits for the current run and
at most one long text more, and a long text gets its turn because its priority grows while that of
new texts starts at zero.

To find the texts of that run, waiting texts are sorted by length and cut into the cheapest
sequence of runs; a run costs its padded tokens plus `run_tokens`.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

# Up to this length texts cost so little that only their age counts.
_AGE_ONLY_TOKENS = 512
# Default token limit, in costs of a run: more tokens make a run longer, not more efficient.
_RUNS = 32
_MIN_TOKENS = 512
# No run is free, although a measurement on a busy machine may say so.
_MIN_RUN_TOKENS = 1.0


class WaitingText(Protocol):
    """One waiting text."""

    arrived: float
    length: int  # tokens


_Text = TypeVar("_Text", bound=WaitingText)


def default_tokens(run_tokens: float) -> int:
    """Return the token limit of a run if the project sets none."""
    return max(_MIN_TOKENS, int(_RUNS * run_tokens))


def next_row(rows: Sequence[_Text], now: float) -> _Text:
    """Return the row that determines the next run; the first one of equals."""
    return max(rows, key=lambda row: (now - row.arrived) / max(row.length, _AGE_ONLY_TOKENS))


def rows_for_run(
    rows: Sequence[_Text], first: _Text, max_rows: int, max_tokens: int, run_tokens: float
) -> list[_Text]:
    """Return the rows that share the run of `first`, including it.

    At most `max_rows`, and `max_tokens` with padding unless it is a single row.
    """
    candidates = sorted(rows, key=lambda row: _sort_key(row, first))
    at = next(index for index, row in enumerate(candidates) if row is first)
    # A run with `first` cannot extend further than this.
    candidates = candidates[max(0, at - max_rows) : at + max_rows]
    run_ends = _cheapest_runs([row.length for row in candidates], max_rows, max_tokens, run_tokens)
    start = 0
    for end in run_ends:
        if any(row is first for row in candidates[start:end]):
            return candidates[start:end]
        start = end
    return [first]


def _sort_key(row: WaitingText, first: WaitingText) -> tuple[int, float]:
    """Sort by length, and within a length the oldest next to `first`."""
    return row.length, row.arrived if row.length >= first.length else -row.arrived


def _cheapest_runs(
    lengths: Sequence[int], max_rows: int, max_tokens: int, run_tokens: float
) -> list[int]:
    """Return the ends of the cheapest sequence of runs over rows of ascending lengths."""
    cost, best_starts = [0.0], [0]
    run_tokens = max(run_tokens, _MIN_RUN_TOKENS)
    for end in range(1, len(lengths) + 1):
        max_length = lengths[end - 1]
        fit = max(1, min(end, max_rows, max_tokens // max(max_length, 1)))
        # Of equally cheap sequences prefer the one with the fuller runs in front.
        starts = range(end - 1, end - fit - 1, -1)
        start = min(starts, key=lambda start: cost[start] + max_length * (end - start))
        cost.append(cost[start] + max_length * (end - start) + run_tokens)
        best_starts.append(start)
    run_ends, end = [], len(lengths)
    while end:
        run_ends.append(end)
        end = best_starts[end]
    return run_ends[::-1]
