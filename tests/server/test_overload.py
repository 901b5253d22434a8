# SPDX-License-Identifier: Apache-2.0
"""More requests than the engine has places: bounded, ordered, timed waiting, in a real Triton."""

from __future__ import annotations

import asyncio
import http.client
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.configurations import PLACES, QUEUE
from tritonctl.errors import ServerBusyError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import AsyncTritonClient
from tritonctl.protocol.generation import DEFAULT_QUEUEING, Queueing, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]

PATIENCE = 60.0


@pytest.fixture
def server(replay_server: Server) -> Server:
    """One slow model, `slow`, with a short queue of two priority levels."""
    return replay_server


@pytest.fixture
def project(replay_project: Project) -> Project:
    """The project of that server."""
    return replay_project


def tokens(count: int) -> SamplingParameters:
    """A request of so many steps."""
    return SamplingParameters(max_tokens=count, random_seed=0)


def waiting(state: Server) -> float:
    """Requests in Triton's queue in front of the engine."""
    metrics = scrape(state.metrics_url)
    return metrics.total("nv_inference_pending_request_count", model="slow_engine")


def failed(state: Server) -> float:
    """Requests that the ensemble answered with an error."""
    return scrape(state.metrics_url).total("nv_inference_request_failure", model="slow")


async def until_waiting(state: Server, count: int) -> None:
    """Until so many requests are in the queue."""
    deadline = time.monotonic() + PATIENCE
    while (now := await asyncio.to_thread(waiting, state)) != count:
        assert time.monotonic() < deadline, f"{now} wait, not {count}"
        await asyncio.sleep(0.01)


def direct_call(model: str, timeout_microseconds: int) -> Any:
    """A request to the engine itself, as long as the tests need: its cancellation is heard."""
    request = service_pb2.ModelInferRequest(model_name=f"{model}_engine")
    values = {"input_ids": 1, "input_lengths": 1, "request_output_len": 10_000}
    for name, value in values.items():
        request.inputs.add(name=name, datatype="INT32", shape=[1, 1])
        request.raw_input_contents.append(struct.pack("<i", value))
    request.inputs.add(name="seed", datatype="UINT64", shape=[1, 1])
    request.raw_input_contents.append(struct.pack("<Q", 0))
    request.inputs.add(name="streaming", datatype="BOOL", shape=[1, 1])
    request.raw_input_contents.append(b"\1")
    if timeout_microseconds:
        request.parameters["timeout"].int64_param = timeout_microseconds
    return request


@asynccontextmanager
async def busy(
    state: Server, timeout_microseconds: int = 0, model: str = "slow"
) -> AsyncIterator[None]:
    """The only place is taken by a stream that does not end until it is cancelled."""
    began, ended = asyncio.Event(), asyncio.Event()
    async with grpc.aio.insecure_channel(state.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter([direct_call(model, timeout_microseconds)]))

        async def read() -> None:
            with suppress(asyncio.CancelledError):
                async for response in call:
                    assert not response.error_message
                    began.set()
            ended.set()

        reader = asyncio.create_task(read())
        try:
            await asyncio.wait_for(began.wait(), PATIENCE)
            yield
            assert not ended.is_set()
        finally:
            call.cancel()
            await reader


async def ask(
    client: AsyncTritonClient,
    count: int,
    queueing: Queueing = DEFAULT_QUEUEING,
    model: str = "slow",
) -> str:
    """The text of an answer."""
    return (await client.generate(model, "x", tokens(count), queueing=queueing)).text


def test_a_flood_is_refused_beyond_the_bound_and_at_once(server: Server) -> None:
    """Of 80 requests, 8 wait and are answered exactly, 72 are refused while the place is taken."""

    async def run() -> None:
        async with AsyncTritonClient(server.grpc_url) as client:
            expected, before = await ask(client, 5), failed(server)
            async with busy(server):
                flood = [asyncio.create_task(ask(client, 5)) for _ in range(10 * QUEUE)]
                deadline = time.monotonic() + PATIENCE
                while (answers := sum(task.done() for task in flood)) < 9 * QUEUE:
                    assert time.monotonic() < deadline, f"{answers} answers"
                    await asyncio.sleep(0.01)
                assert waiting(server) == QUEUE
                assert failed(server) - before >= 9 * QUEUE
            results = await asyncio.gather(*flood, return_exceptions=True)
            refused = [result for result in results if isinstance(result, ServerBusyError)]
            assert len(refused) == 9 * QUEUE
            assert all("UNAVAILABLE: slow has a full queue" in error.problem for error in refused)
            assert all("serving.queue.max_queue_size" in error.remedy for error in refused)
            assert [r for r in results if isinstance(r, str)] == [expected] * QUEUE
            assert await ask(client, 5) == expected

    asyncio.run(run())


def test_the_engine_s_own_queue_is_bounded_too(server: Server) -> None:
    """The default: refused by the engine, which names the numbers; what waits is answered."""

    async def run() -> None:
        async with AsyncTritonClient(server.grpc_url) as client:
            expected = await ask(client, 5, model="unqueued")
            async with busy(server, model="unqueued"):
                flood = [
                    asyncio.create_task(ask(client, 5, model="unqueued")) for _ in range(10 * QUEUE)
                ]
                deadline = time.monotonic() + PATIENCE
                while (answers := sum(task.done() for task in flood)) < 9 * QUEUE:
                    assert time.monotonic() < deadline, f"{answers} answers"
                    await asyncio.sleep(0.01)
            results = await asyncio.gather(*flood, return_exceptions=True)
            refused = [result for result in results if isinstance(result, ServerBusyError)]
            assert len(refused) == 9 * QUEUE
            words = f"{QUEUE} requests wait behind {PLACES} others"
            assert all(words in error.problem for error in refused)
            assert [r for r in results if isinstance(r, str)] == [expected] * QUEUE
            assert await ask(client, 5, model="unqueued") == expected

    asyncio.run(run())


def test_high_priority_overtakes_what_waits(server: Server) -> None:
    """Four requests of the default, lowest level came first; two of level 1 are answered first."""

    async def run() -> list[str]:
        done: list[str] = []

        async def one(name: str, queueing: Queueing) -> None:
            await ask(client, 5, queueing)
            done.append(name)

        async with AsyncTritonClient(server.grpc_url) as client:
            async with busy(server):
                order = [("low", DEFAULT_QUEUEING)] * 4 + [("high", Queueing(priority=1))] * 2
                tasks = []
                for number, (name, queueing) in enumerate(order):
                    tasks.append(asyncio.create_task(one(name, queueing)))
                    await until_waiting(server, number + 1)
            await asyncio.gather(*tasks)
        return done

    assert asyncio.run(run()) == ["high"] * 2 + ["low"] * 4


def test_each_level_has_a_bound_of_its_own(server: Server) -> None:
    """A flood of the lowest level does not lock the highest out."""

    async def run() -> None:
        async with AsyncTritonClient(server.grpc_url) as client:
            async with busy(server):
                low = [asyncio.create_task(ask(client, 1)) for _ in range(QUEUE)]
                await until_waiting(server, QUEUE)
                with pytest.raises(ServerBusyError):
                    await ask(client, 1)
                high = asyncio.create_task(ask(client, 1, Queueing(priority=1)))
                await until_waiting(server, QUEUE + 1)
            assert len(await asyncio.gather(*low, high)) == QUEUE + 1

    asyncio.run(run())


def test_queue_timeout_ends_what_waits_and_not_what_runs(server: Server) -> None:
    """Not before its time; the stream at work, whose own time is up by then, goes on."""

    async def run() -> float:
        async with AsyncTritonClient(server.grpc_url) as client:
            assert await ask(client, 1)  # the place is free: the stream need not wait itself
            async with busy(server, timeout_microseconds=1_000_000):
                patient = asyncio.create_task(ask(client, 1))
                await until_waiting(server, 1)
                began = time.monotonic()
                with pytest.raises(
                    ServerBusyError, match="waited for slow until its queue timeout"
                ):
                    await ask(client, 1, Queueing(timeout=1.5))
                seconds = time.monotonic() - began
                assert not patient.done()
            assert await patient
            return seconds

    assert asyncio.run(run()) >= 1.5


def test_the_command_and_http_say_it_too(server: Server, project: Project, cli: Cli) -> None:
    """Exit code 7 and the reason; HTTP has 400 for every error of a generate endpoint."""

    def post() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(server.http_url).netloc, timeout=PATIENCE)
        connection.request("POST", "/v2/models/slow/generate", body='{"text_input": "x"}')
        answer = connection.getresponse()
        content = answer.status, answer.read()
        connection.close()
        return content

    def command() -> subprocess.CompletedProcess[str]:
        options = ("--priority", "1", "--queue-timeout", "0.2")
        return cli("generate", "slow", "x", "--max-tokens", "1", *options, cwd=project.root)

    async def run() -> None:
        async with AsyncTritonClient(server.grpc_url) as client:
            async with busy(server):
                low = [asyncio.create_task(ask(client, 1)) for _ in range(QUEUE)]
                await until_waiting(server, QUEUE)
                status, body = await asyncio.to_thread(post)
                assert status == 400
                assert b"Exceeds maximum queue size" in body
                expired = await asyncio.to_thread(command)
                assert expired.returncode == 7
                assert "UNAVAILABLE: the request waited for slow" in expired.stderr
            await asyncio.gather(*low)

    asyncio.run(run())
