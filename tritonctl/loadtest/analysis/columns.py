# SPDX-License-Identifier: Apache-2.0
"""The records of a run as numpy arrays, in plan order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tritonctl.loadtest.analysis.records import LoadRecord

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OUTCOMES = ("ok", "error", "cancelled", "timeout", "abandoned")
NEVER = -1
_PER_REQUEST = ("planned", "sent", "first", "last", "end", "tokens", "outcome", "class_index")


@dataclass(frozen=True)
class Columns:
    """One entry per request; `first` and `last` are NEVER without tokens.

    The response arrays are flat: request i has `starts[i]:starts[i + 1]`.
    """

    planned: Integers
    sent: Integers
    first: Integers
    last: Integers
    end: Integers
    tokens: Integers
    outcome: npt.NDArray[np.int8]
    class_index: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    starts: Integers
    response_at: Integers
    response_tokens: Integers
    is_text: bool  # tokens are expected: an answer without them is empty

    @classmethod
    def from_records(cls, records: Sequence[LoadRecord]) -> Columns:
        """Create columns from records in plan order."""
        lengths = _integer_array(len(r.at) for r in records)
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        response_at = _integer_array(chain.from_iterable(r.at for r in records))
        response_tokens = _integer_array(
            chain.from_iterable(r.tokens or (1,) * len(r.at) for r in records)
        )
        names = tuple(dict.fromkeys(r.class_name for r in records))
        codes = {name: code for code, name in enumerate(names)}
        cumulative_tokens = np.concatenate(([0], np.cumsum(response_tokens)))
        return cls(
            planned=_integer_array(r.planned for r in records),
            sent=_integer_array(r.sent for r in records),
            first=_integer_array(r.at[0] if r.at else NEVER for r in records),
            last=_integer_array(r.at[-1] if r.at else NEVER for r in records),
            end=_integer_array(r.end for r in records),
            tokens=cumulative_tokens[starts[1:]] - cumulative_tokens[starts[:-1]],
            outcome=np.array([OUTCOMES.index(r.outcome) for r in records], dtype=np.int8),
            class_index=_integer_array(codes[r.class_name] for r in records),
            class_names=names,
            starts=starts,
            response_at=response_at,
            response_tokens=response_tokens,
            is_text=any(r.at or r.output_tokens is not None for r in records),
        )

    def __len__(self) -> int:
        """The number of requests."""
        return len(self.planned)

    def has_outcome(self, *outcomes: str) -> Mask:
        """Return a mask of requests with one of these outcomes."""
        return np.isin(self.outcome, [OUTCOMES.index(outcome) for outcome in outcomes])

    @property
    def is_empty(self) -> Mask:
        """A mask of text requests that succeeded without a token."""
        return np.asarray(self.has_outcome("ok") & (self.first == NEVER) & self.is_text)

    @property
    def responses(self) -> Integers:
        """The number of responses with tokens, by request."""
        return np.diff(self.starts)

    def in_class(self, name: str) -> Mask:
        """Return a mask of the requests in a class."""
        return np.asarray(self.class_index == self.class_names.index(name))

    def select(self, mask: Mask) -> Columns:
        """Return the columns of the requests in the mask."""
        lengths = self.responses
        responses = np.repeat(mask, lengths)
        starts = np.concatenate(([0], np.cumsum(lengths[mask]))).astype(np.int64)
        return Columns(
            **{name: getattr(self, name)[mask] for name in _PER_REQUEST},
            class_names=self.class_names,
            starts=starts,
            response_at=self.response_at[responses],
            response_tokens=self.response_tokens[responses],
            is_text=self.is_text,
        )


def sum_by_index(indices: Integers, weights: npt.ArrayLike, length: int) -> Floats:
    """Sum weights by index into an array of `length`."""
    return np.bincount(indices, np.asarray(weights, np.float64), length).astype(np.float64)


def _integer_array(values: Iterator[int] | chain[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)
