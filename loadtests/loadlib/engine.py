# SPDX-License-Identifier: Apache-2.0
"""How a worker's run stands, whatever sends its requests: how far it is, and why it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random

from loadlib.arrivals import Closed
from loadlib.clock import US, Clock
from loadlib.failures import CONNECTION, TIMEOUT, Failure
from loadlib.listener import Listener
from loadlib.plan import Plan
from loadlib.records import Recorder
from loadlib.share import COMPLETE, GONE, Share
from loadlib.workload import PlannedRequest

# After each sending: what a burst used up is made up for between the next requests.
DRAWN_AT_ONCE = 4
_GONE_AFTER_US = 5 * US
_RETRY_US = 100_000


class WorkerRun(ABC):
    """One worker's run."""

    def __init__(self, plan: Plan, share: Share, recorder: Recorder, clock: Clock) -> None:
        self._plan = plan
        self._share = share
        self._recorder = recorder
        self._clock = clock
        self._position = 0
        self._failing_since: int | None = None
        self._think = Random(f"{plan.seed}:think")
        self.reason = COMPLETE
        self.stopped = False

    @property
    def unsent(self) -> int:
        """Planned arrivals that were never sent."""
        return max(0, self._share.total - self._position)

    def stop(self, reason: str) -> None:
        """Send nothing more; asked again, let nothing finish either."""
        if self.stopped:
            self._abandon()
            return
        self.stopped, self.reason = True, reason
        self._end_sending()

    @abstractmethod
    def _end_sending(self) -> None:
        """Wake whoever waits to send or thinks."""

    @abstractmethod
    def _abandon(self) -> None:
        """Let nothing finish."""

    def _think_us(self) -> int:
        """Between two requests of a user, who does not hammer a server that is away."""
        assert isinstance(self._plan.arrivals, Closed)  # noqa: S101
        think = round(self._plan.arrivals.think_seconds.draw(self._think) * US)
        return max(think, _RETRY_US) if self._failing_since is not None else think

    def _sent(self, request: PlannedRequest, number: int, planned: int) -> Listener:
        """A turn of a request goes out now."""
        flight = self._recorder.sent(request, number, planned, self._clock.now_us())
        keeps_text = number + 1 < len(request.turns)
        return Listener(flight, request.turns[number], self._recorder, self._clock, keeps_text)

    def _failed(self, listener: Listener, failure: Failure) -> None:
        """Nobody answers for seconds: the server is gone."""
        now = self._clock.now_us()
        listener.finish("timeout" if failure.kind == TIMEOUT else "error", now, failure)
        if failure.kind != CONNECTION:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= _GONE_AFTER_US and not self.stopped:
            self.stop(GONE)
