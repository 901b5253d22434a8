# SPDX-License-Identifier: Apache-2.0
"""What the rules on streams and batches say happens under traffic, seen on a real Triton."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.check_models.models import MODEL
from tests.check_models.streaming import STREAM
from tests.judge import PATIENCE, proven
from tests.served import NEVER, VALUES, Served, floats
from tritonctl.checks.examples.files import Example
from tritonctl.checks.rules import RULES

pytestmark = pytest.mark.server
# A few of each family run with the other tests of servers.
everything = pytest.mark.exhaustive

FINAL = "triton_final_response"
LOOP = "        for request in requests:\n"
QUESTIONS = 5
SLEEP = "        import time; time.sleep({})\n"


def numbers(responses: Iterator[service_pb2.ModelStreamInferResponse]) -> list[float]:
    """What a stream says, in the order in which it says it."""
    found = []
    for response in responses:
        assert not response.error_message
        contents = response.infer_response.raw_output_contents
        found += [floats(contents[0])[0]] if contents else []
    return found


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """The results of calls at the same time; the exception of what fails."""
    with ThreadPoolExecutor(count) as pool:
        calls: list[Future[Any]] = [pool.submit(call, number) for number in range(count)]
    return [one.exception() or one.result() for one in calls]


def slowly(files: Example, seconds: float, name: str = "m") -> Example:
    """The same with a model that takes that long for a batch."""
    path = f"{name}/1/model.py"
    code = files[path]
    assert isinstance(code, str)
    assert LOOP in code
    return {**files, path: code.replace(LOOP, SLEEP.format(seconds) + LOOP, 1)}


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all of them."""
    server = Served(tmp_path_factory.mktemp("traffic"))
    yield server
    server.stop()


@pytest.fixture
def server(one_server: Served, request: pytest.FixtureRequest) -> Served:
    """As it is, or another one."""
    return proven(one_server, request)


@everything
def test_order_lost(server: Served) -> None:
    """TC401: two instances scramble streams, with preserve_ordering they do not."""
    # Every second response takes longer, so that the next one can be ready before it.
    sleeping = MODEL.replace(
        "            output =", "            pause(tensor)\n            output ="
    )
    sleeping += (
        "\n\ndef pause(tensor):\n    import time; time.sleep(0.03 * (tensor[0][0] % 2 == 0))\n"
    )
    slow = {"m/1/model.py": sleeping}
    wanted = [float(number) for number in range(16)]
    server.serve({**RULES["TC401"].bad_example, **slow})
    scrambled = together(4, lambda _: numbers(server.stream("e")))
    assert all(sorted(one) == wanted for one in scrambled)
    assert any(one != wanted for one in scrambled)
    server.serve({**RULES["TC401"].good_example, **slow})
    assert together(4, lambda _: numbers(server.stream("e"))) == [wanted] * 4


def test_responses_alone(server: Served) -> None:
    """TC402: without dynamic batching each response is an execution."""
    server.serve(slowly(RULES["TC402"].bad_example, 0.02))
    numbers(server.stream("e"))
    assert server.batches(16) == {1: 16}
    server.serve(slowly(RULES["TC402"].good_example, 0.02))
    numbers(server.stream("e"))
    assert max(server.batches(16)) > 1


def overtakes(server: Served) -> bool:
    """Whether a second stream begins before the first has ended."""
    order = [one.infer_response.id for one in server.streams("first", "second")]
    assert set(order) == {"first", "second"}
    return "first" in order[order.index("second") :]


@everything
def test_streams_in_turn(server: Served) -> None:
    """TC404: with preserve_ordering a stream begins when the one before it has ended."""
    slow = STREAM.replace("        output", "        import time; time.sleep(0.05)\n        output")
    server.serve({**RULES["TC404"].bad_example, "m/1/model.py": slow})
    assert not overtakes(server)
    server.serve({**RULES["TC404"].good_example, "m/1/model.py": slow})
    assert overtakes(server)


@everything
def test_responses_returned(server: Served) -> None:
    """TC411: every request fails; undecoupled it is answered."""
    server.serve(RULES["TC411"].bad_example)
    [response] = [one for one in server.stream() if one.error_message]
    assert "must return None" in response.error_message
    server.serve(RULES["TC411"].good_example)
    assert server.infer([1.0] * 4) == [1.0] * 4


@everything
def test_several_responses(server: Served) -> None:
    """TC412: the second response of a model that is not decoupled is an error."""
    server.serve(RULES["TC412"].bad_example)
    with pytest.raises(grpc.RpcError, match="single response"):
        server.infer([1.0] * 4)
    server.serve(RULES["TC412"].good_example)
    assert server.infer([1.0] * 4) == [1.0] * 4


def test_no_final(server: Served) -> None:
    """TC414: the request does not end."""
    server.serve(RULES["TC414"].good_example)
    assert [one.infer_response.parameters[FINAL].bool_param for one in server.stream()] == [True]
    server.serve(RULES["TC414"].bad_example)
    stream = server.stream(patience=NEVER)
    assert not next(stream).infer_response.parameters[FINAL].bool_param
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.restart()


@everything
def test_asked_after_final(server: Served) -> None:
    """TC407: the whole server dies, if not of the first such question, which reads freed memory."""
    server.serve(RULES["TC407"].good_example)
    assert numbers(server.stream()) == [0.0]
    server.serve(RULES["TC407"].bad_example)
    for _ in range(QUESTIONS):
        with suppress(grpc.RpcError):
            numbers(server.stream(patience=NEVER))
        if server.gone(NEVER):
            break
    assert server.gone(NEVER)
    server.restart()


@everything
def test_sent_after_final(server: Served) -> None:
    """TC415: the batch of two fails; where the final flag comes last it does not."""
    wait = "dynamic_batching { max_queue_delay_microseconds: 1000000 }\n"
    for example, failed in (
        (RULES["TC415"].bad_example, True),
        (RULES["TC415"].good_example, False),
    ):
        config = str(example["m/config.pbtxt"]) + wait
        server.serve({**example, "m/config.pbtxt": config})
        answers = together(8, lambda _: list(server.stream()))
        errors = [one.error_message for answer in answers for one in answer if one.error_message]
        assert bool(errors) == failed
        assert all("sender has been closed" in error for error in errors)


def test_final_in_loop(server: Served) -> None:
    """TC416: one response comes instead of sixteen."""
    server.serve(RULES["TC416"].bad_example)
    assert numbers(server.stream()) == [0.0]
    server.serve(RULES["TC416"].good_example)
    assert len(numbers(server.stream())) == 16


@everything
def test_sleeping_coroutine(server: Served) -> None:
    """TC420: two requests are under way together only where the first one gives way."""
    for example, most in ((RULES["TC420"].bad_example, 1.0), (RULES["TC420"].good_example, 2.0)):
        server.serve(example)
        counted = together(2, lambda _: numbers(server.stream()))
        assert max(max(one) for one in counted) == most


def test_decoupled_model_called(server: Served) -> None:
    """TC421: an error without decoupled=True; with it the sum of what came."""
    server.serve(RULES["TC421"].bad_example)
    with pytest.raises(grpc.RpcError, match="decoupled=True"):
        server.infer([0.0] * 4)
    server.serve(RULES["TC421"].good_example)
    assert server.infer([0.0] * 4) == [120.0] * 4


@everything
def test_empty_final_response(server: Served) -> None:
    """TC422: None where the last response has no outputs."""
    server.serve(RULES["TC422"].bad_example)
    with pytest.raises(grpc.RpcError, match="NoneType"):
        server.infer([0.0] * 4)


@everything
def test_batcher_without_batch(server: Served) -> None:
    """TC501: however many requests wait, each is executed alone."""
    for example, most in ((RULES["TC501"].bad_example, 1), (RULES["TC501"].good_example, 8)):
        server.serve(slowly(example, 0.2))
        together(12, lambda _: server.infer())
        assert (max(server.batches(12)) == 1) == (most == 1)


def test_batches_capped(server: Served) -> None:
    """TC502: no batch above the largest preferred size, though there are enough requests."""
    for example, largest in ((RULES["TC502"].bad_example, 4), (RULES["TC502"].good_example, 8)):
        server.serve(slowly(example, 0.3))
        together(24, lambda _: server.infer([1.0] * 4))
        assert max(server.batches(24)) == largest


@everything
def test_delay_defeated(server: Served) -> None:
    """TC506: a single request does not wait; without the 1 it does."""
    for example, waits in (
        (RULES["TC506"].bad_example, False),
        (RULES["TC506"].good_example, True),
    ):
        config = str(example["m/config.pbtxt"]).replace("seconds: 5000", "seconds: 120000000")
        server.serve({**example, "m/config.pbtxt": config})
        if waits:
            assert server.stands_still()
        else:
            assert server.infer() == VALUES
    server.restart()


@everything
def test_priorities_starve(server: Served) -> None:
    """TC511: what comes later overtakes a request of the lower level."""
    example = RULES["TC511"].bad_example
    config = str(example["m/config.pbtxt"]).replace("max_batch_size: 8", "max_batch_size: 1")
    server.serve(slowly({**example, "m/config.pbtxt": config}, 0.3))
    done: list[str] = []
    first = threading.Event()

    def ask(number: int) -> None:
        name = "early" if number < 12 else "low" if number == 12 else "late"
        if name != "early":  # the instance is busy then, and others wait
            assert first.wait(PATIENCE)
        time.sleep(0.3 * (name == "late"))
        server.infer(priority=2 if name == "low" else 1)
        done.append(name)
        first.set()

    together(19, ask)
    assert len(done) == 19
    assert done[: done.index("low")].count("late") >= 4


@everything
def test_timeout_never(server: Served) -> None:
    """TC513: a request's own timeout counts only where there is a default one above it."""
    for example, rejects in (
        (RULES["TC513"].bad_example, False),
        (RULES["TC513"].good_example, True),
    ):
        config = str(example["m/config.pbtxt"]).replace("max_batch_size: 8", "max_batch_size: 1")
        server.serve(slowly({**example, "m/config.pbtxt": config}, 0.2))
        results = together(6, lambda _: server.infer([1.0] * 4, timeout=1000))
        assert any(isinstance(one, grpc.RpcError) for one in results) == rejects


def test_rejected_while_waiting(server: Served) -> None:
    """TC516: a single request to an idle server is rejected."""
    server.serve(RULES["TC516"].bad_example)
    with pytest.raises(grpc.RpcError, match="timeout expired"):
        server.infer([1.0] * 4)
    server.serve(RULES["TC516"].good_example)
    assert server.infer([1.0] * 4) == [1.0] * 4


@everything
def test_sequences_soon_forgotten(server: Served) -> None:
    """TC522: after a pause of a few seconds the sequence is gone."""
    for example, kept in ((RULES["TC522"].bad_example, False), (RULES["TC522"].good_example, True)):
        server.serve(example)
        server.infer([1.0] * 4, sequence_id=7, sequence_start=True)
        time.sleep(4)
        if kept:
            assert server.infer([2.0] * 4, sequence_id=7) == [2.0] * 4
        else:
            with pytest.raises(grpc.RpcError, match="START flag"):
                server.infer([2.0] * 4, sequence_id=7)


@everything
def test_few_candidates(server: Served) -> None:
    """TC523: no batch above the number of candidates."""
    for example, largest in ((RULES["TC523"].bad_example, 2), (RULES["TC523"].good_example, 8)):
        server.serve(slowly(example, 0.3))
        together(
            24,
            lambda number: server.infer(
                [1.0] * 4, sequence_id=number + 1, sequence_start=True, sequence_end=True
            ),
        )
        assert max(server.batches(24)) <= largest
        assert (max(server.batches(24)) > 2) == (largest > 2)


def test_one_sequence_at_a_time(server: Served) -> None:
    """TC524: a second sequence waits for the end of the first."""
    server.serve(RULES["TC524"].good_example)
    for number in (1, 2):
        assert server.infer([1.0] * 4, sequence_id=number, sequence_start=True) == [1.0] * 4
    server.serve(RULES["TC524"].bad_example)
    server.infer([1.0] * 4, sequence_id=1, sequence_start=True)
    with pytest.raises(grpc.RpcError) as caught:
        server.infer([1.0] * 4, NEVER, sequence_id=2, sequence_start=True)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.infer([1.0] * 4, sequence_id=1, sequence_end=True)
    assert server.infer([1.0] * 4, sequence_id=3, sequence_start=True) == [1.0] * 4
    server.restart()


@everything
def test_equal_shapes_only(server: Served) -> None:
    """TC533: requests of two shapes do not meet in a batch, ragged ones do."""
    for example, ragged in (
        (RULES["TC533"].bad_example, False),
        (RULES["TC533"].good_example, True),
    ):
        server.serve(slowly(example, 0.3))
        together(17, lambda number: server.infer([1.0] * (number + 1)))
        assert (max(server.batches(17)) > 1) == ragged
