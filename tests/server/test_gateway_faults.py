# SPDX-License-Identifier: Apache-2.0
"""What users of the gateway see when something behind it, or it itself, fails: with figures.

`pytest -rP` shows the figures; benchmarks/results/faults.md has those of one run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.envoy_process import Envoy, upstream_of
from tests.server.test_gateway import MODEL, text_of
from tests.servers import CHECKOUT, PATIENCE_SECONDS, Handle, wait_until
from tritonctl.errors import ServerError
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import SamplingParameters, generation_request, read_chunk
from tritonctl.runtimes.discovery import is_running

pytestmark = pytest.mark.server

STREAMS = 32
USERS = 8
STEP_SECONDS = 0.1
SAMPLING = SamplingParameters(max_tokens=40, end_id=-1)
# Long answers, so that most streams are amid them when something happens.
PROMPTS = [f"{777_777 - 1001 * i} in {('English', 'Emoji')[i % 2]}:" for i in range(8)]
STREAM_SECONDS = 120.0
SILENT_SECONDS = 25.0  # five pings


@dataclass
class Stream:
    """One answer as its reader saw it."""

    prompt: str
    text: str = ""
    resumes: int = 0
    tokens: int = 0
    arrivals: list[float] = field(default_factory=list)

    @property
    def longest_pause(self) -> float:
        """Between two pieces, or before the first one."""
        return max(b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False))


@pytest.fixture
def pair(request: pytest.FixtureRequest, pair_handles: list[Handle]) -> list[Handle]:
    """Both make ten tokens a second, whatever the test before has done to them."""
    for handle in pair_handles:
        handle.ready(request.node, STEP_SECONDS)
    return pair_handles


@pytest.fixture
def envoy(pair: list[Handle], tmp_path: Path) -> Iterator[Envoy]:
    """In front of both, which are known to be alive."""
    with Envoy(tmp_path, [upstream_of(replica.state) for replica in pair]) as gateway:
        wait_until(lambda: healthy(gateway) == 2, "both replicas are healthy")
        yield gateway


@pytest.fixture(scope="module")
def answered() -> dict[str, str]:
    """By prompt; asked once."""
    return {}


@pytest.fixture
def whole(pair: list[Handle], answered: dict[str, str]) -> dict[str, str]:
    """What an undisturbed server answers, up to the answer's own end."""
    if not answered:
        pair[0].pace(0)
        with TritonClient(pair[0].url) as client:
            answered |= {prompt: client.generate(MODEL, prompt).text for prompt in PROMPTS}
        pair[0].pace(STEP_SECONDS)
    return answered


def healthy(envoy: Envoy) -> float:
    """Replicas that Envoy sends gRPC to."""
    return envoy.metric("envoy_cluster_membership_healthy", envoy_cluster_name="triton_grpc")


def requests_under_way(envoy: Envoy) -> float:
    """Of gRPC, at all replicas."""
    return envoy.metric("envoy_cluster_upstream_rq_active", envoy_cluster_name="triton_grpc")


async def run_streams(
    urls: list[str], prompts: list[str], amid: Callable[[], object]
) -> list[Stream]:
    """All at once; `amid` is called in a thread once half of them have had a few tokens."""
    streams = [Stream(prompt) for prompt in prompts]
    half_have_begun = asyncio.Event()

    async def one(client: AsyncTritonClient, stream: Stream) -> None:
        stream.arrivals.append(time.monotonic())
        answer = client.stream(MODEL, stream.prompt, SAMPLING, timeout=STREAM_SECONDS)
        async for chunk in answer:
            stream.arrivals.append(time.monotonic())
            stream.text += chunk.text
            stream.tokens, stream.resumes = chunk.num_output_tokens, chunk.resumes
            if sum(len(each.arrivals) > 4 for each in streams) * 2 >= len(streams):
                half_have_begun.set()

    async def disturb() -> None:
        await half_have_begun.wait()
        await asyncio.to_thread(amid)

    async with AsyncTritonClient(urls[0], resume_on=urls[1:]) as client:
        await asyncio.gather(disturb(), *(one(client, stream) for stream in streams))
    return streams


def through(envoy: Envoy, resumes: int = 3) -> list[str]:
    """The gateway, and the gateway again where a stream breaks off."""
    return [envoy.url] * (1 + resumes)


def report(name: str, streams: list[Stream]) -> None:
    """Figures for benchmarks/results/faults.md."""
    hit = [stream.longest_pause for stream in streams if stream.resumes]
    rest = [stream.longest_pause for stream in streams if not stream.resumes]
    middle = statistics.median(hit) if hit else 0.0
    print(  # noqa: T201 - for -rP
        f"{name}: {len(hit)} of {len(streams)} streams went on elsewhere; their longest pause "
        f"{middle:.2f} s (median), {max(hit, default=0.0):.2f} s (longest); "
        f"of the others {max(rest, default=0.0):.2f} s"
    )


def assert_nothing_lost(streams: list[Stream], whole: dict[str, str]) -> None:
    """Each text begins with the undisturbed one, each token counted once.

    What the model says past the end of its answer is no more than the toss of a coin: there a
    batch of another size, or a cache filled at once, may tip it.
    """
    assert [s for s in streams if not s.text.startswith(whole[s.prompt])] == []
    assert {s.tokens for s in streams} == {SAMPLING.max_tokens}


def test_a_server_is_killed_under_streams(
    envoy: Envoy, pair: list[Handle], whole: dict[str, str]
) -> None:
    """SIGKILL: those it had go on at the other one, the others notice nothing."""
    prompts = PROMPTS * (STREAMS // len(PROMPTS))
    streams = asyncio.run(run_streams(through(envoy), prompts, pair[0].kill))
    report("SIGKILL of one of two servers", streams)
    assert_nothing_lost(streams, whole)
    went_on = sum(stream.resumes > 0 for stream in streams)
    assert 0 < went_on < STREAMS
    assert {stream.resumes for stream in streams} <= {0, 1}
    wait_until(lambda: healthy(envoy) == 1, "the dead one is left out")
    pair[0].wait_until_gone()
    assert [text_of(envoy.url) for _ in range(4)] == [text_of(pair[1].url)] * 4
    assert requests_under_way(envoy) == 0
    pair[0].start_again()
    wait_until(lambda: healthy(envoy) == 2, "it is back")


def test_requests_to_a_dead_server_are_retried(pair: list[Handle], tmp_path: Path) -> None:
    """Nobody has noticed that its gRPC port is dead: each request is answered all the same."""
    healthy_but_dead = dataclasses.replace(upstream_of(pair[1].state), grpc_port=1)
    expected = text_of(pair[0].url)
    cluster = {"envoy_cluster_name": "triton_grpc"}
    with Envoy(tmp_path, [upstream_of(pair[0].state), healthy_but_dead]) as envoy:
        wait_until(lambda: healthy(envoy) == 2, "both are found healthy")
        assert [text_of(envoy.url) for _ in range(6)] == [expected] * 6
        ready = service_pb2.ModelReadyRequest(name=MODEL)
        with grpc.insecure_channel(envoy.url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert all(stub.ModelReady(ready, timeout=30).ready for _ in range(20))
        assert envoy.metric("envoy_cluster_upstream_rq_retry_success", **cluster) > 0
        ejected = "envoy_cluster_outlier_detection_ejections_enforced_total"
        assert envoy.metric(ejected, **cluster) > 0


def test_no_server_is_left(envoy: Envoy, pair: list[Handle]) -> None:
    """UNAVAILABLE at once, not a wait; it heals by itself."""
    for replica in pair:
        replica.kill()
    wait_until(lambda: healthy(envoy) == 0, "both are left out")
    begun = time.monotonic()
    with pytest.raises(ServerError, match="no healthy upstream"), TritonClient(envoy.url) as client:
        client.generate(MODEL, PROMPTS[0], timeout=60)
    print(f"no server left: UNAVAILABLE after {time.monotonic() - begun:.3f} s")  # noqa: T201
    assert time.monotonic() - begun < 30
    for replica in pair:
        replica.wait_until_gone()
        replica.start_again()
    wait_until(lambda: healthy(envoy) == 2, "both are back")
    assert text_of(envoy.url)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="terminated", marks=pytest.mark.exhaustive),
    ],
)
def test_the_gateway_is_restarted_under_streams(
    envoy: Envoy, pair: list[Handle], whole: dict[str, str], how: signal.Signals
) -> None:
    """All of them break off, and go on through the new one."""
    del pair

    def restart() -> None:
        envoy.stop(how)
        envoy.start()

    prompts = PROMPTS * (STREAMS // len(PROMPTS))
    with_patience = through(envoy, resumes=200)
    streams = asyncio.run(run_streams(with_patience, prompts, restart))
    report(f"gateway restarted ({how.name})", streams)
    assert_nothing_lost(streams, whole)
    assert all(stream.resumes for stream in streams)


def test_the_gateway_is_stopped_gently(
    pair: list[Handle], whole: dict[str, str], tmp_path: Path
) -> None:
    """As its container is: it ends when its streams have, and takes no new ones meanwhile."""
    launcher: list[str | Path] = [sys.executable, CHECKOUT / "docker" / "drain_gateway.py"]
    upstreams = [upstream_of(replica.state) for replica in pair]
    prompts = PROMPTS * (STREAMS // len(PROMPTS))
    with Envoy(tmp_path, upstreams, launcher=launcher) as envoy:
        process = envoy.process
        assert process is not None
        streams = asyncio.run(run_streams([envoy.url], prompts, process.terminate))
        report("gateway stopped gently", streams)
        assert_nothing_lost(streams, whole)
        assert process.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            text_of(envoy.url)
        envoy.start()
        assert text_of(envoy.url)


def test_a_replica_is_frozen_under_streams(
    envoy: Envoy, pair: list[Handle], whole: dict[str, str]
) -> None:
    """SIGSTOP: its sockets stay open; pings without an answer give its streams to the other one."""
    assert len(pair[0].processes()) > 1
    try:
        prompts = PROMPTS * (STREAMS // len(PROMPTS))
        streams = asyncio.run(run_streams(through(envoy), prompts, pair[0].freeze))
        report("one of two servers frozen", streams)
        assert_nothing_lost(streams, whole)
        assert 0 < sum(stream.resumes > 0 for stream in streams) < STREAMS
        wait_until(lambda: healthy(envoy) == 1, "the frozen one is left out")
        assert text_of(envoy.url)
    finally:
        pair[0].thaw()
    # It may end instead: Triton's Python backend gives up a lock that it has waited too long for.
    wait_until(
        lambda: healthy(envoy) == 1 + is_running(pair[0].state),
        "it is back if it lives, else left out",
    )
    wait_until(lambda: requests_under_way(envoy) == 0, "nothing is left under way")
    assert text_of(envoy.url)


def test_a_server_drains_and_cuts_nothing(
    envoy: Envoy, pair: list[Handle], whole: dict[str, str]
) -> None:
    """SIGTERM: it is left out for what is new, its streams end where they are, and so does it."""
    prompts = PROMPTS * (STREAMS // len(PROMPTS))
    streams = asyncio.run(run_streams(through(envoy), prompts, pair[1].terminate))
    report("one of two servers drained", streams)
    assert_nothing_lost(streams, whole)
    assert {stream.resumes for stream in streams} == {0}
    assert text_of(envoy.url)
    pair[1].wait_until_gone()  # not held up by a connection that the gateway keeps


class Users:
    """Threads that ask through the gateway, each without a pause, until they are to stop."""

    def __init__(self, url: str) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._url = url
        self._going = True
        self._threads = [threading.Thread(target=self._ask) for _ in range(USERS)]

    def __enter__(self) -> Users:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._going = False
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while self._going:
            try:
                text_of(self._url)
                self.answers += 1
            except grpc.RpcError as error:
                self.errors.append(str(error))

    def go_on(self) -> None:
        """Until each has been answered twice more, so once from beginning to end."""
        enough = self.answers + 2 * USERS
        wait_until(lambda: self.answers >= enough, "users are answered")


def test_a_server_that_users_do_not_let_rest_ends(pair: list[Handle], tmp_path: Path) -> None:
    """SIGTERM: its readiness port tells the gateway at once, so that it gets nothing new.

    Without, it is sent requests until its exit timeout, ten times our patience, cuts them off.
    """
    upstreams = [
        dataclasses.replace(upstream_of(each.state), readiness_port=each.state.readiness_port)
        for each in pair
    ]
    assert all(upstream.readiness_port for upstream in upstreams)
    with Envoy(tmp_path, upstreams) as envoy:
        wait_until(lambda: healthy(envoy) == 2, "both replicas are healthy")
        with Users(envoy.url) as users:
            users.go_on()
            began = time.monotonic()
            pair[1].terminate()
            pair[1].wait_until_gone()
            seconds = time.monotonic() - began
            users.go_on()
    print(f"drained under {USERS} users: {seconds:.1f} s, {users.answers} answers")  # noqa: T201
    assert users.errors == []


@pytest.mark.exhaustive
def test_silence_is_no_fault(envoy: Envoy) -> None:
    """Pings on a connection without a word are welcome to Triton: the stream lives, unbroken."""
    request = generation_request(MODEL, PROMPTS[0], SAMPLING)

    def now_and_late() -> Iterator[object]:
        yield request
        time.sleep(SILENT_SECONDS)
        yield request

    with grpc.insecure_channel(envoy.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        responses = stub.ModelStreamInfer(now_and_late(), timeout=STREAM_SECONDS)
        chunks = [chunk for response in responses if (chunk := read_chunk(response)[0])]
    assert sum(chunk.num_output_tokens == SAMPLING.max_tokens for chunk in chunks) == 2
    assert envoy.metric("envoy_cluster_http2_keepalive_timeout") == 0
    closed = "envoy_cluster_upstream_cx_destroy_remote"
    assert envoy.metric(closed, envoy_cluster_name="triton_grpc") == 0
