# SPDX-License-Identifier: Apache-2.0
"""Which clients of a decoder loop have gone: asked of the server, or read off the receipts.

A direct call of the engine is asked about, one round trip each: every stream gets its turn within
`ROUND_SECONDS`. In an ensemble the server always says no, so those streams are not asked about;
their receipts are looked at, all of them, each `POLL_SECONDS` (see textlib.receipts).
"""

import math
import time
from collections import deque
from collections.abc import Callable

from textlib.decoder_stream import Stream
from textlib.receipts import ReceiptWatch

POLL_SECONDS = 0.02
ROUND_SECONDS = 0.3


class Departures:
    """Every method but `due` is called with the loop's lock held."""

    def __init__(
        self, receipts: ReceiptWatch | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._receipts = receipts
        self._clock = clock
        self._to_ask: deque[Stream] = deque()
        self._next_look = 0.0

    def enter(self, stream: Stream) -> None:
        """Watch a new stream."""
        request = stream.request
        if not request.acknowledged:
            self._to_ask.append(stream)
        # One response at the end leaves nothing to acknowledge before it.
        elif self._receipts is not None and request.streaming:
            stream.receipt_page = self._receipts.key
            self._receipts.begin(stream.stream_id)

    def sending(self, stream: Stream, index: int) -> None:
        """A response is about to be sent."""
        if stream.receipt_page and self._receipts is not None:
            self._receipts.sending(stream.stream_id, index)

    def under_way(self, stream: Stream) -> int:
        """Responses that the detokenizer has not received; 0 where unknown."""
        if not stream.receipt_page or self._receipts is None:
            return 0
        return self._receipts.under_way(stream.stream_id)

    def leave(self, stream: Stream) -> None:
        """The stream has had its final response."""
        stream.gone = True
        if stream.receipt_page and self._receipts is not None:
            self._receipts.end(stream.stream_id)

    def due(self) -> bool:
        """Whether it is time for another look."""
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + POLL_SECONDS
        return True

    def silent(self) -> list[int]:
        """Streams whose client is silent."""
        return [] if self._receipts is None else self._receipts.departed()

    def to_ask(self) -> list[Stream]:
        """Streams whose turn it is to be asked about."""
        count = math.ceil(len(self._to_ask) * POLL_SECONDS / ROUND_SECONDS)
        turn = [stream for _ in range(count) if not (stream := self._to_ask.popleft()).gone]
        self._to_ask.extend(turn)
        return [stream for stream in turn if stream.outcome is None]

    def close(self) -> None:
        """Remove the page of the receipts."""
        if self._receipts is not None:
            self._receipts.close()
            self._receipts = None
