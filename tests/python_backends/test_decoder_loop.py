# SPDX-License-Identifier: Apache-2.0
"""The decoder loop with a scripted engine and recording sinks, no Triton."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from textlib.engine.contract import MAX_FAILED_STEPS, StreamProgress
from textlib.errors import (
    EngineFailedError,
    EngineUnavailableError,
    RequestCancelledError,
    RequestError,
    TextPathError,
)
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.scheduling.decoder_stream import DecoderStream
from textlib.tokens.token_chunk import WINDOW, FinishReason, TokenChunk
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams

pytestmark = pytest.mark.timed

PATIENCE = 60.0
TIMES = (
    "time_to_first_token_seconds_sum",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_sum",
    "inter_token_latency_seconds_count",
    "request_duration_seconds_sum",
    "request_duration_seconds_count",
)
REFUSED_ID = 13


@dataclass
class ScriptedEngine:
    """One id per stream and step, counting up from the first prompt id.

    `before_step` may wait, or raise to fail the step. Finishes at max_tokens.
    """

    before_step: Callable[[], None] = lambda: None
    live: dict[int, tuple[GenerationRequest, int]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    steps: int = 0
    finished: int = 0
    most_live: int = 0
    threads: set[int] = field(default_factory=set)

    def add(self, stream_id: int, request: GenerationRequest) -> None:
        if int(request.token_ids[0]) == REFUSED_ID:
            raise RequestError("text_input is unlucky")
        self.threads.add(threading.get_ident())
        self.live[stream_id] = (request, 0)
        self.most_live = max(self.most_live, len(self.live))

    def step(self) -> Sequence[StreamProgress]:
        self.threads.add(threading.get_ident())
        self.before_step()
        self.steps += 1
        return [self._advance(stream_id) for stream_id in list(self.live)]

    def cancel(self, stream_id: int) -> None:
        self.threads.add(threading.get_ident())
        self.live.pop(stream_id, None)
        self.cancelled.append(stream_id)

    def _advance(self, stream_id: int) -> StreamProgress:
        request, made = self.live[stream_id]
        new = int(request.token_ids[0]) + made
        self.live[stream_id] = (request, made + 1)
        if made + 1 < request.sampling.max_tokens:
            return StreamProgress(stream_id, [new])
        del self.live[stream_id]
        self.finished += 1
        return StreamProgress(stream_id, [new], FinishReason.LENGTH)


@dataclass
class RecordingSink:
    """What one client would see. `delay`: seconds that a send takes."""

    delay: float = 0.0
    refuses: bool = False
    cancelled: bool = False
    chunks: list[TokenChunk] = field(default_factory=list)
    errors: list[TextPathError] = field(default_factory=list)
    finals: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    on_send: Callable[[], object] = lambda: None

    def send(self, chunk: TokenChunk) -> None:
        time.sleep(self.delay)
        if self.refuses:
            raise RuntimeError("the server is gone")
        self.chunks.append(chunk)
        self.on_send()
        self._end(chunk.last)

    def fail(self, error: TextPathError) -> None:
        self.errors.append(error)
        self._end(True)

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    def _end(self, final: bool) -> None:
        self.finals += final
        if final:
            self.done.set()


def generation(first: int = 100, count: int = 5, *, streaming: bool = True) -> GenerationRequest:
    """A request that yields first, first + 1, ... and ends after `count` ids."""
    return GenerationRequest(
        np.array([first], dtype=np.int32), SamplingParams(max_tokens=count), streaming
    )


Start = Callable[..., DecoderLoop]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts loops, and proves that each of them can be closed."""
    loops: list[DecoderLoop] = []

    def make(
        engine: ScriptedEngine, capacity: int = 64, clock: Callable[[], float] = time.monotonic
    ) -> DecoderLoop:
        loop = DecoderLoop(engine, capacity=capacity, clock=clock)
        loop.start()
        loops.append(loop)
        return loop

    before = set(threading.enumerate())
    yield make
    assert all(loop.close(PATIENCE) for loop in loops)
    assert set(threading.enumerate()) <= before


def answered(*sinks: RecordingSink) -> None:
    """Wait until every request has had its final response."""
    for sink in sinks:
        assert sink.done.wait(PATIENCE)


def test_streams_arrive_complete_and_in_order(start: Start) -> None:
    """100 streams at once: every id once, counters cumulative, windows right, one final each."""
    loop = start(ScriptedEngine(), capacity=100)
    sinks = [RecordingSink() for _ in range(100)]
    for number, sink in enumerate(sinks):
        loop.submit(generation(1000 * (number + 1), 50), sink)
    answered(*sinks)

    for number, sink in enumerate(sinks):
        assert sink.ids == list(range(1000 * (number + 1), 1000 * (number + 1) + 50))
        assert sink.finals == 1
        _check_counters(sink)


def _check_counters(sink: RecordingSink) -> None:
    sent: list[int] = []
    for index, chunk in enumerate(sink.chunks):
        assert chunk.index == index
        assert chunk.window == sent[-WINDOW:]
        sent += chunk.token_ids
        assert chunk.num_output_tokens == len(sent)
        assert chunk.token_ids
        assert chunk.finish_reason == (FinishReason.LENGTH if chunk.last else FinishReason.NONE)


def test_without_streaming_there_is_one_response(start: Start) -> None:
    """However many ids there are."""
    loop = start(ScriptedEngine())
    sink = RecordingSink()
    loop.submit(generation(100, 200, streaming=False), sink)
    answered(sink)

    assert len(sink.chunks) == 1
    assert sink.ids == list(range(100, 300))
    assert sink.chunks[0].finish_reason is FinishReason.LENGTH


def test_a_fast_sender_sends_every_id_alone(start: Start) -> None:
    """Coalescing switches itself off when the server keeps up."""
    # Where no time passes, a pause after a step lasts until all is handed to the server.
    loop = start(ScriptedEngine(), clock=lambda: 7.0)
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        loop.submit(generation(count=30), sink)
    answered(*sinks)

    assert [[len(chunk.token_ids) for chunk in sink.chunks] for sink in sinks] == [[1] * 30] * 3


def test_a_slow_sender_coalesces(start: Start) -> None:
    """Fewer, fuller responses, each with all that its stream has: nothing piles up behind it."""
    engine = ScriptedEngine()
    # Each look at this clock is a second later: no pause is long enough for the sender.
    loop = start(engine, clock=count().__next__)
    sinks = [RecordingSink() for _ in range(8)]
    for sink in sinks:
        sink.on_send = partial(_until, lambda: engine.finished == len(sinks))
        loop.submit(generation(count=160), sink)
    answered(*sinks)

    assert all(sink.ids == list(range(100, 260)) for sink in sinks)
    # While the first response was on its way everything else was made: the rest of its stream.
    assert sorted(len(sink.chunks) for sink in sinks)[:-1] == [1] * 7
    assert max(len(sink.chunks) for sink in sinks) <= 2


def test_a_pause_ends_however_slow_the_server_is(start: Start) -> None:
    """The engine's time is worth more than full pauses: 5 % of a step, or 2 ms."""
    engine, blocked = ScriptedEngine(), threading.Event()
    loop = start(engine)
    sink = RecordingSink(on_send=lambda: blocked.wait(PATIENCE))
    loop.submit(generation(count=50), sink)
    _until(lambda: engine.steps == 50)
    blocked.set()
    answered(sink)

    assert sink.ids == list(range(100, 150))


def test_times_of_a_stream(start: Start) -> None:
    """To the first response, between responses per token, to the end; each from its own start."""
    now = [100.0]
    sink = RecordingSink()

    def step() -> None:
        _until(lambda: len(sink.ids) == engine.steps)  # each id is sent before the next is made
        now[0] += 0.25 if engine.steps else 2.0

    engine = ScriptedEngine(before_step=step)
    loop = start(engine, clock=lambda: now[0])
    loop.submit(generation(count=5), sink)
    answered(sink)
    _until(lambda: not loop.live_streams)
    untimed = RecordingSink()
    engine.before_step = lambda: None
    loop.submit(generation(count=5), untimed, timed=False)
    answered(untimed)
    _until(lambda: not loop.live_streams)

    totals, gauges = loop.measure()
    assert totals["tritonctl_output_tokens_total", ()] == 10
    assert {name: totals[f"tritonctl_{name}", ()] for name in TIMES} == {
        "time_to_first_token_seconds_sum": 2.0,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_sum": 1.0,
        "inter_token_latency_seconds_count": 4,
        "request_duration_seconds_sum": 3.0,
        "request_duration_seconds_count": 1,
    }
    assert (gauges.active, gauges.waiting) == (0, 0)
    assert totals["tritonctl_queue_seconds_total", ()] == 0


def test_time_in_the_queue(start: Start) -> None:
    """One place: the second stream waits while the first one has it."""
    now, both = [100.0], threading.Event()

    def step() -> None:
        both.wait(PATIENCE)
        now[0] += 0.5

    loop = start(ScriptedEngine(before_step=step), capacity=1, clock=lambda: now[0])
    sinks = [RecordingSink() for _ in range(2)]
    for sink in sinks:
        loop.submit(generation(count=4), sink)
    both.set()
    answered(*sinks)
    _until(lambda: not loop.live_streams)
    totals, _ = loop.measure()
    assert totals["tritonctl_queue_seconds_total", ()] == 2.0


def test_streams_take_turns(start: Start) -> None:
    """With a slow server, a stream waits for at most a few responses of any other."""
    loop = start(ScriptedEngine(before_step=lambda: time.sleep(0.0002)))
    order: list[int] = []
    sinks = [RecordingSink(delay=0.002) for _ in range(6)]
    for number, sink in enumerate(sinks):
        sink.on_send = partial(order.append, number)
        loop.submit(generation(count=200), sink)
    answered(*sinks)

    for number in range(6):
        turns = [position for position, name in enumerate(order) if name == number]
        for one, following in pairwise(turns):
            between = Counter(order[one + 1 : following])
            assert max(between.values(), default=0) <= 3


def test_requests_join_while_others_run(start: Start) -> None:
    """A short request does not wait for a long one."""
    loop = start(ScriptedEngine(before_step=lambda: time.sleep(0.001)))
    long, short = RecordingSink(), RecordingSink()
    loop.submit(generation(count=1_000_000), long)
    loop.submit(generation(count=3), short)
    answered(short)

    assert not long.done.is_set()


def test_an_engine_that_steps_elsewhere_has_a_request_within_submit() -> None:
    """While a step is waited for; without a place it waits until one is free."""
    woken, stepping = threading.Event(), threading.Event()

    def step() -> None:
        stepping.set()
        assert woken.wait(PATIENCE)

    engine = ScriptedEngine(before_step=step)
    loop = DecoderLoop(engine, capacity=2, wake=woken.set)
    loop.start()
    sinks = [RecordingSink() for _ in range(3)]
    loop.submit(generation(100), sinks[0])
    assert stepping.wait(PATIENCE)
    for first, sink in zip((200, 300), sinks[1:], strict=True):
        loop.submit(generation(first), sink)
    assert [int(request.token_ids[0]) for request, _ in engine.live.values()] == [100, 200]
    woken.set()
    answered(*sinks)
    assert [sink.ids for sink in sinks] == [[*range(n, n + 5)] for n in (100, 200, 300)]
    assert engine.most_live == 2
    assert loop.close(PATIENCE)


def test_capacity_blocks_the_next_batch(start: Start) -> None:
    """What is beyond it stays in Triton's queue, but for the batch at hand; nobody is lost."""
    engine = ScriptedEngine(before_step=lambda: time.sleep(0.0005))
    loop = start(engine, capacity=4)
    sinks = [RecordingSink() for _ in range(20)]
    for pair in zip(sinks[::2], sinks[1::2], strict=True):
        for sink in pair:
            loop.submit(generation(count=10), sink)
        loop.wait_for_capacity()
        assert loop.live_streams < 4
    answered(*sinks)

    assert engine.most_live <= 3 + 2
    assert all(sink.ids == list(range(100, 110)) for sink in sinks)


def test_a_refused_request_fails_alone(start: Start) -> None:
    """The engine's own checks reach the client."""
    loop = start(ScriptedEngine())
    bad, good = RecordingSink(), RecordingSink()
    loop.submit(generation(REFUSED_ID), bad)
    loop.submit(generation(), good)
    answered(bad, good)

    assert isinstance(bad.errors[0], RequestError)
    assert bad.finals == 1
    assert good.ids == [100, 101, 102, 103, 104]


def test_the_engine_is_called_from_one_thread(start: Start) -> None:
    """Some engines insist on an owner thread."""
    engine = ScriptedEngine()
    loop = start(engine)
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        loop.cancel(loop.submit(generation(count=100_000), sink))
    answered(*sinks)

    assert len(engine.threads) <= 1
    assert threading.get_ident() not in engine.threads


def test_client_cancellation_frees_the_engine(start: Start) -> None:
    """Polled while the stream runs, streaming or not; the others go on."""
    engine = ScriptedEngine(before_step=lambda: time.sleep(0.001))
    loop = start(engine)
    gone, silent, stays = RecordingSink(), RecordingSink(), RecordingSink()
    loop.submit(generation(count=100_000), gone)
    loop.submit(generation(count=100_000, streaming=False), silent)
    loop.submit(generation(count=400), stays)
    gone.cancelled = silent.cancelled = True
    answered(gone, silent, stays)

    assert isinstance(gone.errors[0], RequestCancelledError)
    assert isinstance(silent.errors[0], RequestCancelledError)
    assert stays.ids == list(range(100, 500))
    _until(lambda: not engine.live)
    assert gone.finals == silent.finals == stays.finals == 1


def test_inside_an_ensemble_nobody_is_asked(start: Start) -> None:
    """The server always says no there; without receipts the stream runs to its end."""
    loop = start(ScriptedEngine(before_step=lambda: time.sleep(0.005)))
    inside, direct = RecordingSink(cancelled=True), RecordingSink(cancelled=True)
    loop.submit(replace(generation(count=100), acknowledged=True), inside)
    loop.submit(generation(count=100_000), direct)
    answered(inside, direct)

    assert inside.ids == list(range(100, 200))
    assert not inside.errors
    assert isinstance(direct.errors[0], RequestCancelledError)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_server_that_takes_no_response(start: Start) -> None:
    """The stream ends, its slot is free, the next request works."""
    engine = ScriptedEngine(before_step=lambda: time.sleep(0.001))
    loop = start(engine, capacity=1)
    broken, good = RecordingSink(refuses=True), RecordingSink()
    loop.submit(generation(count=100_000), broken)
    loop.submit(generation(), good)
    answered(broken, good)

    assert isinstance(broken.errors[0], RequestCancelledError)
    assert broken.finals == 1
    _until(lambda: not engine.live and not loop.live_streams)


class FailingSteps:
    """Raises for the next `failures` steps."""

    def __init__(self) -> None:
        self.failures = 0

    def __call__(self) -> None:
        time.sleep(0.001)
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("bad allocation")


def test_a_failed_step_fails_its_streams_only(start: Start) -> None:
    """Later requests are served."""
    steps = FailingSteps()
    loop = start(ScriptedEngine(before_step=steps))
    sinks = [RecordingSink() for _ in range(5)]
    for sink in sinks:
        loop.submit(generation(count=100_000), sink)
    _until(lambda: all(sink.chunks for sink in sinks))
    steps.failures = 1
    answered(*sinks)
    after = RecordingSink()
    loop.submit(generation(), after)
    answered(after)

    assert all(isinstance(sink.errors[0], EngineFailedError) for sink in sinks)
    assert all("bad allocation" in str(sink.errors[0]) for sink in sinks)
    assert all(sink.finals == 1 for sink in sinks)
    assert after.ids == [100, 101, 102, 103, 104]


@pytest.mark.parametrize("method", ["receive", "_build_chunk"])
def test_ids_that_cannot_be_decoded_fail_their_stream_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As a decoder of the library that panics: neither thread of the loop ends by it."""
    original = getattr(DecoderStream, method)

    def panic(stream: DecoderStream, ids: Sequence[int], *others: Any) -> Any:
        if 103 in ids:
            raise RuntimeError("retry-limit-in-match over")
        return original(stream, ids, *others)

    monkeypatch.setattr(DecoderStream, method, panic)
    loop = start(ScriptedEngine())
    bad, good = RecordingSink(), RecordingSink()
    loop.submit(generation(100, 200), bad)
    loop.submit(generation(1000, 200), good)
    answered(bad, good)
    assert str(bad.errors[0]).endswith("cannot be decoded: retry-limit-in-match over")
    assert (bad.finals, good.finals) == (1, 1)
    assert good.ids == list(range(1000, 1200))
    assert loop.live_streams == 0


def test_an_engine_that_keeps_failing_is_dead(start: Start) -> None:
    """Then every request is refused with the reason, at once."""
    steps = FailingSteps()
    steps.failures = 10**6
    loop = start(ScriptedEngine(before_step=steps))
    for _ in range(MAX_FAILED_STEPS):
        sink = RecordingSink()
        loop.submit(generation(), sink)
        answered(sink)
        assert isinstance(sink.errors[0], EngineFailedError)

    with pytest.raises(EngineUnavailableError, match=r"3 steps in a row.*bad allocation.*Reload"):
        loop.submit(generation(), RecordingSink())


def test_close_answers_everyone(start: Start) -> None:
    """Live and waiting streams get an error final, further requests are refused."""
    loop = start(ScriptedEngine(before_step=lambda: time.sleep(0.001)))
    sinks = [RecordingSink() for _ in range(10)]
    for number, sink in enumerate(sinks):
        loop.submit(generation(count=100_000, streaming=number % 2 == 0), sink)

    assert loop.close(PATIENCE)
    assert all(isinstance(sink.errors[0], EngineUnavailableError) for sink in sinks)
    assert all(sink.finals == 1 for sink in sinks)
    assert loop.live_streams == 0
    with pytest.raises(EngineUnavailableError, match="being unloaded"):
        loop.submit(generation(), RecordingSink())


def test_close_wakes_who_awaits_room(start: Start) -> None:
    """Unloading does not wait for it."""
    loop = start(ScriptedEngine(before_step=lambda: time.sleep(0.001)), capacity=1)
    loop.submit(generation(count=100_000), RecordingSink())
    waiting = threading.Thread(target=loop.wait_for_capacity)
    waiting.start()
    loop.close(PATIENCE)

    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def test_close_reports_a_step_that_hangs() -> None:
    """The caller learns that a thread is still there instead of waiting for ever."""
    hangs, release = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        release.wait(PATIENCE)

    loop = DecoderLoop(ScriptedEngine(before_step=hang), capacity=1)
    loop.start()
    sink = RecordingSink()
    loop.submit(generation(), sink)
    assert hangs.wait(PATIENCE)

    assert not loop.close(0.05)
    release.set()
    assert loop.close(PATIENCE)
    assert sink.finals == 1


def test_close_before_start() -> None:
    """initialize() may fail in between."""
    assert DecoderLoop(ScriptedEngine(), capacity=1).close()


def test_an_error_from_the_engine_for_one_stream(start: Start) -> None:
    """An engine can give up one sequence without failing the step."""

    class Dropping(ScriptedEngine):
        def _advance(self, stream_id: int) -> StreamProgress:
            del self.live[stream_id]
            return StreamProgress(stream_id, [], error=EngineFailedError("its KV cache was full"))

    loop = start(Dropping())
    sink = RecordingSink()
    loop.submit(generation(), sink)
    answered(sink)

    assert str(sink.errors[0]) == "its KV cache was full"
    assert sink.finals == 1


def test_an_end_without_new_ids(start: Start) -> None:
    """The last response may be empty."""

    class EndsLate(ScriptedEngine):
        def _advance(self, stream_id: int) -> StreamProgress:
            progress = super()._advance(stream_id)
            return (
                progress if not progress.finish else StreamProgress(stream_id, [], progress.finish)
            )

    loop = start(EndsLate())
    sink = RecordingSink()
    loop.submit(generation(count=3), sink)
    answered(sink)

    assert sink.ids == [100, 101]
    assert sink.chunks[-1].last
    assert sink.finals == 1
