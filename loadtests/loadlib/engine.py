# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out on one event loop: sends when it is time, whether others are late or not."""

from __future__ import annotations

import asyncio
from math import inf
from random import Random

from loadlib.arrivals import Closed
from loadlib.clock import US, Clock, Timer
from loadlib.failures import CONNECTION, TIMEOUT, Failure, WireError
from loadlib.listener import Listener
from loadlib.plan import Plan
from loadlib.prompts import Message
from loadlib.records import Recorder
from loadlib.share import COMPLETE, GONE, INTERRUPTED, Share
from loadlib.transport import Transport
from loadlib.workload import PlannedRequest, Turn

# After each sending: what a burst used up is made up for between the next requests.
_DRAWN_AT_ONCE = 4
_GONE_AFTER_US = 5 * US
_RETRY_US = 100_000


class Engine:
    """One worker's run. `reason`: why it ends; `stopped`: before its time."""

    def __init__(
        self, plan: Plan, share: Share, transport: Transport, recorder: Recorder, clock: Clock
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
        self._wanted_users = share.users
        self._users_begun = False
        self._exhausted = not share.users
        self._sending_over = asyncio.Event()
        self._stopping = asyncio.Event()
        self._abandoned = asyncio.Event()
        seconds = plan.duration_seconds
        self._end_us = inf if seconds is None else seconds * US
        self._fault: BaseException | None = None
        self.reason = COMPLETE
        self.stopped = False

    @property
    def unsent(self) -> int:
        """Planned arrivals that were never sent."""
        return max(0, self._share.total - self._position)

    def stop(self, reason: str) -> None:
        """Send nothing more; the second call abandons what is in flight."""
        if self.stopped:
            self._abandoned.set()
            return
        self.stopped, self.reason = True, reason
        self._stopping.set()
        self._sending_over.set()

    def set_users(self, count: int) -> None:
        """The number of users in a closed loop; those too many abandon their request."""
        self._wanted_users = count
        self._exhausted = self._exhausted and self._users_begun  # none yet is not the end
        if self._users_begun and not self._sending_over.is_set():
            self._adjust_users()

    async def run(self) -> None:
        """From the first request to the last answer, or the end of the cool-down."""
        timer = Timer()
        loop = asyncio.get_running_loop()
        loop.add_reader(timer.fd, self._wake, timer)
        timer.set(self._clock.monotonic_ns(self._first_us()))
        try:
            await self._sending_over.wait()
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
        """Send all that is due; set the timer for what comes next."""
        timer.clear()
        if self.stopped:
            return
        if isinstance(self._plan.arrivals, Closed):
            self._begin_users()
            return
        planned, now = self._share.planned, self._clock.now_us()
        while self._position < len(planned) and not self.stopped:
            at = planned.due[self._position]
            if at > now:
                timer.set(self._clock.monotonic_ns(at))
                planned.draw_ahead(_DRAWN_AT_ONCE)
                return
            self._launch(self._session(planned[self._position], at))
            self._position += 1
        self._sending_over.set()

    def _begin_users(self) -> None:
        seconds = self._plan.duration_seconds
        if seconds is not None:
            wait = seconds - self._clock.now_us() / US
            asyncio.get_running_loop().call_later(wait, self._sending_over.set)
        self._users_begun = True
        self._adjust_users()

    def _adjust_users(self) -> None:
        while len(self._users) < self._wanted_users:
            self._users.append(self._launch(self._user()))
        while len(self._users) > self._wanted_users:
            self._users.pop().cancel()
        self._end_when_exhausted()

    def _end_when_exhausted(self) -> None:
        if self._exhausted and not self._users:
            self._sending_over.set()

    def _launch(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """A failed request is recorded; what comes out of a task is a fault of this program."""
        self._tasks.discard(task)
        if task in self._users:
            self._users.remove(task)
            self._end_when_exhausted()
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = self._fault or fault
            if not self.stopped:
                self.stop(INTERRUPTED)

    async def _user(self) -> None:
        """One user of a closed loop."""
        for request in self._share.endless or ():
            self._position += 1
            await self._session(request, self._clock.now_us())
            await _pause(self._think_us(), self._sending_over)
            # Ask the clock too: after a stall the timer may not have been heard yet.
            if self._sending_over.is_set() or self._clock.now_us() >= self._end_us:
                return
        self._exhausted = True

    def _think_us(self) -> int:
        """The pause between two requests; a user does not hammer a server that is away."""
        assert isinstance(self._plan.arrivals, Closed)  # noqa: S101
        think = round(self._plan.arrivals.think_seconds.draw(self._think) * US)
        return max(think, _RETRY_US) if self._failing_since is not None else think

    async def _session(self, request: PlannedRequest, planned: int) -> None:
        """All turns of an arrival, each when the one before is answered and thought over."""
        messages: list[Message] = []
        for number, turn in enumerate(request.turns):
            if number:
                await _pause(turn.think_us, self._stopping)
                if self.stopped:
                    return
                planned = self._clock.now_us()
            if request.request_class.turns is not None:
                messages += turn.prompt.as_messages(number)
            answer = await self._turn(request, number, planned, messages)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})

    async def _turn(
        self, request: PlannedRequest, number: int, planned: int, messages: list[Message]
    ) -> str | None:
        """The text of an answer; None when it failed or was cancelled on purpose."""
        turn = request.turns[number]
        body = self._transport.body(request.request_class, turn, messages)
        sent = self._clock.now_us()
        flight = self._recorder.sent(request, number, planned, sent)
        if self._plan.users is not None:
            flight.user = self._plan.users.of(self._plan.seed, request.index)
        keeps_text = number + 1 < len(request.turns)
        listener = Listener(flight, turn, self._recorder, self._clock, keeps_text)
        cut = _cut_later(turn, listener, self._clock, sent)
        try:
            text = await self._transport.exchange(body, listener)
            listener.finish("cancelled", self._clock.now_us())
        except WireError as error:
            self._failed(listener, error.failure)
        except asyncio.CancelledError:
            if not listener.stopped:
                listener.finish("abandoned", self._clock.now_us())
                raise
            listener.finish("cancelled", self._clock.now_us())
        else:
            self._failing_since = None
            return None if listener.stopped else text
        finally:
            if cut:
                cut.cancel()
        return None

    def _failed(self, listener: Listener, failure: Failure) -> None:
        """Record it; nothing but connection errors for seconds: the server is gone."""
        now = self._clock.now_us()
        listener.finish("timeout" if failure.kind == TIMEOUT else "error", now, failure)
        if failure.kind != CONNECTION:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= _GONE_AFTER_US and not self.stopped:
            self.stop(GONE)

    async def _cool_down(self) -> None:
        """Let what is in flight finish, within limits."""
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


class _Cut:
    """Cancels this task's request once so many ms have passed since it was sent, and not before.

    uvloop counts from the begin of its round of events, so a timer of its own may come early.
    """

    def __init__(self, listener: Listener, clock: Clock, due_us: float) -> None:
        self._listener, self._clock, self._due_us = listener, clock, due_us
        if task := asyncio.current_task():
            listener.cancel = task.cancel
        self._wait()

    def _wait(self) -> None:
        left = max(0.0, self._due_us - self._clock.now_us())
        self._timer = asyncio.get_running_loop().call_later(left / US, self._look)

    def _look(self) -> None:
        if self._clock.now_us() < self._due_us:
            self._wait()
        else:
            self._listener.cut()

    def cancel(self) -> None:
        """The request has ended by itself."""
        self._timer.cancel()


def _cut_later(turn: Turn, listener: Listener, clock: Clock, sent_us: int) -> _Cut | None:
    """Of a turn that is to be left after a time."""
    if turn.cancel is None or turn.cancel.after_ms is None:
        return None
    return _Cut(listener, clock, sent_us + turn.cancel.after_ms * 1000)


async def _pause(microseconds: int, end: asyncio.Event) -> None:
    """Wait so long, or until the event."""
    if microseconds:
        ended = asyncio.ensure_future(end.wait())
        try:
            await asyncio.wait([ended], timeout=microseconds / US)
        finally:
            ended.cancel()
