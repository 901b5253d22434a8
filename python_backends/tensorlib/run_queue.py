# SPDX-License-Identifier: Apache-2.0
"""Requests wait here for a run of the graph: bounded, first come, first served. Without Triton.

A bound in Triton's own queue makes tritonserver 2.51 stop fetching ahead: it then notices up to
half a second late that the model is free (decision 12). Without it its queue has no end, and
a model does not see who waits. So a batch that Triton could fill is taken at once: more may wait
behind it. One that it could not fill has emptied its queue, and is worked on meanwhile, so that the
next one gathers and Triton counts one execution a run; unless many wait here already, where what is
too many is to be refused without delay.

A graph on a CPU may be run several times at once, each run on a thread of its own (a lane). What
comes then begins as soon as a lane is free, and Triton hands over more at once: were execute() to
wait for a lane, the lanes would wait for what Triton keeps, and cores stood idle.

With a bound for a run's tokens a request's texts wait one by one, each with its own length
(tensorlib/packing.py says who shares a run); the request is answered when all of them are.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tensorlib.batches import MASK, Answer, Asked, Padding, Run, Shape, answered, joined
from tensorlib.packing import first_of, packed
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
    parts: "list[Part]" = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether nothing of it waits any more."""
        return bool(self.parts) and all(part.begun for part in self.parts)

    @property
    def is_answered(self) -> bool:
        """Whether all of it is."""
        return all(part.answer is not None for part in self.parts)


@dataclass(eq=False)
class Part:
    """What of a request runs together: all of it, or one of its texts."""

    request: Waiting
    asked: Asked
    arrived: float
    length: int
    begun: bool = False
    answer: Answer | None = None


class RunQueue:
    """`most`: rows in one run. `bound`: requests that may wait; 0 for any number, TRITON_DECIDES
    where Triton's queue has priorities or timeouts, and nobody waits here. `most_tokens`: in one
    run, padding included; 0: requests stay whole, and their tokens are not counted. `lanes`: runs
    at a time, each by another thread; with one, those of small batches happen in `handle`.
    """

    def __init__(
        self,
        run: Run,
        most: int,
        bound: int,
        padding: Padding = _ALIKE_ONLY,
        *,
        most_tokens: int = 0,
        lanes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._padding = padding
        self._most = most
        self._bound = bound
        # Without a mask nobody knows what padding is: images, or texts that padding would change.
        self._most_tokens = most_tokens if MASK in padding.inputs else 0
        self._clock = clock
        self._lines: dict[Shape, list[Part]] = {}  # who waits, by what may share a run
        self._count = 0  # of requests
        self._running = 0
        self._closing = False
        self._lock = threading.Lock()  # of all above
        self._someone_waits = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._lanes = lanes
        self._turn = threading.BoundedSemaphore(lanes)  # of the graph
        names = [f"runs-{lane}" for lane in range(lanes)]
        self._workers = [threading.Thread(target=self._work, name=n, daemon=True) for n in names]

    def start(self) -> None:
        """Begin to work on what `handle` leaves."""
        for worker in self._workers:
            worker.start()

    def handle(self, requests: Sequence[Waiting]) -> None:
        """Take the requests of one execute(); returns when Triton should hand over more."""
        decides = self._bound == TRITON_DECIDES
        if self._lanes > 1 or (not decides and self._takes_more(requests)):
            self._leave(requests)
            refused = self._take(requests)
            self._wake()
            self._refuse(refused)
            if decides:
                self._wait_for_a_lane()
            return
        with self._turn:
            refused = self._take(requests)
            answers = list(self._next_run())
            while decides and self._count:
                answers += self._next_run()
            self._leave(each for each in requests if not each.begun)
        self._wake()
        self._refuse(refused)
        _send(answers)

    def close(self) -> None:
        """End the threads, when everybody is answered."""
        with self._lock:
            self._closing = True
            self._someone_waits.notify_all()
        for worker in self._workers:
            worker.join()

    def _take(self, requests: Iterable[Waiting]) -> list[Waiting]:
        """Let them wait; returns those who may not."""
        refused = []
        with self._lock:
            for each in requests:
                if self._is_full():
                    refused.append(each)
                    continue
                each.parts = self._parts(each)
                for part in each.parts:
                    self._lines.setdefault(part.asked.shape(self._padding), []).append(part)
                self._count += 1
        return refused

    def _parts(self, request: Waiting) -> list[Part]:
        whole, now = request.asked, self._clock()
        texts = whole.texts(self._padding) if self._most_tokens else [whole]
        return [Part(request, text, now, self._length(text)) for text in texts]

    def _length(self, part: Asked) -> int:
        """Its tokens; 0 where it cannot share a run that counts them."""
        return 0 if self._most_tokens and part.rows > 1 else part.length(self._padding)

    def _takes_more(self, requests: Sequence[Waiting]) -> bool:
        if sum(each.asked.rows for each in requests) >= self._most:
            return True
        with self._lock:
            return 0 < self._bound <= 2 * self._count

    def _wait_for_a_lane(self) -> None:
        """Until what comes next could begin at once."""
        with self._lock:
            self._room.wait_for(lambda: not self._count and self._running < self._lanes)

    def _is_full(self) -> bool:
        places = self._most * (self._lanes - self._running)  # of runs that are about to begin
        return self._bound > 0 and self._count >= self._bound + places

    def _refuse(self, requests: Sequence[Waiting]) -> None:
        for each in requests:
            error = QueueFullError(
                f"the engine's queue is full: {self._bound} requests wait for a run "
                "(serving.queue.max_queue_size). Send the request again later."
            )
            _send([(each, error)])

    def _wake(self) -> None:
        with self._lock:
            if self._count:
                self._someone_waits.notify()

    @staticmethod
    def _leave(requests: Iterable[Waiting]) -> None:
        """Make them outlive execute(), after which Triton takes its tensors back."""
        for each in requests:
            if len(each.parts) <= 1:
                each.asked = each.asked.copied()
            for part in each.parts:
                if not part.begun:
                    part.asked = each.asked if len(each.parts) == 1 else part.asked.copied()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._someone_waits.wait_for(lambda: self._count or self._closing)
                if not self._count:
                    return
            with self._turn:
                answers = self._next_run()
            _send(answers)

    def _next_run(self) -> list[tuple[Waiting, Answer]]:
        """Run the next batch; the requests that are answered by it. Holds the turn."""
        batch = self._next_batch()
        if not batch:
            return []
        gone = [each for each in batch if self._has_gone(each)]
        present = [each for each in batch if each not in gone]
        asked = [each.asked for each in present]
        answers = answered(asked, self._run, self._padding) if present else []
        given = dict(zip(present, answers, strict=True))
        return self._end(
            given | {each: RequestCancelledError("the client has gone.") for each in gone}
        )

    def _end(self, answers: Mapping[Part, Answer]) -> list[tuple[Waiting, Answer]]:
        """Of a run: the requests that have all of their answers by it, not by another lane's."""
        with self._lock:
            self._running -= 1
            for part, answer in answers.items():
                part.answer = answer
            requests = dict.fromkeys(part.request for part in answers)
            whole = [each for each in requests if each.is_answered]
            self._room.notify_all()
        return [(each, self._whole(each)) for each in whole]

    def _whole(self, request: Waiting) -> Answer:
        """Its answer, out of those of its parts."""
        answers = [part.answer for part in request.parts if part.answer is not None]
        return joined(request.asked, answers, self._padding) if self._most_tokens else answers[0]

    def _next_batch(self) -> list[Part]:
        with self._lock:
            if not self._lines:
                return []
            self._running += 1
            shape = self._next_line()
            line = self._lines[shape]
            batch = self._packed(line) if self._most_tokens else self._with_the_oldest(line)
            for each in batch:
                each.begun = True
            self._lines[shape] = [each for each in line if not each.begun]
            if not self._lines[shape]:
                del self._lines[shape]
            self._count -= sum(request.begun for request in {each.request for each in batch})
            if self._count:
                self._someone_waits.notify()  # for another lane
            elif self._running < self._lanes:
                self._room.notify_all()
        return batch

    def _next_line(self) -> Shape:
        """That of the oldest, or of who has the first claim."""
        if not self._most_tokens:
            return min(self._lines.items(), key=lambda item: item[1][0].arrived)[0]
        first = self._first(each for line in self._lines.values() for each in line)
        return first.asked.shape(self._padding)

    def _first(self, parts: Iterable[Part]) -> Part:
        return first_of(list(parts), self._clock())

    def _packed(self, line: Sequence[Part]) -> list[Part]:
        tokens, cost = self._most_tokens, self._padding.run_tokens
        first = self._first(line)
        if not first.length:  # it runs as it came
            return [first]
        return packed([each for each in line if each.length], first, self._most, tokens, cost)

    def _with_the_oldest(self, line: Sequence[Part]) -> list[Part]:
        """Those of its own length that fit, then of each other length if that saves time.

        A group of another length costs tokens of padding, or a run of its own.
        """
        oldest = line[0]
        batch, rows, length = [oldest], oldest.asked.rows, oldest.length
        groups: dict[int, list[Part]] = {}
        for each in line[1:]:
            groups.setdefault(each.length, []).append(each)
        for other in sorted(groups, key=lambda other: abs(other - oldest.length)):
            group = _fitting(groups[other], self._most - rows)
            more, longest = sum(each.asked.rows for each in group), max(length, other)
            padded = longest * (rows + more) - length * rows - other * more
            if group and padded <= self._padding.run_tokens:
                batch, rows, length = batch + group, rows + more, longest
        return batch

    def _has_gone(self, part: Part) -> bool:
        if self._clock() - part.arrived <= _ASKED_AFTER_SECONDS:
            return False
        try:
            return part.request.has_gone()
        except Exception as error:
            _LOG.warning("the server does not say whether a client has gone: %s", error)
            return False


def _fitting(line: Sequence[Part], rows: int) -> list[Part]:
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
