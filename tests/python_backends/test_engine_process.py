# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, with a real process; no Triton."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textlib.engine.contract import MAX_FAILED_STEPS, StreamProgress
from textlib.engine.messages import encode_message, progress_rows, read_progress, read_request
from textlib.engine.messages import request_message as message_of
from textlib.engine.process import EngineProcess
from textlib.engine.worker import BROKEN_STATUS
from textlib.errors import EngineFailedError, ModelConfigurationError, RequestError, TextPathError
from textlib.frames import FrameReader, encode_frame
from textlib.scheduling.decoder_loop import DecoderLoop
from textlib.tokens.token_chunk import FinishReason, TokenChunk
from textlib.triton.engine_metrics import KvCache
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest, GuideSpec
from textlib.triton.sampling import SamplingParams

pytestmark = pytest.mark.timed

HERE = Path(__file__).parent
PROGRAM = str(HERE / "counting_engine.py")
REFUSED, BREAKS, ENDS, STATUS, BLOCKS = 1, 2, 3, 7, 10  # of counting_engine
PATIENCE = 60.0
Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts engines; they end with the test."""
    running: list[EngineProcess] = []

    def begin(folder: str = "engine", **options: object) -> EngineProcess:
        parameters = ModelParameters("counting", {"name": "counting"})
        engine = EngineProcess((PROGRAM,), tmp_path / folder, parameters, **options)  # type: ignore[arg-type]
        running.append(engine)
        return engine

    yield begin
    for engine in running:
        engine.close()


def asked(first: int, max_tokens: int = 3, length: int = 1, **fields: object) -> GenerationRequest:
    """A request whose answer counts up from `first`."""
    ids = np.full(length, first, dtype=np.int32)
    sampling = SamplingParams(max_tokens=max_tokens, end_ids=(9,), log_probs=bool(fields))
    return GenerationRequest(ids, sampling, streaming=True, **fields)  # type: ignore[arg-type]


def finished(engine: EngineProcess, count: int) -> dict[int, list[StreamProgress]]:
    """The progress of each stream until that many have ended."""
    made: dict[int, list[StreamProgress]] = defaultdict(list)
    ended = 0
    while ended < count:
        for item in engine.step():
            made[item.stream_id].append(item)
            ended += bool(item.finish or item.error)
    return made


def ids_of(items: list[StreamProgress]) -> list[int]:
    return [token for item in items for token in item.token_ids]


@given(st.lists(st.binary(max_size=40)), st.data())
def test_frames_come_in_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    left, frames, read = b"".join(map(encode_frame, contents)), FrameReader(), list[bytes]()
    while left:
        size = data.draw(st.integers(1, len(left)))
        read += frames.feed(left[:size])
        left = left[size:]
    assert read == contents


def test_messages_say_everything_again() -> None:
    guide = GuideSpec("regex", "(é|\n)")
    request = asked(5, length=4, bad_words=("é".encode(),), num_resumed_ids=2, guide=guide)
    message = json.loads(message_of(8, request))
    again = read_request(message)
    assert message["add"] == 8
    assert again.token_ids.tolist() == request.token_ids.tolist()
    assert again.token_ids.dtype == np.int32
    assert (again.sampling, again.num_resumed_ids) == (request.sampling, 2)
    assert (again.bad_words, again.guide) == (request.bad_words, guide)
    assert read_request(json.loads(message_of(8, asked(5)))).guide is None
    progress = [
        StreamProgress(1, [4, 5], FinishReason.STOP, log_probs=[-1.0, -2.0]),
        StreamProgress(2, [6], log_probs=[]),
        StreamProgress(3, [], error=RequestError("no")),
    ]
    rows = json.loads(encode_message({"made": progress_rows(progress)}))["made"]
    read = read_progress(rows)
    assert read[:2] == progress[:2]
    assert isinstance(read[2].error, RequestError)
    assert str(read[2].error) == "no"


def test_streams_are_answered_together(start: Start) -> None:
    engine = start()
    for number in range(5):
        engine.add(number, asked(100 * (number + 1), max_tokens=number + 1))
    made = finished(engine, 5)
    assert {number: ids_of(items) for number, items in made.items()} == {
        number: [100 * (number + 1) + step for step in range(number + 1)] for number in range(5)
    }
    assert made[4][-1].finish is FinishReason.LENGTH


def test_a_refusal_is_the_request_s(start: Start) -> None:
    engine = start()
    engine.add(1, asked(REFUSED, bad_words=(b"thirteen",)))
    engine.add(2, asked(50))
    made = finished(engine, 2)
    assert isinstance(made[1][0].error, RequestError)
    assert str(made[1][0].error) == "unlucky: thirteen"
    assert ids_of(made[2]) == [50, 51, 52]


def test_a_failed_step_fails_what_it_worked_on(start: Start) -> None:
    engine = start()
    engine.add(1, asked(BREAKS))
    with pytest.raises(EngineFailedError, match="out of luck"):
        finished(engine, 1)
    engine.cancel(1)  # as the loop does; it is forgotten already
    engine.add(2, asked(50))
    assert ids_of(finished(engine, 1)[2]) == [50, 51, 52]


def test_an_engine_that_keeps_failing_ends(start: Start) -> None:
    """A step in between that succeeds is a new beginning; three that fail end the process."""
    ended: list[int] = []

    def end(status: int) -> None:
        ended.append(status)
        raise EOFError

    engine = start(on_exit=end)
    for breaks in (MAX_FAILED_STEPS - 1, MAX_FAILED_STEPS - 1):
        for _ in range(breaks):
            engine.add(1, asked(BREAKS))
            with pytest.raises(EngineFailedError, match="out of luck"):
                finished(engine, 1)
        engine.add(2, asked(50))
        assert ids_of(finished(engine, 1)[2]) == [50, 51, 52]
    for _ in range(MAX_FAILED_STEPS - 1):
        engine.add(1, asked(BREAKS))
        with pytest.raises(EngineFailedError):
            finished(engine, 1)
    engine.add(1, asked(BREAKS))
    with pytest.raises(EOFError):
        finished(engine, 1)
    assert ended == [BROKEN_STATUS]


def test_a_cancelled_stream_makes_nothing_more(start: Start) -> None:
    engine = start()
    engine.add(1, asked(100, max_tokens=10**9))
    while not engine.step():
        pass
    engine.cancel(1)
    engine.add(2, asked(50))
    assert ids_of(finished(engine, 1)[2]) == [50, 51, 52]
    engine.wake()
    assert engine.step() == []


def test_a_step_that_waits_can_be_woken(start: Start) -> None:
    engine, answers = start(), list[object]()
    waiting = threading.Thread(target=lambda: answers.append(engine.step()))
    waiting.start()
    engine.wake()
    waiting.join(PATIENCE)
    assert answers == [[]]


def test_neither_side_waits_for_the_other_with_full_sockets(start: Start) -> None:
    """The process makes more than its socket holds while the stub sends more than that."""
    engine = start()
    engine.add(0, asked(100, max_tokens=60_000))
    time.sleep(0.1)
    for number in range(1, 101):
        engine.add(number, asked(1000 * number, length=8000))
    made = finished(engine, 101)
    assert ids_of(made[0]) == list(range(100, 60_100))
    assert all(ids_of(made[n]) == [1000 * n, 1000 * n + 1, 1000 * n + 2] for n in range(1, 101))


def test_requests_come_from_one_thread_while_another_reads(start: Start) -> None:
    """What the sending thread takes out of a full socket the reading one has, in order."""
    engine, made = start(), dict[int, list[StreamProgress]]()
    reader = threading.Thread(target=lambda: made.update(finished(engine, 101)))
    engine.add(0, asked(100, max_tokens=10_000))
    reader.start()
    for number in range(1, 101):
        engine.add(number, asked(1000 * number, length=8000))
    reader.join(PATIENCE)
    assert ids_of(made[0]) == list(range(100, 10_100))
    assert all(ids_of(made[n]) == [1000 * n, 1000 * n + 1, 1000 * n + 2] for n in range(1, 101))


def test_the_cache_is_told(start: Start) -> None:
    engine = start()
    engine.add(1, asked(100, max_tokens=2))
    finished(engine, 1)
    engine.add(2, asked(50))
    finished(engine, 1)  # with it, or before, came what was true without a stream
    until = time.monotonic() + PATIENCE
    while engine.kv_cache() != KvCache(0, BLOCKS) and time.monotonic() < until:
        engine.wake()
        engine.step()
    assert engine.kv_cache() == KvCache(0, BLOCKS)


def test_what_cannot_be_loaded_is_a_configuration_error(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigurationError, match="unloadable: not for counting"):
        start("unloadable")
    with pytest.raises(ModelConfigurationError, match=f"ended with {STATUS} while it loaded"):
        start("crash")


@pytest.mark.parametrize("how", ["itself", "killed"])
def test_its_end_is_told(start: Start, how: str) -> None:
    class EndedError(Exception):
        pass

    def ended(status: int) -> None:
        raise EndedError(status)

    engine = start(on_exit=ended)
    if how == "itself":
        engine.add(1, asked(ENDS))
    else:
        os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EndedError) as caught:
        finished(engine, 1)
    assert caught.value.args == (STATUS if how == "itself" else -signal.SIGKILL,)
    with pytest.raises(EndedError):
        engine.add(2, asked(50))


def test_it_ends_with_its_stub() -> None:
    """A stub that is killed cannot tell it."""
    script = (
        "import sys, pathlib\n"
        "from textlib.engine.process import EngineProcess\n"
        "from textlib.triton.parameters import ModelParameters\n"
        "engine = EngineProcess((sys.argv[1],), pathlib.Path('x'), ModelParameters('m', {}))\n"
        "print(engine.pid, flush=True)\n"
        "input()\n"
    )
    path = str(HERE.parents[1] / "python_backends")
    stub = subprocess.Popen(
        [sys.executable, "-c", script, PROGRAM],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with stub:
        assert stub.stdout is not None
        engine = int(stub.stdout.readline())
        stub.kill()
    until = time.monotonic() + PATIENCE
    while _lives(engine) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _lives(engine)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Recorder:
    """A ResponseSink."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.errors: list[TextPathError] = []
        self.done = threading.Event()

    def send(self, chunk: TokenChunk) -> None:
        self.ids += chunk.token_ids
        if chunk.last:
            self.done.set()

    def fail(self, error: TextPathError) -> None:
        self.errors.append(error)
        self.done.set()

    def is_cancelled(self) -> bool:
        return False


def test_the_loop_runs_over_it(start: Start) -> None:
    """A request that comes while another runs does not wait for it."""
    engine = start()
    loop = DecoderLoop(engine, capacity=8, wake=engine.wake)
    loop.start()
    sinks = [Recorder() for _ in range(4)]
    long = loop.submit(asked(10, max_tokens=10**9), sinks[0])
    for first, sink in zip((REFUSED, 20, 30), sinks[1:], strict=True):
        loop.submit(asked(first), sink)
        assert sink.done.wait(PATIENCE)
    loop.cancel(long)
    assert sinks[0].done.wait(PATIENCE)
    assert [sink.ids for sink in sinks[2:]] == [[20, 21, 22], [30, 31, 32]]
    assert isinstance(sinks[1].errors[0], RequestError)
    idle = Recorder()
    loop.submit(asked(40), idle)  # after all others have gone
    assert idle.done.wait(PATIENCE)
    assert idle.ids == [40, 41, 42]
    assert loop.close()
