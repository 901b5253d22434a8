# SPDX-License-Identifier: Apache-2.0
"""Whether a server has room for a question that nobody waits for: by its own metrics.

What is not known is no room.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable

from tritonctl.frontend.routing.reports import Report, read_report
from tritonctl.protocol.http import open_url

_FRESH_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_MOST_PAGE_BYTES = 4_000_000
_MOST_BUSY = 0.75  # of the slots: above it a question of ours might take a user's
_BACK_OFF_SECONDS = 5.0

FULL, SILENT, REFUSED = "requests wait", "its metrics do not answer", "it refused lately"
BUSY = "few slots are free"


class Room:
    """Of one server. metrics_url: its page. clock: seconds; fetch: the page's text."""

    def __init__(
        self,
        metrics_url: str,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[str], str] | None = None,
    ) -> None:
        self._url, self._clock, self._fetch = metrics_url, clock, fetch or _page
        self._report: Report | None = None
        self._until = float("-inf")

    def refused(self) -> None:
        """It said no, or did not answer: it is left alone for a while."""
        self._until = self._clock() + _BACK_OFF_SECONDS

    async def lacking(self, slots: int | None) -> str:
        """Why there is none; "" if there is. slots: requests that the model answers at once."""
        now = self._clock()
        if now < self._until:
            return REFUSED
        if self._report is None or not self._report.is_fresh(now, _FRESH_SECONDS):
            try:
                page = await asyncio.to_thread(self._fetch, self._url)
            except (OSError, ValueError, http.client.HTTPException):
                self._report = None
                return SILENT
            self._report = read_report(page, now)
        if self._report.waiting > 0:
            return FULL
        return BUSY if slots and self._report.active > _MOST_BUSY * slots else ""


def _page(url: str) -> str:
    with open_url(url, _ANSWER_SECONDS) as answer:
        content: bytes = answer.read(_MOST_PAGE_BYTES)
    return content.decode("utf-8", "replace")
