# SPDX-License-Identifier: Apache-2.0
"""Carry out a plan on one event loop: send each request when due, however late others are."""

from __future__ import annotations

import asyncio
from math import inf
from random import Random

from loadlib.arrivals import ClosedLoop
from loadlib.clock import US, Clock, Timer
from loadlib.failures import CONNECTION, TIMEOUT, Failure, WireError
from loadlib.listener import ResponseListener
from loadlib.plan_types import GeneratorPlan
from loadlib.prompts import Message
from loadlib.records import Recorder
from loadlib.transport import Transport
from loadlib.worker_share import COMPLETE, INTERRUPTED, SERVER_GONE, WorkerShare
from loadlib.workload import PlannedRequest, Turn, user_of

# Requests drawn after each send, to refill the buffer after a burst.
_DRAW_BATCH = 4
_SERVER_GONE_AFTER_US = 5 * US
_RETRY_US = 100_000


class LoadEngine:
    """One worker's run. `reason` says why it ends, `stopped` whether it ends early."""

    def __init__(
        self,
        plan: GeneratorPlan,
        share: WorkerShare,
        transport: Transport,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._share = share
        self._transport = transport
        self._recorder = recorder
        self._clock = clock
        self._position = 0
        self._failing_since: int | None = None
        self._think = Random(f"{plan.seed}:think")
        self._tasks: set[asyncio.Task[None]] = set()
        self._users: list[asyncio.Task[None]] = []
        self._target_users = share.users
        self._users_started = False
        self._exhausted = not share.users
        self._sending_finished = asyncio.Event()
        self._stopping = asyncio.Event()
        self._abandoned = asyncio.Event()
        seconds = plan.duration_seconds
        self._end_us = inf if seconds is None else seconds * US
        self._fault: BaseException | None = None
        self.reason = COMPLETE
        self.stopped = False

    @property
    def unsent(self) -> int:
        """The number of planned arrivals that were never sent."""
        return max(0, self._share.total - self._position)

    def stop(self, reason: str) -> None:
        """Stop sending; the second call abandons the requests in flight."""
        if self.stopped:
            self._abandoned.set()
            return
        self.stopped, self.reason = True, reason
        self._stopping.set()
        self._sending_finished.set()

    def set_users(self, count: int) -> None:
        """Set the number of users in a closed loop; excess users abandon their request."""
        self._target_users = count
        self._exhausted = self._exhausted and self._users_started  # users may still arrive
        if self._users_started and not self._sending_finished.is_set():
            self._adjust_users()

    async def run(self) -> None:
        """Run from the first request to the last response or the end of the cool-down."""
        timer = Timer()
        loop = asyncio.get_running_loop()
        loop.add_reader(timer.fd, self._wake, timer)
        timer.set(self._clock.monotonic_ns(self._first_us()))
        try:
            await self._sending_finished.wait()
        finally:
            loop.remove_reader(timer.fd)
            timer.close()
        await self._cool_down()
        if self._fault is not None:
            raise self._fault

    def _first_us(self) -> int:
        planned = self._share.planned
        planned.draw_ahead(len(planned))
        return planned.due[0] if planned else 0

    def _wake(self, timer: Timer) -> None:
        """Send all due requests; set the timer for the next one."""
        timer.clear()
        if self.stopped:
            return
        if isinstance(self._plan.arrivals, ClosedLoop):
            self._start_users()
            return
        planned, now = self._share.planned, self._clock.now_us()
        while self._position < len(planned) and not self.stopped:
            at = planned.due[self._position]
            if at > now:
                timer.set(self._clock.monotonic_ns(at))
                planned.draw_ahead(_DRAW_BATCH)
                return
            self._launch(self._run_session(planned[self._position], at))
            self._position += 1
        self._sending_finished.set()

    def _start_users(self) -> None:
        seconds = self._plan.duration_seconds
        if seconds is not None:
            wait = seconds - self._clock.now_us() / US
            asyncio.get_running_loop().call_later(wait, self._sending_finished.set)
        self._users_started = True
        self._adjust_users()

    def _adjust_users(self) -> None:
        while len(self._users) < self._target_users:
            self._users.append(self._launch(self._run_user()))
        while len(self._users) > self._target_users:
            self._users.pop().cancel()
        self._end_when_exhausted()

    def _end_when_exhausted(self) -> None:
        if self._exhausted and not self._users:
            self._sending_finished.set()

    def _launch(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Keep a task's exception: failed requests raise none, so it is a bug in this program."""
        self._tasks.discard(task)
        if task in self._users:
            self._users.remove(task)
            self._end_when_exhausted()
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            if not self.stopped:
                self.stop(INTERRUPTED)

    async def _run_user(self) -> None:
        """Run one user of a closed loop."""
        for request in self._share.requests or ():
            self._position += 1
            await self._run_session(request, self._clock.now_us())
            await _wait_for_event(self._think_us(), self._sending_finished)
            # Check the clock, too: after a stall the timer callback may still be pending.
            if self._sending_finished.is_set() or self._clock.now_us() >= self._end_us:
                return
        self._exhausted = True

    def _think_us(self) -> int:
        """Draw the pause between two requests; at least 0.1 s while connections fail."""
        assert isinstance(self._plan.arrivals, ClosedLoop)  # noqa: S101
        think = round(self._plan.arrivals.think_seconds.draw(self._think) * US)
        return max(think, _RETRY_US) if self._failing_since is not None else think

    async def _run_session(self, request: PlannedRequest, planned: int) -> None:
        """Run all turns of an arrival, each after the previous response and think time."""
        messages: list[Message] = []
        for number, turn in enumerate(request.turns):
            if number:
                await _wait_for_event(turn.think_us, self._stopping)
                if self.stopped:
                    return
                planned = self._clock.now_us()
            if request.request_class.turns is not None:
                messages += turn.prompt.as_messages(number)
            answer = await self._run_turn(request, number, planned, messages)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})

    async def _run_turn(
        self, request: PlannedRequest, number: int, planned: int, messages: list[Message]
    ) -> str | None:
        """Send one turn; return the response text, or None if it failed or was cancelled."""
        turn = request.turns[number]
        body = self._transport.body(request.request_class, turn, messages)
        sent = self._clock.now_us()
        flight = self._recorder.record_sent(request, number, planned, sent)
        if self._plan.users is not None:
            flight.user = user_of(self._plan.users, self._plan.seed, request.index)
        keeps_text = number + 1 < len(request.turns)
        listener = ResponseListener(flight, turn, self._recorder, self._clock, keeps_text)
        timed_cancel = _schedule_cancel(turn, listener, self._clock, sent)
        try:
            text = await self._transport.exchange(body, listener)
            listener.finish("cancelled", self._clock.now_us())
        except WireError as error:
            self._record_failure(listener, error.failure)
        except asyncio.CancelledError:
            if not listener.stopped:
                listener.finish("abandoned", self._clock.now_us())
                raise
            listener.finish("cancelled", self._clock.now_us())
        else:
            self._failing_since = None
            return None if listener.stopped else text
        finally:
            if timed_cancel:
                timed_cancel.cancel()
        return None

    def _record_failure(self, listener: ResponseListener, failure: Failure) -> None:
        """Record a failure; stop the run after five seconds of connection errors only."""
        now = self._clock.now_us()
        listener.finish("timeout" if failure.kind == TIMEOUT else "error", now, failure)
        if failure.kind != CONNECTION:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= _SERVER_GONE_AFTER_US and not self.stopped:
            self.stop(SERVER_GONE)

    async def _cool_down(self) -> None:
        """Let requests in flight finish within the cool-down."""
        abandon = asyncio.ensure_future(self._abandoned.wait())
        if self._tasks:
            answered = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait(
                [answered, abandon],
                timeout=self._plan.cool_down_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            answered.cancel()
        abandon.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _TimedCancel:
    """Cancels the current task's request at `due_us`, never earlier.

    uvloop times from the start of its event-loop iteration, so its timers may fire early.
    """

    def __init__(self, listener: ResponseListener, clock: Clock, due_us: float) -> None:
        self._listener, self._clock, self._due_us = listener, clock, due_us
        if task := asyncio.current_task():
            listener.cancel = task.cancel
        self._wait()

    def _wait(self) -> None:
        remaining_us = max(0.0, self._due_us - self._clock.now_us())
        self._timer = asyncio.get_running_loop().call_later(remaining_us / US, self._check_due)

    def _check_due(self) -> None:
        if self._clock.now_us() < self._due_us:
            self._wait()
        else:
            self._listener.cancel_request()

    def cancel(self) -> None:
        """Drop the timer: the request has ended."""
        self._timer.cancel()


def _schedule_cancel(
    turn: Turn, listener: ResponseListener, clock: Clock, sent_us: int
) -> _TimedCancel | None:
    """Schedule the cancel of a turn with `cancel.after_ms`; None for other turns."""
    if turn.cancel is None or turn.cancel.after_ms is None:
        return None
    return _TimedCancel(listener, clock, sent_us + turn.cancel.after_ms * 1000)


async def _wait_for_event(microseconds: int, end: asyncio.Event) -> None:
    """Wait for the duration or until the event."""
    if microseconds:
        event_task = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait([event_task], timeout=microseconds / US)
        finally:
            event_task.cancel()
