# SPDX-License-Identifier: Apache-2.0
"""The loop that every text-generation engine runs in: one stepping thread, one sender thread.

    execute() ─ submit ─▶ stepping thread ─ ids ─▶ streams ─▶ sender thread ─▶ Triton
                          (add, step, cancel)      (coalesced)

*Coalescing.* A response carries every id that its stream has accumulated since its last one:
one id if steps are slower than `pace` and the server keeps up, else more (`send_order.py`).

*Pacing.* After each step the stepping thread pauses until every ready response is sent, for at most
`PAUSE_SHARE` of the step's duration, because a step may hold the interpreter lock. An engine in a
separate process (`engine/process.py`) does not: no pause, and `submit` passes the request directly.

*Queueing.* `admission.py` assigns the places in the engine. `submit` does not block: during a step
that holds the lock, each thread switch costs more than the request. `wait_for_capacity`, at the end
of `execute`, blocks if Triton's queue decides.

*Stop words.* They end a stream by its decoded text (`stop_words.py`), before the next step.

*Ends.* Every submitted request gets exactly one final response: ids, or an error. A failed step
fails the streams that it worked on; after `MAX_FAILED_STEPS` in a row the loop declares the engine
dead and rejects every later request with the reason.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from textlib.engine.contract import GenerationEngine, StreamProgress, as_text_path_error, no_wake
from textlib.errors import (
    EngineFailedError,
    EngineUnavailableError,
    QueueFullError,
    RequestCancelledError,
    TextPathError,
)
from textlib.scheduling.acknowledgements import ReceiptWatch
from textlib.scheduling.admission import TRITON_DECIDES, Admission
from textlib.scheduling.client_departures import POLL_SECONDS, ClientDepartures
from textlib.scheduling.decoder_stream import (
    DecoderStream,
    OutgoingResponse,
    ResponseSink,
    decoding_error,
    open_stop_watch,
)
from textlib.scheduling.engine_health import EngineHealth
from textlib.scheduling.response_pacing import UNPACED, ResponsePacing
from textlib.scheduling.send_order import SendQueue
from textlib.scheduling.stream_ids import StreamIds
from textlib.tokens.token_bytes import TokenTable
from textlib.tokens.token_chunk import FinishReason
from textlib.triton.engine_metrics import EngineMetrics, Gauges, MetricKey
from textlib.triton.request_tensors import GenerationRequest

PAUSE_SHARE = 0.05
MIN_PAUSE_SECONDS = 0.002
ARRIVAL_QUIET_SECONDS = 0.001
_LOG = logging.getLogger(__name__)


class DecoderLoop:
    """Runs an engine for many requests at once.

    capacity, max_queue_size: see `admission`. table: decodes ids; without it stop words are
    rejected, and every id takes a place in the detokenizer's window. receipts: closed by the loop.
    wake: ends a waiting `step` of an engine in a separate process. clock: monotonic seconds.
    """

    def __init__(
        self,
        engine: GenerationEngine,
        *,
        capacity: int,
        max_queue_size: int = TRITON_DECIDES,
        table: TokenTable | None = None,
        receipts: ReceiptWatch | None = None,
        wake: Callable[[], None] = no_wake,
        pace: ResponsePacing = UNPACED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._wake_engine, self._clock = engine, wake, clock
        self._has_own_process = wake is not no_wake
        self._admission = Admission(capacity, max_queue_size)
        self._table = table
        self._departures = ClientDepartures(receipts, clock)
        self._send_queue = SendQueue(self._departures, pace, clock)
        self._metrics = EngineMetrics()
        self.errors = self._metrics.errors  # also counts requests rejected before submission
        self._lock = threading.RLock()
        # While an engine in this process adds a request, other threads may take the loop's lock.
        self._admitting = self._lock if self._has_own_process else threading.RLock()
        self._to_step, self._to_send, self._capacity_free = map(
            threading.Condition, [self._lock] * 3
        )
        self._ids = StreamIds()
        self._streams: dict[int, DecoderStream] = {}
        self._inbox: deque[DecoderStream] = deque()
        self._cancels: deque[int] = deque()
        self._active: set[int] = set()  # in the engine
        self._arrivals = 0
        self._health = EngineHealth()
        self._closing = False
        self._stepper = threading.Thread(target=self._run_steps, name="stepper", daemon=True)
        self._sender = threading.Thread(target=self._run_sender, name="sender", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._stepper.start()
        self._sender.start()

    def submit(self, request: GenerationRequest, sink: ResponseSink, *, timed: bool = True) -> int:
        """Submit a request and return its stream id. timed: observe its times in the metrics.

        Raises EngineUnavailableError if the loop is closing or the engine is dead, QueueFullError,
        and RequestError for stop words without a table; the sink then stays unused.
        """
        watch = open_stop_watch(request, self._table)
        with self._lock:
            if refusal := self._unavailable_reason():
                raise EngineUnavailableError(refusal)
            if refusal := self._admission.rejection_reason(len(self._streams)):
                raise QueueFullError(refusal)
            stream_id = self._ids.next_id(self._streams)
            stream = DecoderStream(stream_id, request, sink, watch, self._table, timed=timed)
            stream.submitted_at = stream.last_response_at = self._clock()
            self._streams[stream.stream_id] = stream
            self._inbox.append(stream)
            self._departures.watch(stream)
            self._metrics.count_accepted(len(request.token_ids))
            self._arrivals += 1
            if self._has_own_process:
                self._admit()
            self._to_step.notify()
            self._to_send.notify()  # an idle sender starts to poll for cancellation
            return stream_id

    def wait_for_capacity(self) -> None:
        """Block while Triton should keep further requests in its queue."""
        with self._lock:
            self._capacity_free.wait_for(
                lambda: (
                    self._unavailable_reason() or self._admission.accepts_batch(len(self._streams))
                )
            )

    def cancel(self, stream_id: int, reason: str = "the request was cancelled") -> None:
        """Fail a live stream with RequestCancelledError and free its engine slot."""
        with self._lock:
            if stream := self._streams.get(stream_id):
                self._finish(stream, RequestCancelledError(reason))

    def close(self, timeout: float = 10.0) -> bool:
        """Fail the live streams and stop both threads; True if they end within `timeout` s."""
        with self._lock:
            self._closing = True
            for stream in self._streams.values():
                self._finish(stream, EngineUnavailableError("the model is being unloaded"))
            for condition in (self._to_step, self._to_send, self._capacity_free):
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
        """Number of requests without a final response."""
        with self._lock:
            return len(self._streams)

    def measure(self) -> tuple[dict[MetricKey, float], Gauges]:
        """Return the counters since the start and the current values."""
        with self._lock:
            self._metrics.count_stalled(self._streams.values(), self._clock())
            active = len(self._active)
            waiting = max(0, sum(s.outcome is None for s in self._streams.values()) - active)
            return self._metrics.totals(), Gauges(active, waiting, self._metrics.progress_at)

    # --- shared, with the lock held ---------------------------------------------------------

    def _unavailable_reason(self) -> str | None:
        if self._closing:
            return "the model is being unloaded; send the request again to a running server"
        return self._health.dead_reason

    def _finish(self, stream: DecoderStream, outcome: FinishReason | TextPathError) -> None:
        if stream.outcome is not None:
            return
        stream.outcome = outcome
        if isinstance(outcome, TextPathError):
            self._cancels.append(stream.stream_id)
            self._wake()
        self._schedule(stream)

    def _wake(self) -> None:
        self._to_step.notify()
        self._wake_engine()  # the stepping thread waits for the condition or in a step

    def _schedule(self, stream: DecoderStream) -> None:
        if self._send_queue.add(stream, len(self._streams)):
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
            if not self._has_own_process:
                self._pause(self._clock() - started, arrivals)

    def _await_work(self) -> bool:
        """False when the loop closes."""
        with self._lock:
            while not (self._inbox or self._cancels or self._active or self._admission.has_waiting):
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
                self._cancel_in_engine(stream_id)
            self._admission.enqueue(arrived)
            while stream := self._admission.pop_next(len(self._active)):
                self._add_to_engine(stream)

    def _cancel_in_engine(self, stream_id: int) -> None:
        if stream_id not in self._active:
            return
        self._active.discard(stream_id)
        try:
            self._engine.cancel(stream_id)
        except Exception:
            _LOG.exception("engine.cancel(%d) failed; the loop drops the stream", stream_id)

    def _add_to_engine(self, stream: DecoderStream) -> None:
        if not stream.request.sampling.max_tokens:  # interrupted after its last id
            with self._lock:
                self._finish(stream, FinishReason.LENGTH)
            return
        try:
            self._engine.add(stream.stream_id, stream.request)
        except Exception as error:
            with self._lock:
                self._finish(stream, as_text_path_error(error))
        else:
            self._active.add(stream.stream_id)
            self._metrics.count_started(self._clock() - stream.submitted_at)

    def _step(self) -> None:
        try:
            progress = self._engine.step()
            with self._lock:
                for item in progress:
                    try:
                        self._deliver(item)
                    except Exception as error:
                        self._finish(self._streams[item.stream_id], decoding_error(error))
        except Exception as error:
            self._fail_step(error)
        else:
            self._health.record_success()

    def _deliver(self, item: StreamProgress) -> None:
        finished = item.finish is not FinishReason.NONE or item.error is not None
        if finished:
            self._active.discard(item.stream_id)
        stream = self._streams.get(item.stream_id)
        if stream is None or stream.outcome is not None:
            return
        if stream.receive(item.token_ids, item.log_probs):
            if not finished:
                self._cancels.append(item.stream_id)  # cancelled before the next step
            self._finish(stream, FinishReason.STOP)
        elif finished:
            stopped = stream.flush()
            self._finish(stream, item.error or (FinishReason.STOP if stopped else item.finish))
        else:
            self._schedule(stream)

    def _fail_step(self, error: Exception) -> None:
        _LOG.exception("a step of the engine failed; %d streams end", len(self._active))
        with self._lock:
            failed = [self._streams[key] for key in self._active if key in self._streams]
            if self._health.record_failure(error):
                self._capacity_free.notify_all()
                failed = list(self._streams.values())
            for stream in failed:
                self._finish(
                    stream, EngineFailedError(f"the engine failed while generating: {error}")
                )

    def _pause(self, step_seconds: float, arrivals: int) -> None:
        """Let the sender and execute() run: *Pacing* above."""
        deadline = self._clock() + max(MIN_PAUSE_SECONDS, PAUSE_SHARE * step_seconds)
        with self._lock:
            while not self._closing:
                remaining = deadline - self._clock()
                if remaining > 0 and self._send_queue.has_ready:
                    self._to_step.wait(remaining)
                elif remaining > 0 and self._arrivals != arrivals:
                    arrivals = self._arrivals
                    self._to_step.wait(min(remaining, ARRIVAL_QUIET_SECONDS))
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
            if self._departures.is_check_due():
                self._cancel_departed()

    def _next_ready(self) -> DecoderStream | None:
        """Return the stream that has waited longest; None after a timeout without one."""
        self._send_queue.release_held()
        if not self._send_queue.has_ready and not self._closing:
            seconds = min(self._send_queue.seconds_to_release(), POLL_SECONDS)
            self._to_send.wait(seconds if self._streams else None)
        stream = self._send_queue.pop_ready()
        if stream is None:
            self._to_step.notify()
        return stream

    def _send(self, stream: DecoderStream) -> None:
        outgoing = self._take_response(stream)
        try:
            if outgoing.error is not None:
                stream.sink.fail(outgoing.error)
            elif outgoing.chunk is not None:
                stream.sink.send(outgoing.chunk)
        except Exception as error:
            _LOG.warning("stream %d: the server took no response: %s", stream.stream_id, error)
            with self._lock:
                stream.outcome = None
                self._finish(stream, RequestCancelledError("the server took no response"))
        with self._lock:
            if outgoing.final:
                self._remove(stream)
            else:
                self._schedule(stream)

    def _take_response(self, stream: DecoderStream) -> OutgoingResponse:
        with self._lock:
            stream.queued = False
            sent_before = stream.sent_ids
            outgoing = stream.next_response()
            if outgoing.chunk is not None:
                self._record_send(stream, sent_before)
            if not self._send_queue.has_ready:
                self._to_step.notify()
            return outgoing

    def _record_send(self, stream: DecoderStream, sent_before: int) -> None:
        index, tokens = stream.responses - 1, stream.sent_ids - sent_before
        self._departures.record_send(stream, index)
        observe = self._metrics.count_next_response if index else self._metrics.count_first_response
        previous, stream.last_response_at = stream.last_response_at, self._clock()
        observe(stream.last_response_at - previous, tokens, timed=stream.timed)

    def _remove(self, stream: DecoderStream) -> None:
        stream.queued = True  # nothing may follow a final response
        self._streams.pop(stream.stream_id, None)
        self._departures.unwatch(stream)
        seconds = self._clock() - stream.submitted_at
        self._metrics.count_finished(stream.outcome_text, seconds, timed=stream.timed)
        if isinstance(stream.outcome, TextPathError):
            self.errors.add(stream.outcome)
        self._capacity_free.notify()

    def _cancel_departed(self) -> None:
        with self._lock:
            silent, to_ask = self._departures.silent_streams(), self._departures.streams_to_poll()
        for stream_id in silent:
            self.cancel(stream_id, "the client left: nothing receives its responses")
        for stream in to_ask:
            if stream.is_cancelled():
                self.cancel(stream.stream_id, "the client cancelled the request")
