# SPDX-License-Identifier: Apache-2.0
"""What the mock endpoint really did, by its own clock: JSON lines, a line per request.

    {"i": number in order of arrival, "id": the request's id, "kind": "stream" | "unary",
     "arrival": us, "start": us (a server took it), "due": [us each response was due],
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
class Story:
    """One request, in seconds of the event loop's clock."""

    index: int
    request_id: str
    kind: str
    arrival: float
    start: float | None = None
    due: list[float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    outcome: str = "cancelled"  # until its last response is handed over


class Truth:
    """Writes the file, if there is one."""

    def __init__(self, file: Path | None) -> None:
        self._stream: TextIO | None = file.open("w", encoding="utf-8") if file else None
        self._offset = time.time() - time.monotonic()

    def write(self, story: Story) -> None:
        """Add a request that has ended."""
        if self._stream is not None:
            self._stream.write(json.dumps(self._record(story)) + "\n")

    def _record(self, story: Story) -> dict[str, Any]:
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
        """Flush now and then, for readers of the file."""
        while self._stream is not None:
            await asyncio.sleep(_FLUSH_SECONDS)
            self._stream.flush()

    def close(self) -> None:
        """Write out what is buffered."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
