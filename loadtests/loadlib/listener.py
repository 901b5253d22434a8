# SPDX-License-Identifier: Apache-2.0
"""Listens to the responses of one request and tells the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadlib.clock import Clock
from loadlib.failures import Failure
from loadlib.records import Flight, Recorder
from loadlib.workload import Turn


class Listener:
    """Listens to one request. `cancel` ends the call; whoever can do that sets it."""

    __slots__ = (
        "_clock",
        "_recorder",
        "_turn",
        "cancel",
        "ended",
        "flight",
        "keeps_text",
        "stopped",
    )

    def __init__(
        self, flight: Flight, turn: Turn, recorder: Recorder, clock: Clock, keeps_text: bool
    ) -> None:
        self.flight = flight
        self.keeps_text = keeps_text
        self.stopped = False
        self.ended = False
        self.cancel: Callable[[], Any] = bool
        self._turn = turn
        self._recorder = recorder
        self._clock = clock

    @property
    def user(self) -> str | None:
        """Whose request it is; None: nobody's in particular."""
        return self.flight.user

    def served_by(self, version: str) -> None:
        """A part of the answer came from this version of the model: the last one counts."""
        if version:
            self.flight.version = version

    def resumed(self) -> None:
        """The connection broke, and the answer goes on."""
        self.flight.resumes += 1

    def responded(self, tokens: int, input_tokens: int | None, *, final: bool) -> bool:
        """Note a response and its new tokens; whether to cancel the request now."""
        now = self._clock.now_us()
        flight = self.flight
        flight.input_tokens = input_tokens
        if tokens > 0:
            self._recorder.responded(flight, tokens, now)
        if final:
            # Before the stream is closed: the answer is complete now.
            self.finish("ok", now)
            return False
        cancel = self._turn.cancel
        if cancel is not None and cancel.after_tokens is not None:
            self.stopped = sum(flight.n) >= cancel.after_tokens
        return self.stopped

    def cut(self) -> None:
        """Cancel the request on purpose, unless it has ended."""
        if not self.ended:
            self.stopped = True
            self.cancel()

    def finish(self, outcome: str, now: int, error: Failure | None = None) -> None:
        """End the request; later calls change nothing."""
        if not self.ended:
            self.ended = True
            self._recorder.ended(self.flight, outcome, now, error)
