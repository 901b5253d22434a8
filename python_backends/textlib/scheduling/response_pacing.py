# SPDX-License-Identifier: Apache-2.0
"""Limit how often a stream sends, to what a reader notices and the host can afford.

A response costs tritonserver, its stub and the client together 200 to 400 µs of processor time,
whatever it carries. A small model generates a token faster: sending each token would cost more than
generating it. So tokens within `interval` share a response. The first and the last of a stream go
at once. A step that takes longer than the interval is never delayed: with larger models every token
has its own response. vLLM's and SGLang's `stream_interval` do the same by the number of tokens.
"""

import os
from dataclasses import dataclass

from textlib.scheduling.decoder_stream import DecoderStream

# Maximum responses of all streams per second and core of this process: a quarter to a third of
# its time. With many streams each one sends less often.
RESPONSES_PER_CORE = 1000


@dataclass(frozen=True, slots=True)
class ResponsePacing:
    """The limits on a stream's responses."""

    interval: float  # minimum seconds between two responses of a stream
    max_responses_per_second: float  # of all streams together

    @classmethod
    def from_milliseconds(cls, interval: int) -> "ResponsePacing":
        """Create the pacing for this host; 0: send every token at once."""
        return cls(interval / 1000, RESPONSES_PER_CORE * len(os.sched_getaffinity(0)))

    def next_send_time(self, stream: DecoderStream, live_streams: int) -> float:
        """Return when a stream may send, by the loop's clock; 0.0: at once."""
        if stream.outcome is not None or not stream.responses or not self.interval:
            return 0.0
        return stream.last_response_at + max(
            self.interval, live_streams / self.max_responses_per_second
        )


UNPACED = ResponsePacing(0.0, 1.0)
