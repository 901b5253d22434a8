# SPDX-License-Identifier: Apache-2.0
"""The health of both versions' metrics: a failed scrape is unknown, a persistent gap is a fault."""

from __future__ import annotations

from tritonctl.rollout.metrics import Counters, Scrape, ScrapeInterval, interval_between

_MIN_UNCOUNTED = 10  # sent requests without a change in the metrics, before they count as stalled


class VersionHealth:
    """The scrapes of one version. `fault` says why it cannot be judged; empty if it can."""

    PERSISTED = ("requests", "failures", "_last", "_sent")
    PERSISTED_TIMES = ("first_request", "_seen", "_stood")

    def __init__(self, name: str, at: float, timeout: float) -> None:
        self.name = name
        self.fault = ""
        self.requests = self.failures = 0
        self.restarted = False
        self.first_request: float | None = None
        self._timeout = timeout
        self._last: Counters | None = None
        self._seen = at
        self._stood: float | None = None  # the start of the current standstill
        self._sent = 0  # until that time

    def record_scrape(
        self, at: float, counters: Counters | None, sent: int | None = None
    ) -> ScrapeInterval | None:
        """Record a scrape; return the activity since the last one, None if unknown."""
        interval = self._difference(counters)
        if counters is not None:
            self._seen, self._last = at, counters
        if interval is not None:
            self.requests += interval.requests
            self.failures += interval.failures
            if interval.requests and self.first_request is None:
                self.first_request = at
        self.fault = self._silence_fault(at) or self._standstill_fault(at, sent, interval)
        return interval

    def _difference(self, counters: Counters | None) -> ScrapeInterval | None:
        self.restarted = False
        if counters is None or self._last is None:
            return None
        interval = interval_between(self._last, counters)
        self.restarted = interval is None
        return interval

    def _silence_fault(self, at: float) -> str:
        silent = at - self._seen
        return f"no metrics of {self.name} for {silent:.0f} s" if silent > self._timeout else ""

    def _standstill_fault(
        self, at: float, sent: int | None, interval: ScrapeInterval | None
    ) -> str:
        """The fault if Envoy sends requests and the metrics count none."""
        if sent is None:
            return ""
        if (
            self._stood is None or _has_activity(interval) or sent < self._sent
        ):  # Envoy may have restarted
            self._stood, self._sent = at, sent
        standstill_seconds, uncounted = at - self._stood, sent - self._sent
        if standstill_seconds <= self._timeout or uncounted < _MIN_UNCOUNTED:
            return ""
        return (
            f"{uncounted} requests were sent to {self.name} in {standstill_seconds:.0f} s, and "
            "none has started or finished: it hangs, or its metrics stand still"
        )


def _has_activity(interval: ScrapeInterval | None) -> bool:
    """Whether the metrics changed; a long stream has its first token long before its end."""
    if interval is None:
        return False
    return interval.requests > 0 or any(any(counts) for _, counts in interval.times.values())


class ScrapeHealth:
    """The scrape health of both versions."""

    PERSISTED = ("stable", "candidate")

    def __init__(self, at: float, timeout: float) -> None:
        self.stable = VersionHealth("stable", at, timeout)
        self.candidate = VersionHealth("candidate", at, timeout)
        self.stable_is_down = False

    def record_scrape(self, scrape: Scrape) -> tuple[ScrapeInterval | None, ScrapeInterval | None]:
        """Record a scrape; return the activity of candidate and stable since the last one."""
        self.stable_is_down = scrape.stable is None and scrape.stable_ready is False
        candidate = self.candidate.record_scrape(scrape.at, scrape.candidate, scrape.sent)
        return candidate, self.stable.record_scrape(scrape.at, scrape.stable)

    @property
    def missing_metrics(self) -> str:
        """Why the metrics of a version are missing."""
        down = "stable is down: users stay where they are"
        return down if self.stable_is_down else "metrics of a version are missing"

    @property
    def fault(self) -> str:
        """Why the rollout cannot continue; empty if it can.

        If both counts reset, the counting process restarted, such as Envoy. A stable that is down
        is not a fault: no server would answer users after a rollback.
        """
        if self.candidate.restarted and not self.stable.restarted:
            return "the candidate's counters were reset: it restarted"
        return self.candidate.fault or ("" if self.stable_is_down else self.stable.fault)
