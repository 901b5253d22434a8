# SPDX-License-Identifier: Apache-2.0
"""Passes the responses of one request to the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadlib.clock import Clock
from loadlib.failures import Failure
from loadlib.records import InFlightRequest, Recorder
from loadlib.workload import Turn


class ResponseListener:
    """Follows one request. The transport or engine sets `cancel`, which ends the call."""

    __slots__ = (
        "_clock",
        "_recorder",
        "_turn",
        "cancel",
        "flight",
        "has_ended",
        "keeps_text",
        "stopped",
    )

    def __init__(
        self,
        flight: InFlightRequest,
        turn: Turn,
        recorder: Recorder,
        clock: Clock,
        keeps_text: bool,
    ) -> None:
        self.flight = flight
        self.keeps_text = keeps_text
        self.stopped = False
        self.has_ended = False
        self.cancel: Callable[[], Any] = bool
        self._turn = turn
        self._recorder = recorder
        self._clock = clock

    @property
    def user(self) -> str | None:
        """The request's user; None without users in the plan."""
        return self.flight.user

    def set_version(self, version: str) -> None:
        """Set the model version of the latest response."""
        if version:
            self.flight.version = version

    def count_resume(self) -> None:
        """Count a resume after a broken connection."""
        self.flight.resumes += 1

    def set_uncounted(self, uncounted: bool) -> None:
        """Set whether the model reports no number of tokens, so that responses are counted."""
        self.flight.uncounted = uncounted

    def on_response(self, tokens: int, input_tokens: int | None, *, final: bool) -> bool:
        """Record a response and its new tokens; return whether to cancel the request now."""
        now = self._clock.now_us()
        flight = self.flight
        flight.input_tokens = input_tokens
        if tokens > 0:
            self._recorder.record_response(flight, tokens, now)
        if final:
            # The response is complete before the stream closes.
            self.finish("ok", now)
            return False
        cancel = self._turn.cancel
        if cancel is not None and cancel.after_tokens is not None:
            self.stopped = sum(flight.n) >= cancel.after_tokens
        return self.stopped

    def cancel_request(self) -> None:
        """Cancel the request as planned, unless it has ended."""
        if not self.has_ended:
            self.stopped = True
            self.cancel()

    def finish(self, outcome: str, now: int, error: Failure | None = None) -> None:
        """Record the end of the request; later calls have no effect."""
        if not self.has_ended:
            self.has_ended = True
            self._recorder.record_end(self.flight, outcome, now, error)
