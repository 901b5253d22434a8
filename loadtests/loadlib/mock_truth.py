# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint's ground truth by its own clock: JSON lines, one per request.

    {"i": number in order of arrival, "id": the request's id, "kind": "stream" | "unary",
     "arrival": us, "start": us (on a server), "due": [us each response was due],
     "at": [us each was handed to gRPC], "n": [tokens in each], "first": us, "last": us,
     "outcome": "ok" | "error" | "refused" | "cancelled"}

Microseconds since 1970, of a clock that does not jump. "first" and "last" are of "at", null if
there was no response.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

_FLUSH_SECONDS = 0.2


@dataclass
class RequestHistory:
    """The history of one request, in seconds of the event loop's clock."""

    index: int
    request_id: str
    kind: str
    arrival: float
    start: float | None = None
    due: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    outcome: str = "cancelled"  # until gRPC has the last response


class TruthFile:
    """Writes the histories to a file, if one is given."""

    def __init__(self, file: Path | None) -> None:
        self._stream: TextIO | None = file.open("w", encoding="utf-8") if file else None
        self._offset = time.time() - time.monotonic()

    def write(self, story: RequestHistory) -> None:
        """Write the history of a finished request."""
        if self._stream is not None:
            self._stream.write(json.dumps(self._record(story)) + "\n")

    def _record(self, story: RequestHistory) -> dict[str, Any]:
        at = [self._us(time) for time in story.at]
        return {
            "i": story.index,
            "id": story.request_id,
            "kind": story.kind,
            "arrival": self._us(story.arrival),
            "start": None if story.start is None else self._us(story.start),
            "due": [self._us(time) for time in story.due],
            "at": at,
            "n": story.tokens,
            "first": at[0] if at else None,
            "last": at[-1] if at else None,
            "outcome": story.outcome,
        }

    def _us(self, seconds: float) -> int:
        return round((seconds + self._offset) * 1e6)

    async def keep_flushing(self) -> None:
        """Flush every 0.2 s for readers of the file."""
        while self._stream is not None:
            await asyncio.sleep(_FLUSH_SECONDS)
            self._stream.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
