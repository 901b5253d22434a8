# SPDX-License-Identifier: Apache-2.0
"""The mock endpoint as a process, asked by tritonctl's own client and by the raw stub."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from loadlib.mock_behaviour import Behaviour
from loadlib.mock_distributions import MockDistribution
from loadlib.mock_service import MockEndpoint
from loadlib.mock_truth import TruthFile
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.loadtests.mock_process import PROGRAM, mock_endpoint, read_truth
from tritonctl.errors import RequestRejectedError, ServerBusyError
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import Chunk, SamplingParameters

pytestmark = pytest.mark.timed

FAST = ("--ttft", "1", "--itl", "0.1", "--latency", "1")
CLOCK_US = 2  # both sides round to whole microseconds


def ask_unary(url: str, count: int) -> list[Any]:
    """That many unary requests at once; their answers, or their errors."""

    async def run() -> list[Any]:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = [stub.ModelInfer(tensors_request(str(i)), timeout=60) for i in range(count)]
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def tensors_request(request_id: str, model: str = "mock_tensors") -> Any:
    """Two floats."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(b"\0\0\0\0\0\0\x80?")
    return request


def ask_streams(url: str, count: int, max_tokens: int | None = None) -> None:
    """That many streams at once, read to their ends."""

    async def run() -> None:
        sampling = SamplingParameters(max_tokens=max_tokens)
        async with AsyncTritonClient(url) as client:
            ask = [client.generate("mock", "a b", sampling, timeout=60) for _ in range(count)]
            await asyncio.gather(*ask)

    asyncio.run(run())


def test_health_and_metadata() -> None:
    """What a client asks before it sends anything."""
    with mock_endpoint() as url, grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        for name, decoupled in (("mock", True), ("mock_tensors", False)):
            assert stub.ModelReady(service_pb2.ModelReadyRequest(name=name)).ready
            found = stub.ModelConfig(service_pb2.ModelConfigRequest(name=name)).config
            assert (found.name, found.model_transaction_policy.decoupled) == (name, decoupled)
        assert not stub.ModelReady(service_pb2.ModelReadyRequest(name="other")).ready
        assert stub.ServerMetadata(service_pb2.ServerMetadataRequest()).name == "tritonctl-mock"
        index = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
        assert [model.name for model in index.models] == ["mock", "mock_tensors"]
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="mock"))
        assert metadata.outputs[0].name == "text_output"
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelConfig(service_pb2.ModelConfigRequest(name="other"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_streamed_text_as_the_ensemble_sends_it() -> None:
    """Read by tritonctl's client: text, counts so far, the reason at the end."""
    with mock_endpoint(*FAST) as url, TritonClient(url) as client:
        chunks = list(client.stream("mock", "three words here"))
        assert [chunk.num_output_tokens for chunk in chunks] == list(range(1, 17))
        assert [chunk.finish_reason for chunk in chunks] == [""] * 15 + ["stop"]
        assert {chunk.num_input_tokens for chunk in chunks} == {3}
        cut = client.generate("mock", "x", SamplingParameters(max_tokens=3))
        assert (cut.text, cut.num_output_tokens, cut.finish_reason) == ("word " * 3, 3, "length")
        with pytest.raises(RequestRejectedError, match="unknown model: 'other'"):
            client.generate("other", "x")


def test_unary_answers_are_the_identity() -> None:
    """INPUT0 comes back as OUTPUT0."""
    with mock_endpoint(*FAST) as url:
        [answer] = ask_unary(url, 1)
    assert (answer.id, answer.outputs[0].name) == ("0", "OUTPUT0")
    assert list(answer.raw_output_contents) == list(tensors_request("0").raw_input_contents)


def test_the_truth_follows_the_seeded_draws(tmp_path: Path) -> None:
    """Each response is due exactly when the draws say, and never handed over before."""
    truth = tmp_path / "truth.jsonl"
    texts = {"ttft": "exponential:20", "itl": "bimodal:1:30:0.1", "tokens": "uniform:2:9"}
    options = [part for name, text in texts.items() for part in (f"--{name}", text)]
    with mock_endpoint(*options, "--seed", "11", "--truth", truth) as url:
        ask_streams(url, 40)
        received = time.time_ns() // 1000
    parse = MockDistribution.parse
    behaviour = Behaviour(
        parse(texts["ttft"]), parse(texts["itl"]), parse(texts["tokens"]), parse("1"), seed=11
    )
    records = read_truth(truth)
    assert [record["i"] for record in records] == list(range(40))
    for record in records:
        drawn = behaviour.draw_stream(record["i"], None, all_at_once=False)
        due = record["arrival"]
        assert record["n"] == list(drawn.tokens)
        for step, (planned, at) in enumerate(zip(record["due"], record["at"], strict=True)):
            due += drawn.steps[step] * 1e6
            assert planned == pytest.approx(due, abs=CLOCK_US)
            assert at >= planned - CLOCK_US
        assert (record["first"], record["last"]) == (record["at"][0], record["at"][-1])
        assert record["last"] <= received
        assert record["outcome"] == "ok"


def test_a_stall_holds_up_everything(tmp_path: Path) -> None:
    """Nothing is due during it, and the work that it met ends later by its whole length."""
    truth = tmp_path / "truth.jsonl"
    options = ("--ttft", "300", "--tokens", "3", "--itl", "100", "--stall", "0.2:1")
    with mock_endpoint(*options, "--truth", truth) as url:
        ask_streams(url, 5)
    records = read_truth(truth)
    stalled_from = records[0]["arrival"] + 200_000
    for record in records:
        assert not any(stalled_from < due < stalled_from + 1_000_000 for due in record["due"])
    assert records[0]["due"][-1] - records[0]["arrival"] == pytest.approx(1_500_000, abs=CLOCK_US)


def test_batches_take_what_their_size_says(tmp_path: Path) -> None:
    """S(k) = 300 + 20 k ms: the requests that wait meanwhile go together."""
    truth = tmp_path / "truth.jsonl"
    with mock_endpoint("--servers", "1", "--batch", "300:20:4", "--truth", truth) as url:
        assert all(not isinstance(answer, Exception) for answer in ask_unary(url, 8))
    together: dict[int, list[int]] = {}
    for record in read_truth(truth):
        together.setdefault(record["start"], []).append(record["due"][0] - record["start"])
    assert max(map(len, together.values())) > 1
    for spans in together.values():
        assert spans == [pytest.approx((300 + 20 * len(spans)) * 1000, abs=CLOCK_US)] * len(spans)


def test_a_full_queue_is_an_error_of_triton_s_kind(tmp_path: Path) -> None:
    """More than one at work and one waiting are refused, unary and streamed."""
    truth = tmp_path / "truth.jsonl"
    options = ("--servers", "1", "--queue-size", "1", "--latency", "2000", "--truth", truth)
    with mock_endpoint(*options) as url:
        answers = ask_unary(url, 5)
        with TritonClient(url) as client:
            asyncio.run(_refused_while_busy(url, client))
    refused = [answer for answer in answers if isinstance(answer, grpc.RpcError)]
    assert {error.code() for error in refused} == {grpc.StatusCode.UNAVAILABLE}
    assert len(refused) == 3
    assert [r["outcome"] for r in read_truth(truth) if r["kind"] == "stream"] == ["refused"]


async def _refused_while_busy(url: str, client: TritonClient) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer(tensors_request(str(i))) for i in range(3)]
        await asyncio.wait([asyncio.ensure_future(_code(call)) for call in calls],
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        with pytest.raises(ServerBusyError):  # one was refused: the queue is full
            client.generate("mock", "x")


async def _code(call: Any) -> Any:
    return await call.code()


def test_failures_on_purpose() -> None:
    """Unary as a status, streamed as Triton's error message."""
    with mock_endpoint(*FAST, "--error-share", "1") as url, TritonClient(url) as client:
        [answer] = ask_unary(url, 1)
        assert answer.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RequestRejectedError, match="on purpose"):
            client.generate("mock", "x")


@pytest.mark.parametrize(("gone_at", "outcome"), [(1, "cancelled"), (3, "ok")])
def test_a_client_that_has_its_last_response_goes(
    tmp_path: Path, gone_at: int, outcome: str
) -> None:
    """gRPC cancels a call whose client has gone, even while it still reports the last write."""
    written = 0

    async def write(_response: bytes) -> None:
        nonlocal written
        written += 1
        if written == gone_at:
            raise asyncio.CancelledError

    async def ask() -> AsyncIterator[Any]:
        request = service_pb2.ModelInferRequest(model_name="mock", id="7")
        request.inputs.add(name="stream", datatype="BOOL", shape=[1, 1])
        request.raw_input_contents.append(b"\1")
        yield request

    one, three = MockDistribution.parse("1"), MockDistribution.parse("3")
    truth = TruthFile(tmp_path / "truth.jsonl")
    endpoint = MockEndpoint(("mock", "mock_tensors"), Behaviour(one, one, three, one), truth)
    asyncio.run(endpoint._stream(ask(), SimpleNamespace(write=write)))
    truth.close()
    [record] = read_truth(tmp_path / "truth.jsonl")
    assert (record["outcome"], len(record["at"])) == (outcome, gone_at)


def test_a_cancelled_stream_and_a_signal_during_another(tmp_path: Path) -> None:
    """Both are in the truth as cancelled; the process ends well."""
    truth = tmp_path / "truth.jsonl"
    with mock_endpoint("--itl", "60000", "--truth", truth) as url, TritonClient(url) as client:
        with closing(cast("Generator[Chunk]", client.stream("mock", "x"))) as left:
            next(left)
        under_way = client.stream("mock", "x")
        next(under_way)
    records = read_truth(truth)
    assert [record["outcome"] for record in records] == ["cancelled", "cancelled"]
    assert [len(record["at"]) for record in records] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--ttft", "gaussian:3"), 2, "expected a number, exponential:MEAN"),
        (("--stall", "3"), 2, "expected AT:FOR"),
        (("--batch", "1:2:3"), 2, "--batch needs --servers"),
        (("--servers", "0"), 2, "less than 1"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], status: int, message: str) -> None:
    """Says what was expected."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert message in done.stderr


def test_a_taken_port() -> None:
    """Two mocks do not share one."""
    with mock_endpoint() as url:
        command = [sys.executable, str(PROGRAM), "--port", url.rpartition(":")[2]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "--port 0" in done.stderr
