# SPDX-License-Identifier: Apache-2.0
"""The loop that every text-generation engine runs in: one stepping thread, one sender thread.

    execute() ─ submit ─▶ stepping thread ─ ids ─▶ streams ─▶ sender thread ─▶ Triton
                          (add, step, cancel)      (coalesced)

*Coalescing.* A response carries every id that its stream has accumulated since its last one:
one id if steps are slower than `pace` and the server keeps up, else more (`turns.py`).

*Pacing.* The stepping thread pauses after each step until everything is sent that can be, for at
most `PAUSE_SHARE` of its duration: it may hold the interpreter lock. An engine in a process of its
own (`engine_process`) does not: no pause, and `submit` itself gives it the request.

*Queueing.* `admission.py` says who gets a place in the engine. `submit` does not block: a batch is
handed over as a whole, because each change of threads beside such a step costs more than the
request. `await_room`, at the end of `execute`, does where Triton's own queue decides.

*Stop words.* They end a stream on its decoded text (`stop_words.py`): ids that may become one are
held back, and the engine's slot is freed before the next step.

*Ends.* Every submitted request gets exactly one final response: ids, or an error. A failing step
fails the streams it worked on; after `MAX_FAILED_STEPS` in a row the engine is declared dead and
every later request is refused with the reason.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from textlib.admission import TRITON_DECIDES, Admission
from textlib.decoder_stream import Outgoing, ResponseSink, Stream, watch_for
from textlib.departures import POLL_SECONDS, Departures
from textlib.engine_contract import MAX_FAILED_STEPS, Engine, Progress, no_wait, request_failure
from textlib.engine_metrics import EngineMetrics, Gauges, Key
from textlib.errors import (
    EngineFailedError,
    EngineUnavailableError,
    QueueFullError,
    RequestCancelledError,
    TextPathError,
)
from textlib.pace import UNPACED, Pace
from textlib.receipts import ReceiptWatch
from textlib.request_tensors import GenerationRequest
from textlib.token_bytes import TokenTable
from textlib.token_chunk import FinishReason
from textlib.turns import Turns

PAUSE_SHARE = 0.05
MIN_PAUSE_SECONDS = 0.002
ARRIVAL_QUIET_SECONDS = 0.001
_MAX_STREAM_ID = 2**31 - 1
_LOG = logging.getLogger(__name__)


class DecoderLoop:
    """Runs an engine for many requests at once.

    `capacity`, `max_queue_size`: textlib.admission. `table`: what ids decode to; without it stop
    words are refused and every id takes a place in the detokenizer's window. `receipts`: of an
    ensemble, closed with the loop. `wake`: lets the `step` of an engine in a process of its own
    return. `pace`: how often a stream sends. `clock`: seconds that never go back.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        capacity: int,
        max_queue_size: int = TRITON_DECIDES,
        table: TokenTable | None = None,
        receipts: ReceiptWatch | None = None,
        wake: Callable[[], None] = no_wait,
        pace: Pace = UNPACED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._wake_engine, self._clock = engine, wake, clock
        self._steps_elsewhere = wake is not no_wait
        self._admission = Admission(capacity, max_queue_size)
        self._table = table
        self._departures = Departures(receipts, clock)
        self._turns = Turns(self._departures, pace, clock)
        self._metrics = EngineMetrics()
        self.errors = self._metrics.errors  # also of what is refused before it comes here
        self._lock = threading.RLock()
        # Others go on while an engine in this process adds a request.
        self._admitting = self._lock if self._steps_elsewhere else threading.RLock()
        self._to_step, self._to_send, self._room = map(threading.Condition, [self._lock] * 3)
        self._ids = count(1)
        self._streams: dict[int, Stream] = {}
        self._inbox: deque[Stream] = deque()
        self._cancels: deque[int] = deque()
        self._active: set[int] = set()  # in the engine
        self._arrivals = 0
        self._failed_steps = 0
        self._closing = False
        self._dead: str | None = None
        self._stepper = threading.Thread(target=self._run_steps, name="stepper", daemon=True)
        self._sender = threading.Thread(target=self._run_sender, name="sender", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._stepper.start()
        self._sender.start()

    def submit(self, request: GenerationRequest, sink: ResponseSink, *, timed: bool = True) -> int:
        """Hand a request over and return its stream id. timed: its times count in the metrics.

        Raises EngineUnavailableError when the loop is closing or its engine is dead, RequestError
        for stop words that it cannot see; the sink is then not touched.
        """
        watch = watch_for(request, self._table)
        with self._lock:
            if refusal := self._refusal():
                raise EngineUnavailableError(refusal)
            if refusal := self._admission.refusal(len(self._streams)):
                raise QueueFullError(refusal)
            stream = Stream(self._new_id(), request, sink, watch, self._table, timed=timed)
            stream.began = stream.latest = self._clock()
            self._streams[stream.stream_id] = stream
            self._inbox.append(stream)
            self._departures.enter(stream)
            self._metrics.accepted(len(request.token_ids))
            self._arrivals += 1
            if self._steps_elsewhere:
                self._admit()
            self._to_step.notify()
            self._to_send.notify()  # an idle sender starts to watch for cancellation
            return stream.stream_id

    def await_room(self) -> None:
        """Block while Triton should keep further requests; it calls execute() again afterwards."""
        with self._lock:
            self._room.wait_for(
                lambda: self._refusal() or self._admission.takes_a_batch(len(self._streams))
            )

    def cancel(self, stream_id: int, reason: str = "the request was cancelled") -> None:
        """End a live stream with RequestCancelledError and free its engine slot."""
        with self._lock:
            if stream := self._streams.get(stream_id):
                self._end(stream, RequestCancelledError(reason))

    def close(self, timeout: float = 10.0) -> bool:
        """Fail the live streams, stop both threads; True if they ended within `timeout` seconds."""
        with self._lock:
            self._closing = True
            for stream in self._streams.values():
                self._end(stream, EngineUnavailableError("the model is being unloaded"))
            for condition in (self._to_step, self._to_send, self._room):
                condition.notify_all()
            self._wake()
        deadline = time.monotonic() + timeout
        for thread in (threads := [t for t in (self._stepper, self._sender) if t.ident]):
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._departures.close()
        return not any(thread.is_alive() for thread in threads)

    @property
    def live_streams(self) -> int:
        """Requests that have not had their final response yet."""
        with self._lock:
            return len(self._streams)

    def measure(self) -> tuple[dict[Key, float], Gauges]:
        """Counters since the start, and what is true now."""
        with self._lock:
            self._metrics.look(self._streams.values(), self._clock())
            active = len(self._active)
            waiting = max(0, sum(s.outcome is None for s in self._streams.values()) - active)
            return self._metrics.totals(), Gauges(active, waiting)

    # --- shared, with the lock held ---------------------------------------------------------

    def _new_id(self) -> int:
        return next(
            stream_id
            for number in self._ids
            if (stream_id := (number - 1) % _MAX_STREAM_ID + 1) not in self._streams
        )

    def _refusal(self) -> str | None:
        if self._closing:
            return "the model is being unloaded; send the request again to a running server"
        return self._dead

    def _end(self, stream: Stream, outcome: FinishReason | TextPathError) -> None:
        if stream.outcome is not None:
            return
        stream.outcome = outcome
        if isinstance(outcome, TextPathError):
            self._cancels.append(stream.stream_id)
            self._wake()
        self._schedule(stream)

    def _wake(self) -> None:
        self._to_step.notify()
        self._wake_engine()  # the stepping thread waits here or in a step

    def _schedule(self, stream: Stream) -> None:
        if self._turns.add(stream, len(self._streams)):
            self._to_send.notify()

    # --- stepping thread --------------------------------------------------------------------

    def _run_steps(self) -> None:
        while self._await_work():
            arrivals = self._arrivals
            self._admit()
            if not self._active:
                continue
            started = self._clock()
            self._step()
            if not self._steps_elsewhere:
                self._pause(self._clock() - started, arrivals)

    def _await_work(self) -> bool:
        """False when the loop closes."""
        with self._lock:
            while not (self._inbox or self._cancels or self._active or self._admission.waiting):
                if self._closing:
                    return False
                self._to_step.wait()
            return not self._closing

    def _admit(self) -> None:
        with self._admitting:
            with self._lock:
                cancels, self._cancels = self._cancels, deque()
                arrived = [stream for stream in self._inbox if stream.outcome is None]
                self._inbox.clear()
            for stream_id in cancels:
                self._forget(stream_id)
            self._admission.arrive(arrived)
            while stream := self._admission.admit(len(self._active)):
                self._add(stream)

    def _forget(self, stream_id: int) -> None:
        if stream_id not in self._active:
            return
        self._active.discard(stream_id)
        try:
            self._engine.cancel(stream_id)
        except Exception:
            _LOG.exception("engine.cancel(%d) failed; the stream is forgotten", stream_id)

    def _add(self, stream: Stream) -> None:
        if not stream.request.sampling.max_tokens:  # it broke off after its very last id
            with self._lock:
                self._end(stream, FinishReason.LENGTH)
            return
        try:
            self._engine.add(stream.stream_id, stream.request)
        except Exception as error:
            with self._lock:
                self._end(stream, request_failure(error))
        else:
            self._active.add(stream.stream_id)
            self._metrics.begun(self._clock() - stream.began)

    def _step(self) -> None:
        try:
            progress = self._engine.step()
            with self._lock:
                for item in progress:
                    self._deliver(item)
        except Exception as error:
            self._fail_step(error)
        else:
            self._failed_steps = 0

    def _deliver(self, item: Progress) -> None:
        finished = item.finish is not FinishReason.NONE or item.error is not None
        if finished:
            self._active.discard(item.stream_id)
        stream = self._streams.get(item.stream_id)
        if stream is None or stream.outcome is not None:
            return
        if stream.receive(item.token_ids, item.log_probs):
            if not finished:
                self._cancels.append(item.stream_id)  # freed before the next step
            self._end(stream, FinishReason.STOP)
        elif finished:
            stopped = stream.let_go()
            self._end(stream, item.error or (FinishReason.STOP if stopped else item.finish))
        else:
            self._schedule(stream)

    def _fail_step(self, error: Exception) -> None:
        _LOG.exception("a step of the engine failed; %d streams end", len(self._active))
        self._failed_steps += 1
        with self._lock:
            failed = [self._streams[key] for key in self._active if key in self._streams]
            if self._failed_steps >= MAX_FAILED_STEPS:
                self._declare_dead(error)
                failed = list(self._streams.values())
            for stream in failed:
                self._end(stream, EngineFailedError(f"the engine failed while generating: {error}"))

    def _declare_dead(self, error: Exception) -> None:
        self._dead = (
            f"the engine failed {self._failed_steps} steps in a row and takes no more requests; "
            f"the last error was: {error}. Reload the model or restart the server."
        )
        self._room.notify_all()

    def _pause(self, step_seconds: float, arrivals: int) -> None:
        """Let the sender and execute() have the interpreter: *Pacing* above."""
        deadline = self._clock() + max(MIN_PAUSE_SECONDS, PAUSE_SHARE * step_seconds)
        with self._lock:
            while not self._closing:
                left = deadline - self._clock()
                if left > 0 and self._turns.waiting:
                    self._to_step.wait(left)
                elif left > 0 and self._arrivals != arrivals:
                    arrivals = self._arrivals
                    self._to_step.wait(min(left, ARRIVAL_QUIET_SECONDS))
                else:
                    return

    # --- sender thread ----------------------------------------------------------------------

    def _run_sender(self) -> None:
        while True:
            with self._lock:
                stream = self._next_ready()
                if stream is None and self._closing and not self._streams:
                    return
            if stream is not None:
                self._send(stream)
            if self._departures.due():
                self._look_for_departures()

    def _next_ready(self) -> Stream | None:
        """The stream that waits longest of those that may send; None after a while without one."""
        self._turns.release()
        if not self._turns.waiting and not self._closing:
            self._to_send.wait(min(self._turns.patience(), POLL_SECONDS) if self._streams else None)
        stream = self._turns.take()
        if stream is None:
            self._to_step.notify()
        return stream

    def _send(self, stream: Stream) -> None:
        outgoing = self._take(stream)
        try:
            if outgoing.error is not None:
                stream.sink.fail(outgoing.error)
            elif outgoing.chunk is not None:
                stream.sink.send(outgoing.chunk)
        except Exception as error:
            _LOG.warning("stream %d: the server took no response: %s", stream.stream_id, error)
            with self._lock:
                stream.outcome = None
                self._end(stream, RequestCancelledError("the server took no response"))
        with self._lock:
            if outgoing.final:
                self._remove(stream)
            else:
                self._schedule(stream)

    def _take(self, stream: Stream) -> Outgoing:
        with self._lock:
            stream.queued = False
            before = stream.sent_ids
            outgoing = stream.take()
            if outgoing.chunk is not None:
                self._note_sending(stream, before)
            if not self._turns.waiting:
                self._to_step.notify()
            return outgoing

    def _note_sending(self, stream: Stream, sent_before: int) -> None:
        index, tokens = stream.responses - 1, stream.sent_ids - sent_before
        self._departures.sending(stream, index)
        observe = self._metrics.next_response if index else self._metrics.first_response
        before, stream.latest = stream.latest, self._clock()
        observe(stream.latest - before, tokens, timed=stream.timed)

    def _remove(self, stream: Stream) -> None:
        stream.queued = True  # nothing may follow a final response
        self._streams.pop(stream.stream_id, None)
        self._departures.leave(stream)
        self._metrics.ended(stream.outcome_text, self._clock() - stream.began, timed=stream.timed)
        if isinstance(stream.outcome, TextPathError):
            self.errors.add(stream.outcome)
        self._room.notify()

    def _look_for_departures(self) -> None:
        with self._lock:
            silent, to_ask = self._departures.silent(), self._departures.to_ask()
        for stream_id in silent:
            self.cancel(stream_id, "the client went away: its responses arrive nowhere")
        for stream in to_ask:
            if stream.asks_to_end():
                self.cancel(stream.stream_id, "the client cancelled the request")
