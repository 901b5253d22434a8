# SPDX-License-Identifier: Apache-2.0
"""Detect clients of a decoder loop that have left.

For direct calls of the engine the loop polls the server, one round trip per stream, each stream
once per `ROUND_SECONDS`. Inside an ensemble the server never reports a cancellation, so the loop
reads the receipts of all streams every `POLL_SECONDS` instead (see `acknowledgements`).
"""

import math
import time
from collections import deque
from collections.abc import Callable

from textlib.scheduling.acknowledgements import ReceiptWatch
from textlib.scheduling.decoder_stream import DecoderStream

POLL_SECONDS = 0.02
ROUND_SECONDS = 0.3


class ClientDepartures:
    """Detects departed clients. Call every method except `is_check_due` with the loop's lock."""

    def __init__(
        self, receipts: ReceiptWatch | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._receipts = receipts
        self._clock = clock
        self._polled_streams: deque[DecoderStream] = deque()
        self._next_check = 0.0

    def watch(self, stream: DecoderStream) -> None:
        """Watch a new stream."""
        request = stream.request
        if not request.acknowledged:
            self._polled_streams.append(stream)
        # Without streaming there is nothing to acknowledge before the only response.
        elif self._receipts is not None and request.streaming:
            stream.receipt_page = self._receipts.key
            self._receipts.watch(stream.stream_id)

    def record_send(self, stream: DecoderStream, index: int) -> None:
        """Record that a response is about to be sent."""
        if stream.receipt_page and self._receipts is not None:
            self._receipts.record_send(stream.stream_id, index)

    def in_flight(self, stream: DecoderStream) -> int:
        """Return the responses that the detokenizer has not received; 0 if unknown."""
        if not stream.receipt_page or self._receipts is None:
            return 0
        return self._receipts.in_flight(stream.stream_id)

    def unwatch(self, stream: DecoderStream) -> None:
        """Stop watching a stream after its final response."""
        stream.finished = True
        if stream.receipt_page and self._receipts is not None:
            self._receipts.unwatch(stream.stream_id)

    def is_check_due(self) -> bool:
        """Whether it is time for another check."""
        now = self._clock()
        if now < self._next_check:
            return False
        self._next_check = now + POLL_SECONDS
        return True

    def silent_streams(self) -> list[int]:
        """Return the ids of streams whose receipts are silent."""
        return [] if self._receipts is None else self._receipts.departed_streams()

    def streams_to_poll(self) -> list[DecoderStream]:
        """Return the streams to poll in this round."""
        count = math.ceil(len(self._polled_streams) * POLL_SECONDS / ROUND_SECONDS)
        turn = [
            stream for _ in range(count) if not (stream := self._polled_streams.popleft()).finished
        ]
        self._polled_streams.extend(turn)
        return [stream for stream in turn if stream.outcome is None]

    def close(self) -> None:
        """Remove the receipts' page."""
        if self._receipts is not None:
            self._receipts.close()
            self._receipts = None
