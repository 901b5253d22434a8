# SPDX-License-Identifier: Apache-2.0
"""The queue for runs of a graph: bounded, first come, first served. Without Triton.

A bound on Triton's own queue makes tritonserver 2.51 stop prefetching: it then notices up to half a
second late that the model is free (decision 12). Without a bound its queue is unlimited, and a
model does not see the waiting requests. So the queue takes a full batch at once, because more
requests may wait behind it. A batch that is not full has emptied Triton's queue: `submit` runs it
before it returns, so that the next batch accumulates and Triton counts one execution per run.
Exception: while many requests wait here, `submit` returns at once to reject excess requests without
delay.

A graph on a CPU may run several times in parallel, each run in a separate thread (a lane). Requests
start as soon as a lane is free, and Triton passes more at once: if execute() waited for a lane, the
lanes would wait for requests in Triton's queue, and cores would be idle.

With a token limit per run, a request's texts wait separately, each with its own length
(tensorlib/packing.py chooses the texts of a run); the request is answered when all texts are.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tensorlib.batches import (
    MASK,
    Answer,
    BatchKey,
    GraphRequest,
    Padding,
    RunGraph,
    join_answers,
    run_batch,
)
from tensorlib.packing import next_row, rows_for_run
from textlib.errors import QueueFullError, RequestCancelledError

TRITON_DECIDES = -1
# Checking for cancellation is a round trip to Triton: only after this waiting time.
_CANCEL_CHECK_SECONDS = 0.25
_NO_PADDING = Padding()
_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class QueuedRequest:
    """A request in the queue."""

    graph_request: GraphRequest
    answer: Callable[[Answer], None]  # sends the response
    is_cancelled: Callable[[], bool]
    parts: "list[RequestPart]" = field(default_factory=list)  # set by the queue

    @property
    def is_started(self) -> bool:
        """Whether every part has started."""
        return bool(self.parts) and all(part.is_started for part in self.parts)

    @property
    def is_answered(self) -> bool:
        """Whether every part has its answer."""
        return all(part.answer is not None for part in self.parts)


@dataclass(eq=False)
class RequestPart:
    """A unit of work: a whole request, or one of its texts."""

    request: QueuedRequest
    graph_request: GraphRequest
    arrived: float
    length: int
    is_started: bool = False
    answer: Answer | None = None


class RunQueue:
    """Runs a graph for queued requests.

    max_rows: rows of one run. max_waiting: requests that may wait; 0: unlimited, TRITON_DECIDES:
    Triton's queue has priorities or timeouts, and no request waits here. max_tokens: tokens of one
    run, padding included; 0: requests are not split and tokens do not count. lanes: parallel runs,
    each in its own thread; with one lane, `submit` itself runs small batches.
    """

    def __init__(
        self,
        run: RunGraph,
        max_rows: int,
        max_waiting: int,
        padding: Padding = _NO_PADDING,
        *,
        max_tokens: int = 0,
        lanes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._padding = padding
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        # Without a mask padding is not known: images, or texts that padding would change.
        self._max_tokens = max_tokens if MASK in padding.inputs else 0
        self._clock = clock
        self._queues: dict[BatchKey, list[RequestPart]] = {}  # waiting parts by key
        self._count = 0  # waiting requests
        self._running = 0
        self._closing = False
        self._lock = threading.Lock()  # guards all fields above
        self._work_available = threading.Condition(self._lock)
        self._lane_free = threading.Condition(self._lock)
        self._lanes = lanes
        self._free_lanes = threading.BoundedSemaphore(lanes)  # a run holds one
        names = [f"runs-{lane}" for lane in range(lanes)]
        self._workers = [
            threading.Thread(target=self._run_worker, name=n, daemon=True) for n in names
        ]

    def start(self) -> None:
        """Start the worker threads."""
        for worker in self._workers:
            worker.start()

    def submit(self, requests: Sequence[QueuedRequest]) -> None:
        """Queue the requests of one execute(); returns when Triton should pass more."""
        triton_decides = self._max_waiting == TRITON_DECIDES
        if self._lanes > 1 or (not triton_decides and self._returns_at_once(requests)):
            self._detach(requests)
            rejected = self._enqueue(requests)
            self._wake()
            self._reject(rejected)
            if triton_decides:
                self._wait_for_lane()
            return
        with self._free_lanes:
            rejected = self._enqueue(requests)
            answers = list(self._next_run())
            while triton_decides and self._count:
                answers += self._next_run()
            self._detach(each for each in requests if not each.is_started)
        self._wake()
        self._reject(rejected)
        _send(answers)

    def close(self) -> None:
        """Answer all waiting requests and stop the threads."""
        with self._lock:
            self._closing = True
            self._work_available.notify_all()
        for worker in self._workers:
            worker.join()

    def _enqueue(self, requests: Iterable[QueuedRequest]) -> list[QueuedRequest]:
        """Queue the requests; returns the rejected ones."""
        rejected = []
        with self._lock:
            for each in requests:
                if self._is_full():
                    rejected.append(each)
                    continue
                each.parts = self._split(each)
                for part in each.parts:
                    self._queues.setdefault(part.graph_request.batch_key(self._padding), []).append(
                        part
                    )
                self._count += 1
        return rejected

    def _split(self, request: QueuedRequest) -> list[RequestPart]:
        graph_request, now = request.graph_request, self._clock()
        texts = graph_request.split_texts(self._padding) if self._max_tokens else [graph_request]
        return [RequestPart(request, text, now, self._length(text)) for text in texts]

    def _length(self, part: GraphRequest) -> int:
        """Return the tokens of a part; 0 if it cannot share a run with a token limit."""
        return 0 if self._max_tokens and part.rows > 1 else part.length(self._padding)

    def _returns_at_once(self, requests: Sequence[QueuedRequest]) -> bool:
        if sum(each.graph_request.rows for each in requests) >= self._max_rows:
            return True
        with self._lock:
            return 0 < self._max_waiting <= 2 * self._count

    def _wait_for_lane(self) -> None:
        """Wait until the next request could start at once."""
        with self._lock:
            self._lane_free.wait_for(lambda: not self._count and self._running < self._lanes)

    def _is_full(self) -> bool:
        places = self._max_rows * (self._lanes - self._running)  # of runs that are about to start
        return self._max_waiting > 0 and self._count >= self._max_waiting + places

    def _reject(self, requests: Sequence[QueuedRequest]) -> None:
        for each in requests:
            error = QueueFullError(
                f"the engine's queue is full: {self._max_waiting} requests wait for a run "
                "(serving.queue.max_queue_size). Send the request again later."
            )
            _send([(each, error)])

    def _wake(self) -> None:
        with self._lock:
            if self._count:
                self._work_available.notify()

    @staticmethod
    def _detach(requests: Iterable[QueuedRequest]) -> None:
        """Copy the arrays of unstarted parts: Triton releases its tensors after execute()."""
        for each in requests:
            if len(each.parts) <= 1:
                each.graph_request = each.graph_request.copy()
            for part in each.parts:
                if not part.is_started:
                    part.graph_request = (
                        each.graph_request if len(each.parts) == 1 else part.graph_request.copy()
                    )

    def _run_worker(self) -> None:
        while True:
            with self._lock:
                self._work_available.wait_for(lambda: self._count or self._closing)
                if not self._count:
                    return
            with self._free_lanes:
                answers = self._next_run()
            _send(answers)

    def _next_run(self) -> list[tuple[QueuedRequest, Answer]]:
        """Run the next batch and return the requests that it completes. Holds a lane."""
        batch = self._next_batch()
        if not batch:
            return []
        cancelled = [each for each in batch if self._is_cancelled(each)]
        active = [each for each in batch if each not in cancelled]
        graph_requests = [each.graph_request for each in active]
        answers = run_batch(graph_requests, self._run, self._padding) if active else []
        answers_by_part = dict(zip(active, answers, strict=True))
        return self._record_answers(
            answers_by_part
            | {each: RequestCancelledError("the client has left.") for each in cancelled}
        )

    def _record_answers(
        self, answers: Mapping[RequestPart, Answer]
    ) -> list[tuple[QueuedRequest, Answer]]:
        """Record a run's answers; return the requests that it completes."""
        with self._lock:
            self._running -= 1
            for part, answer in answers.items():
                part.answer = answer
            requests = dict.fromkeys(part.request for part in answers)
            complete = [each for each in requests if each.is_answered]
            self._lane_free.notify_all()
        return [(each, self._request_answer(each)) for each in complete]

    def _request_answer(self, request: QueuedRequest) -> Answer:
        """Return a request's answer, joined from its parts."""
        answers = [part.answer for part in request.parts if part.answer is not None]
        return (
            join_answers(request.graph_request, answers, self._padding)
            if self._max_tokens
            else answers[0]
        )

    def _next_batch(self) -> list[RequestPart]:
        with self._lock:
            if not self._queues:
                return []
            self._running += 1
            key = self._next_key()
            queue = self._queues[key]
            batch = self._pack(queue) if self._max_tokens else self._batch_with_oldest(queue)
            for each in batch:
                each.is_started = True
            self._queues[key] = [each for each in queue if not each.is_started]
            if not self._queues[key]:
                del self._queues[key]
            self._count -= sum(request.is_started for request in {each.request for each in batch})
            if self._count:
                self._work_available.notify()  # for another lane
            elif self._running < self._lanes:
                self._lane_free.notify_all()
        return batch

    def _next_key(self) -> BatchKey:
        """Return the key of the oldest part, or with a token limit of the next text."""
        if not self._max_tokens:
            return min(self._queues.items(), key=lambda item: item[1][0].arrived)[0]
        first = self._first(each for queue in self._queues.values() for each in queue)
        return first.graph_request.batch_key(self._padding)

    def _first(self, parts: Iterable[RequestPart]) -> RequestPart:
        return next_row(list(parts), self._clock())

    def _pack(self, queue: Sequence[RequestPart]) -> list[RequestPart]:
        tokens, cost = self._max_tokens, self._padding.run_tokens
        first = self._first(queue)
        if not first.length:  # it runs unchanged
            return [first]
        return rows_for_run(
            [each for each in queue if each.length], first, self._max_rows, tokens, cost
        )

    def _batch_with_oldest(self, queue: Sequence[RequestPart]) -> list[RequestPart]:
        """Return the oldest part with parts of its length, then of other lengths if cheaper.

        A group of another length costs tokens of padding, or a separate run.
        """
        oldest = queue[0]
        batch, rows, length = [oldest], oldest.graph_request.rows, oldest.length
        groups: dict[int, list[RequestPart]] = {}
        for each in queue[1:]:
            groups.setdefault(each.length, []).append(each)
        for group_length in sorted(
            groups, key=lambda group_length: abs(group_length - oldest.length)
        ):
            group = _parts_that_fit(groups[group_length], self._max_rows - rows)
            more, max_length = (
                sum(each.graph_request.rows for each in group),
                max(length, group_length),
            )
            padded = max_length * (rows + more) - length * rows - group_length * more
            if group and padded <= self._padding.run_tokens:
                batch, rows, length = batch + group, rows + more, max_length
        return batch

    def _is_cancelled(self, part: RequestPart) -> bool:
        if self._clock() - part.arrived <= _CANCEL_CHECK_SECONDS:
            return False
        try:
            return part.request.is_cancelled()
        except Exception as error:
            _LOG.warning("the server did not report whether a client cancelled: %s", error)
            return False


def _parts_that_fit(parts: Sequence[RequestPart], rows: int) -> list[RequestPart]:
    """Return the longest prefix of `parts` with at most `rows` rows."""
    totals = accumulate(each.graph_request.rows for each in parts)
    return [each for each, total in zip(parts, totals, strict=True) if total <= rows]


def _send(answers: Iterable[tuple[QueuedRequest, Answer]]) -> None:
    """Send the answers; a failed send must not affect the others or end the thread."""
    for each, answer in answers:
        try:
            each.answer(answer)
        except Exception as error:
            _LOG.warning("the server took no response: %s", error)
