# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out on gevent: a greenlet per planned arrival, or Locust users in a closed loop.

The same schedule, requests and records as the asyncio engine's. Nothing here knows Locust.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import gevent
from gevent.event import Event

from loadlib.arrivals import Closed
from loadlib.clock import US, Clock, Timer
from loadlib.engine import DRAWN_AT_ONCE, WorkerRun
from loadlib.failures import Failure, WireError
from loadlib.listener import Listener
from loadlib.plan import Plan, RequestClass
from loadlib.prompts import Message
from loadlib.records import Recorder
from loadlib.share import INTERRUPTED, Share
from loadlib.workload import PlannedRequest, Turn

READABLE = 1


class Transport(Protocol):
    """Sends requests of one plan; what the gevent transports have in common."""

    def prepare(self) -> None:
        """Refusal (exit 3) when the endpoint does not answer or the model is not ready."""

    def body(self, request_class: RequestClass, turn: Turn, messages: list[Message] | None) -> Any:
        """A request as it goes out; `messages` is the conversation so far, if it is one."""

    def exchange(self, body: Any, heard: Listener) -> str:
        """Send it and tell of each response; the text, if kept. WireError when it fails."""

    def close(self) -> None:
        """Close the connections: what is under way fails."""


class Engine(WorkerRun):
    """One worker's run on gevent."""

    def __init__(
        self, plan: Plan, share: Share, transport: Transport, recorder: Recorder, clock: Clock
    ) -> None:
        super().__init__(plan, share, recorder, clock)
        self._transport = transport
        self._under_way = 0
        self._idle = Event()
        self._idle.set()
        self._wake = Event()
        self._stopping = Event()
        self._sending_over = False
        self._abandoned = False
        self.faulty = False

    @property
    def sending_over(self) -> bool:
        """Whether nothing more will be sent."""
        return self._sending_over or self.stopped

    def _end_sending(self) -> None:
        self._stopping.set()
        self._wake.set()

    def _abandon(self) -> None:
        """Whatever is under way fails now."""
        if not self._abandoned:
            self._abandoned = True
            self._transport.close()

    def run(self) -> None:
        """From the first request to the last answer, or the end of the cool-down."""
        with self._alarm() as wait_until:
            if isinstance(self._plan.arrivals, Closed):
                self._let_users_run(wait_until)
            else:
                self._keep_schedule(wait_until)
        self._sending_over = True
        if not self._idle.wait(self._plan.cool_down_seconds):
            self._abandon()
            self._idle.wait(self._plan.timeout_seconds)

    @contextmanager
    def _alarm(self) -> Iterator[Callable[[int], None]]:
        """A wait until a moment that `stop` and `_wake` end early.

        libev rounds its own timers to milliseconds.
        """
        timer = Timer()
        watcher = gevent.get_hub().loop.io(timer.fd, READABLE)

        def rang() -> None:
            timer.clear()
            self._wake.set()

        def wait_until(at_us: int) -> None:
            timer.set(self._clock.monotonic_ns(at_us))
            self._wake.wait()
            if not self.stopped:
                self._wake.clear()

        watcher.start(rang)
        try:
            yield wait_until
        finally:
            watcher.stop()
            watcher.close()
            timer.close()

    def _keep_schedule(self, wait_until: Callable[[int], None]) -> None:
        planned = self._share.planned
        planned.draw_ahead(len(planned))
        while self._position < len(planned) and not self.stopped:
            at = planned.due[self._position]
            if at > self._clock.now_us():
                planned.draw_ahead(DRAWN_AT_ONCE)
                wait_until(at)
                continue
            request = planned[self._position]
            self._position += 1
            self._begin()
            gevent.spawn(self._session_of_its_own, request, at)

    def _session_of_its_own(self, request: PlannedRequest, planned: int) -> None:
        try:
            self._session(request, planned)
        except Exception:
            # A failed request is recorded; this is a fault of this program, gevent prints it.
            self.faulty = True
            self.stop(INTERRUPTED)
            raise
        finally:
            self._end()

    def _let_users_run(self, wait_until: Callable[[int], None]) -> None:
        seconds = self._plan.duration_seconds
        end = None if seconds is None else round(seconds * US)
        while not self.sending_over and (end is None or self._clock.now_us() < end):
            wait_until(self._clock.now_us() + US if end is None else end)

    def user_session(self) -> None:
        """One request or conversation of a closed loop's user, and the thinking after it."""
        early = -self._clock.now_us()
        if early > 0:
            self._stopping.wait(early / US)
        if self.sending_over:
            return
        request = next(self._share.endless or iter(()), None)
        if request is None:  # as many as the plan counts
            self._sending_over = True
            self._wake.set()
            return
        self._position += 1
        self._begin()
        try:
            self._session(request, self._clock.now_us())
        finally:
            self._end()
        self._pause(self._think_us())

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def _pause(self, microseconds: int) -> None:
        if microseconds:
            self._stopping.wait(microseconds / US)

    def _session(self, request: PlannedRequest, planned: int) -> None:
        """All turns of an arrival, each when the one before is answered and thought over."""
        messages: list[Message] = []
        for number, turn in enumerate(request.turns):
            if number:
                self._pause(turn.think_us)
                if self.stopped:
                    return
                planned = self._clock.now_us()
            if request.request_class.turns is not None:
                messages += turn.prompt.as_messages(number)
            answer = self._turn(request, number, planned, messages)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})

    def _turn(
        self, request: PlannedRequest, number: int, planned: int, messages: list[Message]
    ) -> str | None:
        """The text of an answer; None when it failed or was cancelled."""
        turn = request.turns[number]
        body = self._transport.body(request.request_class, turn, messages)
        listener = self._sent(request, number, planned)
        cut = self._cut_later(turn, listener)
        try:
            text = self._transport.exchange(body, listener)
            listener.finish("cancelled" if listener.stopped else "ok", self._clock.now_us())
        except WireError as error:
            self._failed(listener, error.failure)
            return None
        except BaseException:
            # Locust takes a user away in the middle of its request.
            listener.cancel()
            listener.finish("abandoned", self._clock.now_us())
            raise
        finally:
            if cut is not None:
                cut.kill(block=False)
        self._failing_since = None
        return None if listener.stopped else text

    def _cut_later(self, turn: Turn, listener: Listener) -> Any:
        if turn.cancel is None or turn.cancel.after_ms is None:
            return None
        return gevent.spawn_later(turn.cancel.after_ms / 1000, listener.cut)

    def _failed(self, listener: Listener, failure: Failure) -> None:
        """The transport ends what is cut or abandoned: that is no failure."""
        if listener.stopped or self._abandoned:
            outcome = "cancelled" if listener.stopped else "abandoned"
            listener.finish(outcome, self._clock.now_us())
            return
        super()._failed(listener, failure)
