# SPDX-License-Identifier: Apache-2.0
"""Clients that go away free their engine slot, as the engine's own metrics show."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.servers import Handle, wait_until
from tritonctl.errors import ServerError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters, generation_request
from tritonctl.protocol.metrics import RESIDENT, Metrics, scrape
from tritonctl.rollout.shadow.answers import VersionClient
from tritonctl.rollout.shadow.questions import shadow_request
from tritonctl.runtimes.server_state import Server
from tritonctl.supervision.process_usage import ServerUsage

pytestmark = pytest.mark.server

PROMPT = "777777 in English:"
# While a test acts, a step takes this long: an answer takes minutes, so that a slot which is free
# before was freed. Then the engine goes on at full speed.
STEP_SECONDS = 0.5
LONG = SamplingParameters(max_tokens=480, end_id=-1)
SHORTER = SamplingParameters(max_tokens=110, end_id=-1)
PUBLISHED_SECONDS = 0.15  # engines publish their metrics every tenth of a second
PATIENCE_SECONDS = 60.0
NOISE_BYTES = 3_000_000  # published from 1 MB on, a second later

CLIENT = """
import sys
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
with TritonClient(sys.argv[1]) as client:
    for chunk in client.stream("int8", sys.argv[2], SamplingParameters(max_tokens=480, end_id=-1)):
        print(chunk.num_output_tokens, flush=True)
"""


@pytest.fixture
def server(request: pytest.FixtureRequest, life_handle: Handle) -> Handle:
    """Idle, or another one where cancellations have ended it: tritonserver 2.51 may."""
    state = life_handle.ready(request.node)
    wait_for(state, 0)
    return life_handle


def slots(metrics: Metrics) -> float:
    """Streams in the engine."""
    return metrics.total("tritonctl_active_streams", model="int8_engine")


def cancelled(state: Server) -> float:
    """Streams that the engine has ended because nobody wanted them."""
    return scrape(state.metrics_url).total("tritonctl_requests_total", outcome="cancelled")


def wait_for(state: Server, streams: int) -> None:
    """Until the engine has that many streams."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (now := slots(scrape(state.metrics_url))) != streams:
        assert time.monotonic() < deadline, f"{now} streams, not {streams}"
        time.sleep(0.01)


def assert_cancelled(state: Server, count: float) -> None:
    """That many streams ended because nobody wanted them, and in what follows not one more."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while cancelled(state) < count:
        assert time.monotonic() < deadline, f"{cancelled(state)} of {count} cancelled"
        time.sleep(0.01)
    time.sleep(PUBLISHED_SECONDS)
    assert cancelled(state) == count


@cache
def undisturbed(url: str) -> str:
    """The text of a stream that is alone."""
    with TritonClient(url) as client:
        return client.generate("int8", PROMPT, SHORTER).text


@contextmanager
def bystanders(server: Handle, count: int) -> Iterator[None]:
    """Streams of other clients, which must all get the text that an undisturbed one gets.

    They are under way as long as the context, in which the engine is slow.
    """
    state = server.state
    expected = undisturbed(state.grpc_url)
    texts: list[str] = []

    def run() -> None:
        with TritonClient(state.grpc_url) as client:
            texts.append(client.generate("int8", PROMPT, SHORTER).text)

    wait_for(state, 0)
    server.pace(STEP_SECONDS)
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        wait_for(state, count)
        yield
    finally:
        server.pace(0)
        for thread in threads:
            thread.join()
    assert texts == [expected] * count


def client_process(state: Server) -> subprocess.Popen[str]:
    """A client in a process of its own, with its first tokens read."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, state.grpc_url, PROMPT], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def http_request(state: Server, max_tokens: int = 480, model: str = "int8") -> socket.socket:
    """The socket of an HTTP generate_stream request that has just been sent."""
    url = urlsplit(state.http_url)
    connection = socket.create_connection((url.hostname, url.port))
    request = {"text_input": PROMPT, "max_tokens": max_tokens, "end_id": -1, "stream": True}
    body = json.dumps(request).encode()
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def http_stream(state: Server, max_tokens: int = 480, model: str = "int8") -> socket.socket:
    """The same with its first token read."""
    connection = http_request(state, max_tokens, model)
    received = b""
    while b"text_output" not in received:
        received += connection.recv(65536)
    return connection


def leave_by_cancel(state: Server) -> None:
    """gRPC's own cancellation."""
    with TritonClient(state.grpc_url) as client:
        next(client.stream("int8", PROMPT, LONG))  # dropping the iterator cancels the call


def leave_by_kill(state: Server) -> None:
    """SIGKILL to the client's process."""
    process = client_process(state)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def leave_by_closed_socket(state: Server) -> None:
    """A browser tab that is closed."""
    http_stream(state).close()


@pytest.mark.parametrize(
    ("leave", "others"),
    [(leave_by_cancel, 0), (leave_by_cancel, 8), (leave_by_kill, 8), (leave_by_closed_socket, 8)],
)
def test_slot_of_a_vanished_client_is_freed(
    server: Handle, leave: Callable[[Server], None], others: int
) -> None:
    """Alone and among others, whose texts stay exact."""
    state = server.state
    before = cancelled(state)
    with bystanders(server, others):
        leave(state)
        wait_until(lambda: cancelled(state) > before, "the slot is free", PATIENCE_SECONDS)
    wait_for(state, 0)
    assert_cancelled(state, before + 1)


def test_leaving_before_the_first_token_is_noticed_too(server: Handle) -> None:
    """Nothing was ever acknowledged then; cut at 30 moments from 2 to 60 ms after the request.

    Most of them over HTTP: gRPC cancels by the thousand crash tritonserver 2.51 (decision 7).
    """
    with bystanders(server, 4):
        for milliseconds in range(2, 62, 2):
            connection = http_request(server.state)
            time.sleep(milliseconds / 1000)
            connection.close()
        with TritonClient(server.url) as client, pytest.raises(ServerError, match="in time"):
            client.generate("int8", PROMPT, LONG, timeout=0.01)
        wait_for(server.state, 4)


def test_many_leave_at_once_and_the_others_stay_exact(server: Handle) -> None:
    """Twelve sockets close together, eight streams go on."""
    before = cancelled(server.state)
    with bystanders(server, 8):
        sockets = [http_stream(server.state) for _ in range(12)]
        wait_for(server.state, 20)
        for connection in sockets:
            connection.close()
        wait_for(server.state, 8)
    assert_cancelled(server.state, before + 12)


def test_a_direct_call_is_not_missed_for_acknowledgements(server: Handle) -> None:
    """Nobody acknowledges what the engine sends to a caller of its own; its cancel is heard."""
    state = server.state
    before = cancelled(state)
    counts: list[int] = []
    client = grpcclient.InferenceServerClient(state.grpc_url)
    client.start_stream(lambda **answer: counts.append(0 if answer["error"] else 1))
    ids = grpcclient.InferInput("input_ids", [1, 3], "INT32")
    ids.set_data_from_numpy(np.array([[10, 11, 12]], dtype=np.int32))
    values = [("input_lengths", 3), ("request_output_len", 60), ("end_id", -1)]
    inputs = [ids]
    for name, value in values:
        tensor = grpcclient.InferInput(name, [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[value]], dtype=np.int32))
        inputs.append(tensor)
    streaming = grpcclient.InferInput("streaming", [1, 1], "BOOL")
    streaming.set_data_from_numpy(np.array([[True]]))
    server.pace(0.02)
    client.async_stream_infer("int8_engine", [*inputs, streaming])
    client.stop_stream()  # waits for the end
    assert sum(counts) >= 30
    assert 0 not in counts
    # The metric is published every tenth of a second: the first stream must be gone from it,
    # or the second, cancelled before it ever reached the engine, would be taken for it.
    wait_for(state, 0)
    assert_cancelled(state, before)

    server.pace(STEP_SECONDS)
    client.start_stream(lambda **_: None)
    client.async_stream_infer("int8_engine", [*inputs, streaming])
    wait_for(state, 1)
    client.stop_stream(cancel_requests=True)
    assert_cancelled(state, before + 1)
    client.close()


def test_a_client_that_reads_slowly_gets_its_whole_answer(server: Handle) -> None:
    """Living clients may dawdle: what the server holds for them counts as received."""
    sampling = SamplingParameters(max_tokens=200, end_id=-1)
    with TritonClient(server.url) as client:
        expected = client.generate("int8", PROMPT, sampling).text
        server.pace(0.02)
        text = ""
        for number, chunk in enumerate(client.stream("int8", PROMPT, sampling)):
            text += chunk.text
            if number < 5:
                time.sleep(0.8)
    assert text == expected


def test_a_client_that_stops_reading_keeps_its_slot_for_its_answer_only(server: Handle) -> None:
    """Triton takes what nobody reads, so it looks alive: it costs its own budget, no more."""
    with bystanders(server, 4), http_stream(server.state, max_tokens=8):
        wait_for(server.state, 5)
        wait_for(server.state, 4)  # the others are still under way


def test_engine_metrics_add_up(server: Handle) -> None:
    """Tokens, responses and both histograms of one request, in Prometheus' own layout."""
    state = server.state
    time.sleep(2 * PUBLISHED_SECONDS)  # what earlier streams did is published
    before = scrape(state.metrics_url)
    server.pace(0.02)
    began = time.monotonic()
    with TritonClient(state.grpc_url) as client:
        answer = client.generate("int8", PROMPT, SamplingParameters(max_tokens=40, end_id=-1))

    def grown(name: str, **labels: str) -> float:
        name = f"tritonctl_{name}"
        return scrape(state.metrics_url).total(name, **labels) - before.total(name, **labels)

    wait_until(lambda: grown("requests_total", outcome="length") == 1, "the end is published")
    seconds = time.monotonic() - began
    assert grown("input_tokens_total") == answer.num_input_tokens
    assert grown("output_tokens_total") == 40
    assert 1 <= grown("responses_total") <= 40
    assert grown("time_to_first_token_seconds_bucket", le="+Inf") == 1
    assert grown("time_to_first_token_seconds_count") == 1
    itl = grown("inter_token_latency_seconds_count")
    assert 30 <= itl <= 39
    assert 0.018 * itl < grown("inter_token_latency_seconds_sum") < seconds
    assert grown("inter_token_latency_seconds_bucket", le="0.01") <= itl / 4
    blocks = scrape(state.metrics_url).samples("tritonctl_kv_blocks")
    assert {sample.labels["state"] for sample in blocks} == {"used", "free"}
    assert scrape(state.metrics_url).total("tritonctl_kv_blocks", state="used") == 0
    before = scrape(state.metrics_url)
    asyncio.run(asked_by_a_shadow(state))
    wait_until(lambda: grown("requests_total", outcome="length") == 1, "the end is published")
    assert grown("output_tokens_total") == 4
    for times in ("time_to_first_token", "inter_token_latency", "request_duration"):
        assert grown(f"{times}_seconds_count") == 0


async def asked_by_a_shadow(state: Server) -> None:
    """As a rollout asks, whose times are no user's."""
    version = VersionClient(state.endpoint, 60.0)
    facts = await version.model_facts("int8")
    sampling = SamplingParameters(max_tokens=4, end_id=-1)
    question = shadow_request(generation_request("int8", PROMPT, sampling), facts, seed=0)
    assert (await version.answer(question, facts)).first_ms is not None
    await version.close()


def test_models_tell_the_memory_of_the_whole_server(server: Handle) -> None:
    """Each the same, as it is counted from outside: tritonserver, its stubs, what they started."""
    usage = ServerUsage(server.state.shm_prefix)

    def gauges() -> dict[str, float]:
        found = scrape(server.state.metrics_url).samples(RESIDENT)
        return {sample.labels["model"]: sample.value for sample in found}

    def agree() -> bool:
        _, resident = usage.read()
        assert resident is not None
        return all(abs(value - resident) < NOISE_BYTES for value in gauges().values())

    assert {"int8_tokenizer", "int8_engine"} <= gauges().keys()
    wait_until(agree, "the gauges agree with the processes")
