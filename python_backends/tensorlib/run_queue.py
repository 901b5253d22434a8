# SPDX-License-Identifier: Apache-2.0
"""Requests wait here for a run of the graph: bounded, first come, first served. Without Triton.

A bound in Triton's own queue makes tritonserver 2.51 stop fetching ahead: it then notices up to
half a second late that the model is free (decision 12). Without it its queue has no end, and
a model does not see who waits. So a batch that Triton could fill is taken at once: more may wait
behind it. One that it could not fill has emptied its queue, and is worked on meanwhile, so that the
next one gathers and Triton counts one execution a run; unless many wait here already, where what is
too many is to be refused without delay.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tensorlib.batches import Answer, Asked, Padding, Run, Shape, answered
from textlib.errors import QueueFullError, RequestCancelledError

TRITON_DECIDES = -1
# To ask Triton whether a client has gone is a round trip: only for who has waited long.
_ASKED_AFTER_SECONDS = 0.25
_ALIKE_ONLY = Padding()
_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Waiting:
    """A request, how it is answered, and whether its client has gone; the rest is set here."""

    asked: Asked
    answer: Callable[[Answer], None]
    has_gone: Callable[[], bool]
    arrived: float = 0.0
    length: int = 0
    begun: bool = False


class RunQueue:
    """`most`: rows in one run. `bound`: requests that may wait; 0 for any number, TRITON_DECIDES
    where Triton's queue has priorities or timeouts, and nobody waits here.
    """

    def __init__(
        self,
        run: Run,
        most: int,
        bound: int,
        padding: Padding = _ALIKE_ONLY,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._padding = padding
        self._most = most
        self._bound = bound
        self._clock = clock
        self._lines: dict[Shape, list[Waiting]] = {}  # who waits, by what may share a run
        self._count = 0
        self._running = False
        self._closing = False
        self._changed = threading.Condition()  # of all above
        self._turn = threading.Lock()  # of the graph: one run at a time
        self._worker = threading.Thread(target=self._work, name="runs", daemon=True)

    def start(self) -> None:
        """Begin to work on what `handle` leaves."""
        self._worker.start()

    def handle(self, requests: Sequence[Waiting]) -> None:
        """Take the requests of one execute(); returns when Triton should hand over more."""
        if self._bound != TRITON_DECIDES and self._takes_more(requests):
            self._leave(requests)
            refused = self._take(requests)
            self._wake()
            self._refuse(refused)
            return
        with self._turn:
            refused = self._take(requests)
            answers = list(self._next_run())
            while self._bound == TRITON_DECIDES and self._count:
                answers += self._next_run()
            self._leave(each for each in requests if not each.begun)
        self._wake()
        self._refuse(refused)
        _send(answers)

    def close(self) -> None:
        """End the thread, when everybody is answered."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._worker.join()

    def _take(self, requests: Iterable[Waiting]) -> list[Waiting]:
        """Let them wait; returns those who may not."""
        refused = []
        with self._changed:
            for each in requests:
                if self._is_full():
                    refused.append(each)
                    continue
                each.arrived = self._clock()
                each.length = each.asked.length(self._padding)
                self._lines.setdefault(each.asked.shape(self._padding), []).append(each)
                self._count += 1
        return refused

    def _takes_more(self, requests: Sequence[Waiting]) -> bool:
        if sum(each.asked.rows for each in requests) >= self._most:
            return True
        with self._changed:
            return 0 < self._bound <= 2 * self._count

    def _is_full(self) -> bool:
        places = 0 if self._running else self._most  # of a run that is about to begin
        return self._bound > 0 and self._count >= self._bound + places

    def _refuse(self, requests: Sequence[Waiting]) -> None:
        for each in requests:
            error = QueueFullError(
                f"the engine's queue is full: {self._bound} requests wait for a run "
                "(serving.queue.max_queue_size). Send the request again later."
            )
            _send([(each, error)])

    def _wake(self) -> None:
        with self._changed:
            if self._count:
                self._changed.notify()

    @staticmethod
    def _leave(requests: Iterable[Waiting]) -> None:
        """Make them outlive execute(), after which Triton takes its tensors back."""
        for each in requests:
            each.asked = each.asked.copied()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._count or self._closing)
                if not self._count:
                    return
            with self._turn:
                answers = self._next_run()
            _send(answers)

    def _next_run(self) -> list[tuple[Waiting, Answer]]:
        """Run the oldest request, with those of its shape that fit; holds the turn."""
        batch = self._next_batch()
        if not batch:
            return []
        gone = [each for each in batch if self._has_gone(each)]
        present = [each for each in batch if each not in gone]
        asked = [each.asked for each in present]
        answers = answered(asked, self._run, self._padding) if present else []
        with self._changed:
            self._running = False
        cancelled = RequestCancelledError("the client has gone.")
        return [*zip(present, answers, strict=True), *((each, cancelled) for each in gone)]

    def _next_batch(self) -> list[Waiting]:
        with self._changed:
            if not self._lines:
                return []
            self._running = True
            shape, line = min(self._lines.items(), key=lambda item: item[1][0].arrived)
            batch = self._with_the_oldest(line)
            for each in batch:
                each.begun = True
            self._lines[shape] = [each for each in line if not each.begun]
            if not self._lines[shape]:
                del self._lines[shape]
            self._count -= len(batch)
        return batch

    def _with_the_oldest(self, line: Sequence[Waiting]) -> list[Waiting]:
        """Those of its own length that fit, then of each other length if that saves time.

        A group of another length costs tokens of padding, or a run of its own.
        """
        oldest = line[0]
        batch, rows, length = [oldest], oldest.asked.rows, oldest.length
        groups: dict[int, list[Waiting]] = {}
        for each in line[1:]:
            groups.setdefault(each.length, []).append(each)
        for other in sorted(groups, key=lambda other: abs(other - oldest.length)):
            group = _fitting(groups[other], self._most - rows)
            more, longest = sum(each.asked.rows for each in group), max(length, other)
            padded = longest * (rows + more) - length * rows - other * more
            if group and padded <= self._padding.run_tokens:
                batch, rows, length = batch + group, rows + more, longest
        return batch

    def _has_gone(self, each: Waiting) -> bool:
        if self._clock() - each.arrived <= _ASKED_AFTER_SECONDS:
            return False
        try:
            return each.has_gone()
        except Exception as error:
            _LOG.warning("the server does not say whether a client has gone: %s", error)
            return False


def _fitting(line: Sequence[Waiting], rows: int) -> list[Waiting]:
    """As many from its beginning as have at most `rows` rows."""
    totals = accumulate(each.asked.rows for each in line)
    return [each for each, total in zip(line, totals, strict=True) if total <= rows]


def _send(answers: Iterable[tuple[Waiting, Answer]]) -> None:
    """One that the server does not take must not keep the others from theirs, or end the thread."""
    for each, answer in answers:
        try:
            each.answer(answer)
        except Exception as error:
            _LOG.warning("the server took no response: %s", error)
