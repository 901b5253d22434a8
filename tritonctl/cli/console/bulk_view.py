# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a bulk run: in place on a terminal, else as occasional log lines."""

from __future__ import annotations

import time
from collections.abc import Callable

from tritonctl.bulk.run import BulkProgress
from tritonctl.host.units import human_seconds

_LIVE_SECONDS, _LOG_SECONDS = 0.5, 30.0


class LineProgress:
    """Prints figures as text, limited to one update per interval."""

    def __init__(self, say: Callable[[str], None], *, live: bool) -> None:
        self._say = say
        self._interval = _LIVE_SECONDS if live else _LOG_SECONDS
        self._last_update = time.monotonic()

    def show(self, figures: BulkProgress) -> None:
        """Print the figures if the interval has passed."""
        now = time.monotonic()
        if now - self._last_update >= self._interval:
            self._last_update = now
            self._say(progress_text(figures))


def progress_text(figures: BulkProgress) -> str:
    """Return lines, their rate and the remaining time as text."""
    reached = figures.checkpoint
    parts = [f"{reached.lines:,} lines", f"{figures.lines_per_second:.0f}/s"]
    if figures.share is not None:
        parts.append(f"{figures.share:.0%}")
        if (remaining := figures.seconds_left) is not None:
            parts.append(f"{human_seconds(remaining)} left")
    if reached.failed:
        parts.append(f"{reached.failed:,} failed")
    return " · ".join(parts)
