# SPDX-License-Identifier: Apache-2.0
"""How often a stream sends: no more often than a reader has use for, or than the host bears.

A response costs tritonserver, its stub and the client 200 to 400 µs of processor time together,
whatever it carries. A small model makes a token in less: sent one by one, its tokens would cost
more than the engine that makes them. So those made within `interval` go together. The first and
the last of a stream go at once, and a step that takes longer than the interval is never waited
for: with larger models every token goes alone. vLLM's and SGLang's `stream_interval` do the same
by the number of tokens.
"""

import os
from dataclasses import dataclass

from textlib.decoder_stream import Stream

# What all streams may send in a second, for each core that this process may use: a quarter to a
# third of its time. Many streams at once send less often each.
RESPONSES_PER_CORE = 1000


@dataclass(frozen=True, slots=True)
class Pace:
    """interval: seconds between two responses of a stream at least. most: responses a second."""

    interval: float
    most: float

    @classmethod
    def of_milliseconds(cls, interval: int) -> "Pace":
        """On this host; 0: whenever there is a token."""
        return cls(interval / 1000, RESPONSES_PER_CORE * len(os.sched_getaffinity(0)))

    def due(self, stream: Stream, streams: int) -> float:
        """When it may send, by the loop's clock, with so many live streams; 0.0: at once."""
        if stream.outcome is not None or not stream.responses or not self.interval:
            return 0.0
        return stream.latest + max(self.interval, streams / self.most)


UNPACED = Pace(0.0, 1.0)
