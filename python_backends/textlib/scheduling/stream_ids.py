# SPDX-License-Identifier: Apache-2.0
"""Ids of streams in an engine: positive, 31 bits, unique among the live streams."""

from collections.abc import Container
from itertools import count

_MAX_STREAM_ID = 2**31 - 1


class StreamIds:
    """Numbers streams from 1 and starts again after the largest id."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def next_id(self, live: Container[int]) -> int:
        """Return the next id that no live stream has."""
        return next(
            stream_id
            for number in self._numbers
            if (stream_id := (number - 1) % _MAX_STREAM_ID + 1) not in live
        )
