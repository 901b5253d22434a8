# SPDX-License-Identifier: Apache-2.0
"""Probe from its metrics whether a server has capacity for a shadow request.

Unknown metrics mean no capacity.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable

from tritonctl.frontend.routing.reports import ReplicaReport, read_report
from tritonctl.protocol.http import open_url

_FRESH_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_MAX_PAGE_BYTES = 4_000_000
_MAX_BUSY_SHARE = 0.75  # of the slots: above it a shadow request might take a user's slot
_BACK_OFF_SECONDS = 5.0

FULL, SILENT, REFUSED = "requests wait", "its metrics do not answer", "it refused lately"
BUSY = "few slots are free"


class CapacityProbe:
    """The probe of one server. `clock` returns seconds; `fetch` returns the metrics page."""

    def __init__(
        self,
        metrics_url: str,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[str], str] | None = None,
    ) -> None:
        self._url, self._clock, self._fetch = metrics_url, clock, fetch or _page
        self._report: ReplicaReport | None = None
        self._back_off_until = float("-inf")

    def record_refusal(self) -> None:
        """Back off after the server refused or did not answer."""
        self._back_off_until = self._clock() + _BACK_OFF_SECONDS

    async def missing_capacity(self, slots: int | None) -> str:
        """Return why there is no capacity, or "". slots: requests that the model runs at once."""
        now = self._clock()
        if now < self._back_off_until:
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
        return BUSY if slots and self._report.active > _MAX_BUSY_SHARE * slots else ""


def _page(url: str) -> str:
    with open_url(url, _ANSWER_SECONDS) as answer:
        content: bytes = answer.read(_MAX_PAGE_BYTES)
    return content.decode("utf-8", "replace")
