# SPDX-License-Identifier: Apache-2.0
"""Carries a plan out on one event loop: sends when it is time, whether others are late or not."""

from __future__ import annotations

import asyncio
from math import inf

from loadlib.arrivals import Closed
from loadlib.clock import US, Clock, Timer
from loadlib.engine import DRAWN_AT_ONCE, WorkerRun
from loadlib.failures import WireError
from loadlib.listener import Listener
from loadlib.plan import Plan
from loadlib.prompts import Message
from loadlib.records import Recorder
from loadlib.share import INTERRUPTED, Share
from loadlib.transport import Transport
from loadlib.workload import PlannedRequest, Turn


class Engine(WorkerRun):
    """One worker's run on an event loop."""

    def __init__(
        self, plan: Plan, share: Share, transport: Transport, recorder: Recorder, clock: Clock
    ) -> None:
        super().__init__(plan, share, recorder, clock)
        self._transport = transport
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending_over = asyncio.Event()
        self._stopping = asyncio.Event()
        self._abandoned = asyncio.Event()
        seconds = plan.duration_seconds
        self._end_us = inf if seconds is None else seconds * US
        self._fault: BaseException | None = None

    def _end_sending(self) -> None:
        self._stopping.set()
        self._sending_over.set()

    def _abandon(self) -> None:
        self._abandoned.set()

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
            self._start_users()
            return
        planned, now = self._share.planned, self._clock.now_us()
        while self._position < len(planned) and not self.stopped:
            at = planned.due[self._position]
            if at > now:
                timer.set(self._clock.monotonic_ns(at))
                planned.draw_ahead(DRAWN_AT_ONCE)
                return
            self._start(planned[self._position], at)
            self._position += 1
        self._sending_over.set()

    def _start_users(self) -> None:
        users = [self._launch(self._user()) for _ in range(self._share.users)]
        seconds = self._plan.duration_seconds
        loop = asyncio.get_running_loop()
        if seconds is not None:
            loop.call_later(seconds - self._clock.now_us() / US, self._sending_over.set)
        everybody = asyncio.gather(*users, return_exceptions=True)
        everybody.add_done_callback(lambda _: self._sending_over.set())

    def _start(self, request: PlannedRequest, planned: int) -> None:
        self._launch(self._session(request, planned))

    def _launch(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        """A failed request is recorded; what comes out of a task is a fault of this program."""
        self._tasks.discard(task)
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
            # The clock is asked, too: after a stall the timer may not have been heard yet.
            if self._sending_over.is_set() or self._clock.now_us() >= self._end_us:
                return

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
        """The text of an answer; None when it failed or was cancelled."""
        turn = request.turns[number]
        body = self._transport.body(request.request_class, turn, messages)
        listener = self._sent(request, number, planned)
        cut = self._cut_later(turn, listener)
        try:
            text = await self._transport.exchange(body, listener)
            listener.finish("cancelled", self._clock.now_us())
        except WireError as error:
            self._failed(listener, error.failure)
        except asyncio.CancelledError:
            outcome = "cancelled" if listener.stopped else "abandoned"
            listener.finish(outcome, self._clock.now_us())
        else:
            self._failing_since = None
            return None if listener.stopped else text
        finally:
            if cut:
                cut.cancel()
        return None

    def _cut_later(self, turn: Turn, listener: Listener) -> asyncio.TimerHandle | None:
        if turn.cancel is None or turn.cancel.after_ms is None:
            return None
        if task := asyncio.current_task():
            listener.cancel = task.cancel
        return asyncio.get_running_loop().call_later(turn.cancel.after_ms / 1000, listener.cut)

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


async def _pause(microseconds: int, end: asyncio.Event) -> None:
    """Think; the event wakes."""
    if microseconds:
        ended = asyncio.ensure_future(end.wait())
        await asyncio.wait([ended], timeout=microseconds / US)
        ended.cancel()
