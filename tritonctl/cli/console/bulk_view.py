# SPDX-License-Identifier: Apache-2.0
"""How far a file of lines has come: in place on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from tritonctl.bulk.run import Figures
from tritonctl.host.units import human_seconds

_SHOWN_SECONDS, _TOLD_SECONDS = 0.5, 30.0


class LineProgress:
    """Passes figures on as text, at most every so many seconds."""

    def __init__(self, say: Callable[[str], None], *, live: bool) -> None:
        self._say = say
        self._every = _SHOWN_SECONDS if live else _TOLD_SECONDS
        self._told = time.monotonic()

    def show(self, figures: Figures) -> None:
        """Tell, if it is time."""
        now = time.monotonic()
        if now - self._told >= self._every:
            self._told = now
            self._say(progress_text(figures))


def progress_text(figures: Figures) -> str:
    """Lines, their rate, and what is left."""
    reached = figures.reached
    parts = [f"{reached.lines:,} lines", f"{figures.lines_per_second:.0f}/s"]
    if figures.share is not None:
        parts.append(f"{figures.share:.0%}")
        if (left := figures.seconds_left) is not None:
            parts.append(f"{human_seconds(left)} left")
    if reached.failed:
        parts.append(f"{reached.failed:,} without an answer")
    return " · ".join(parts)
