# SPDX-License-Identifier: Apache-2.0
"""Which versions are heard of: a scrape that fails is unknown, one that stays away is a fault."""

from __future__ import annotations

from tritonctl.rollout.metrics import Counters, Moment, Scrape, moment

_UNSEEN = 10  # requests sent and not counted, before metrics are said to stand still


class Group:
    """The scrapes of one version. `trouble`: why it can no longer be judged; empty if it can."""

    KEPT = ("requests", "failures", "_last", "_sent")
    KEPT_TIMES = ("first_request", "_seen", "_stood")

    def __init__(self, name: str, at: float, timeout: float) -> None:
        self.name = name
        self.trouble = ""
        self.requests = self.failures = 0
        self.restarted = False
        self.first_request: float | None = None
        self._timeout = timeout
        self._last: Counters | None = None
        self._seen = at
        self._stood: float | None = None  # since when the counts stand
        self._sent = 0  # until then

    def see(self, at: float, now: Counters | None, sent: int | None = None) -> Moment | None:
        """What happened since the last scrape; None where that is unknown."""
        found = self._difference(now)
        if now is not None:
            self._seen, self._last = at, now
        if found is not None:
            self.requests += found.requests
            self.failures += found.failures
            if found.requests and self.first_request is None:
                self.first_request = at
        self.trouble = self._silence(at) or self._standstill(at, sent, found)
        return found

    def _difference(self, now: Counters | None) -> Moment | None:
        self.restarted = False
        if now is None or self._last is None:
            return None
        found = moment(self._last, now)
        self.restarted = found is None
        return found

    def _silence(self, at: float) -> str:
        silent = at - self._seen
        return f"no metrics of {self.name} for {silent:.0f} s" if silent > self._timeout else ""

    def _standstill(self, at: float, sent: int | None, found: Moment | None) -> str:
        """Requests are sent, and none is counted, whatever the endpoint answers."""
        if sent is None:
            return ""
        if self._stood is None or _lives(found) or sent < self._sent:  # Envoy may start anew
            self._stood, self._sent = at, sent
        stood, unseen = at - self._stood, sent - self._sent
        if stood <= self._timeout or unseen < _UNSEEN:
            return ""
        return (
            f"{unseen} requests were sent to {self.name} in {stood:.0f} s, and none has begun or "
            "ended: it hangs, or its metrics stand still"
        )


def _lives(found: Moment | None) -> bool:
    """Whether anything was counted; long streams have a first token long before they end."""
    if found is None:
        return False
    return found.requests > 0 or any(any(counts) for _, counts in found.times.values())


class Presence:
    """Both versions."""

    KEPT = ("stable", "candidate")

    def __init__(self, at: float, timeout: float) -> None:
        self.stable = Group("stable", at, timeout)
        self.candidate = Group("candidate", at, timeout)
        self.stable_is_down = False

    def see(self, scrape: Scrape) -> tuple[Moment | None, Moment | None]:
        """Of candidate and stable, what happened since the last scrape."""
        self.stable_is_down = scrape.stable is None and scrape.stable_ready is False
        candidate = self.candidate.see(scrape.at, scrape.candidate, scrape.sent)
        return candidate, self.stable.see(scrape.at, scrape.stable)

    @property
    def lacks(self) -> str:
        """What is not known, where it is not of both."""
        down = "stable is down: users stay where they are"
        return down if self.stable_is_down else "no metrics of both"

    @property
    def trouble(self) -> str:
        """Why the rollout cannot go on; empty if it can.

        Counts that begin anew for both are those of whoever counts, such as Envoy. A stable that is
        down is none: there nobody would answer users who are taken back.
        """
        if self.candidate.restarted and not self.stable.restarted:
            return "candidate counts from 0 again: it was restarted"
        return self.candidate.trouble or ("" if self.stable_is_down else self.stable.trouble)
