# SPDX-License-Identifier: Apache-2.0
"""A generator notices that it did not get to run."""

from __future__ import annotations

import time

from hdrh.histogram import HdrHistogram
from loadlib.clock import Clock
from loadlib.heartbeat import PERIOD_US, Heartbeat
from loadlib.progress import Meter


def test_missed_beats_count_each() -> None:
    """A loop that stood still for 30 beats: each is late by its own part, none is left out."""
    clock, meter = Clock(time.time()), Meter(0)
    heart = Heartbeat(meter, clock)
    time.sleep(30.5 * PERIOD_US / 1e6)
    heart.beat()
    missed = clock.now_us() // PERIOD_US
    woke = HdrHistogram.decode(meter.line(clock.now_us())["woke"])
    heart.close()
    assert 29 <= woke.get_total_count() <= missed
    assert woke.get_max_value() >= 29 * PERIOD_US
    assert woke.get_value_at_percentile(50) < woke.get_max_value() * 0.6
    assert HdrHistogram.decode(meter.line(clock.now_us())["woke"]).get_total_count() == 0
