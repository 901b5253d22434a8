# SPDX-License-Identifier: Apache-2.0
"""The records of a run as numpy arrays, in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from tritonctl.loadtest.analysis.records import Record

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OUTCOMES = ("ok", "error", "cancelled", "timeout", "abandoned")
NEVER = -1
_PER_REQUEST = ("planned", "sent", "first", "last", "end", "tokens", "outcome", "class_index")


@dataclass(frozen=True)
class Columns:
    """One entry per request; first and last token NEVER where there was none.

    The arrays of responses are flat: those of request i are `starts[i]:starts[i + 1]`.
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

    @classmethod
    def of(cls, records: Sequence[Record]) -> Columns:
        """The columns of records that are in the order of the plan."""
        lengths = _integers(len(r.at) for r in records)
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        response_at = _integers(chain.from_iterable(r.at for r in records))
        response_tokens = _integers(
            chain.from_iterable(r.tokens or (1,) * len(r.at) for r in records)
        )
        names = tuple(dict.fromkeys(r.class_name for r in records))
        codes = {name: code for code, name in enumerate(names)}
        running = np.concatenate(([0], np.cumsum(response_tokens)))
        return cls(
            planned=_integers(r.planned for r in records),
            sent=_integers(r.sent for r in records),
            first=_integers(r.at[0] if r.at else NEVER for r in records),
            last=_integers(r.at[-1] if r.at else NEVER for r in records),
            end=_integers(r.end for r in records),
            tokens=running[starts[1:]] - running[starts[:-1]],
            outcome=np.array([OUTCOMES.index(r.outcome) for r in records], dtype=np.int8),
            class_index=_integers(codes[r.class_name] for r in records),
            class_names=names,
            starts=starts,
            response_at=response_at,
            response_tokens=response_tokens,
        )

    def __len__(self) -> int:
        """How many requests."""
        return len(self.planned)

    def ended(self, *outcomes: str) -> Mask:
        """Which requests ended in one of these ways."""
        return np.isin(self.outcome, [OUTCOMES.index(outcome) for outcome in outcomes])

    def of_class(self, name: str) -> Mask:
        """Which requests belong to a class."""
        return np.asarray(self.class_index == self.class_names.index(name))

    def select(self, mask: Mask) -> Columns:
        """Only the requests under the mask."""
        lengths = np.diff(self.starts)
        responses = np.repeat(mask, lengths)
        starts = np.concatenate(([0], np.cumsum(lengths[mask]))).astype(np.int64)
        return Columns(
            **{name: getattr(self, name)[mask] for name in _PER_REQUEST},
            class_names=self.class_names,
            starts=starts,
            response_at=self.response_at[responses],
            response_tokens=self.response_tokens[responses],
        )


def summed(place: Integers, weights: npt.ArrayLike, length: int) -> Floats:
    """The weights added up by place, of which there are `length`."""
    return np.bincount(place, np.asarray(weights, np.float64), length).astype(np.float64)


def _integers(values: Iterator[int] | chain[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)
