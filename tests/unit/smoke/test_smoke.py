# SPDX-License-Identifier: Apache-2.0
"""Smoke tests without Triton: what is made of configurations, what is judged of answers.

Triton itself refuses a second final response, so a small gRPC server that sends one stands in for
whatever else may speak the protocol.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from tritonctl.errors import ServerError, UsageError
from tritonctl.host.progress import Silent
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.inspection import inspect
from tritonctl.protocol.model_config import all_steps
from tritonctl.smoke.answer_checks import output_faults
from tritonctl.smoke.batch_check import concurrent_ensemble_check, no_batching_reason, step_outcomes
from tritonctl.smoke.inputs import (
    is_text,
    request_of,
    sequence_parameters,
    set_parameters,
    text_inputs,
    valid_inputs,
)
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.recording_client import RecordedAnswer, Statistics
from tritonctl.smoke.run import SmokePlan, smoke_server
from tritonctl.smoke.single_request import SmokeResult, smoke_model
from tritonctl.smoke.text_checks import TextChunk, order_faults

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

STREAM = """\
name: "m" model_transaction_policy { decoupled: true }
input { name: "I" data_type: TYPE_INT32 dims: 1 }
output { name: "O" data_type: TYPE_INT32 dims: 1 }
"""
NVIDIA = {
    "max_batch_size": 4,
    "input": [
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "max_tokens", "data_type": "TYPE_INT32", "dims": ["1"]},
        {"name": "bad_words", "data_type": "TYPE_STRING", "dims": ["1"]},
        {"name": "end_id", "data_type": "TYPE_INT32", "dims": ["1"]},
        {"name": "top_k", "data_type": "TYPE_INT32", "dims": ["1"], "optional": True},
        {"name": "stream", "data_type": "TYPE_BOOL", "dims": ["1"], "optional": True},
    ],
    "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": ["-1"]}],
}


def response(values: list[int], *, final: bool = False, name: str = "O") -> Any:
    message = service_pb2.ModelStreamInferResponse()
    if values:
        message.infer_response.outputs.add(name=name, datatype="INT32", shape=[len(values)])
        content = np.array(values, dtype="<i4").tobytes()
        message.infer_response.raw_output_contents.append(content)
    message.infer_response.parameters["triton_final_response"].bool_param = final
    return message


class Impostor(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Speaks enough of the protocol to be asked; streams what it is told to."""

    def __init__(self, responses: list[Any], state: str, reason: str) -> None:
        self.responses = responses
        self.state = state
        self.reason = reason

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
        return service_pb2.ServerLiveResponse(live=True)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        index = service_pb2.RepositoryIndexResponse()
        index.models.add(name="m", version="1", state=self.state, reason=self.reason)
        return index

    def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        config = text_format.Parse(STREAM, model_config_pb2.ModelConfig())
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: ARG002, N802
        next(requests)
        yield from self.responses


@contextmanager
def impostor(*responses: Any, state: str = "READY", reason: str = "as told") -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        Impostor(list(responses), state, reason), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def asked(url: str) -> dict[str, SmokeOutcome]:
    report = smoke_server(SmokePlan(Endpoint(url), seconds=10.0), Silent())
    return {one.check: one for one in report.outcomes}


def test_one_final() -> None:
    """As it should be."""
    with impostor(response([1]), response([2]), response([], final=True)) as url:
        found = asked(url)
    assert {one.status for one in found.values()} == {"pass", "skipped"}
    assert found["order"].detail == "2 responses, the same when repeated"


@pytest.mark.parametrize(
    ("responses", "told"),
    [
        ((response([1], final=True), response([], final=True)), "2 final responses; 1 responses"),
        ((response([1], final=True), response([2])), "1 responses after the final one"),
        ((response([1]),), "no final responses"),
    ],
)
def test_other_than_one_final(responses: tuple[Any, ...], told: str) -> None:
    """Two, none, one in the middle."""
    with impostor(*responses) as url:
        final = asked(url)["one final"]
    assert (final.status, told in final.detail) == ("fail", True), final
    assert final.repeat == f"tritonctl smoke --url {url} --models m"
    assert final.request == {
        "model_name": "m",
        "inputs": [{"name": "I", "datatype": "INT32", "shape": [1], "data": [1]}],
    }


def test_what_a_server_says_does_not_steer_a_terminal() -> None:
    """Names and reasons are the server's: their escape sequences are not for a screen."""
    with impostor(state="UNAVAILABLE", reason="\x1b[2J gone\nsecond line") as url:
        [entry] = inspect(Endpoint(url)).index or ()
    assert entry.reason == "\N{REPLACEMENT CHARACTER}[2J gone\nsecond line"


def test_a_model_that_is_not_ready() -> None:
    """A failure with Triton's reason; nothing is sent to it."""
    with impostor(state="UNAVAILABLE") as url:
        assert asked(url)["ready"].detail == "UNAVAILABLE: as told"
        with pytest.raises(UsageError, match="has no model x"):
            smoke_server(SmokePlan(Endpoint(url), models=("x",)), Silent())


def test_nobody_there() -> None:
    """The address, and what to give."""
    with pytest.raises(ServerError, match=r"no answer from Triton at 127\.0\.0\.1:9"):
        asked("127.0.0.1:9")


def test_inputs_of_every_kind() -> None:
    """BF16 as its bits, BYTES, batches, open dimensions, optional ones when asked for."""
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "half", "data_type": "TYPE_BF16", "dims": ["2"]},
            {"name": "text", "data_type": "TYPE_STRING", "dims": ["-1"]},
            {"name": "more", "data_type": "TYPE_BOOL", "dims": ["1"], "optional": True},
        ],
    }
    arrays = valid_inputs(config, batch=2, open_dimension=3, optional=True)
    assert arrays["text"].shape == (2, 3)
    assert arrays["more"].all()
    request = request_of("m", config, arrays)
    assert [one.datatype for one in request.inputs] == ["BF16", "BYTES", "BOOL"]
    assert request.raw_input_contents[0] == b"\x80\x3f" * 4  # 1.0
    assert "more" not in valid_inputs(config)


def test_a_model_of_images_gets_an_image() -> None:
    """One that every decoder takes, where a text would be refused."""
    tensor = {"name": "image", "data_type": "TYPE_STRING", "dims": ["1"]}
    config = {"max_batch_size": 4, "input": [tensor]}
    file = valid_inputs(config, batch=2)["image"][1, 0]
    with Image.open(io.BytesIO(file)) as image:
        image.load()
        assert (image.format, image.size, image.mode) == ("PNG", (1, 1), "RGB")


def test_inputs_of_nvidia_s_text_ensembles() -> None:
    """What must be given has a value that means something; the rest is left to the server."""
    assert is_text(NVIDIA)
    arrays = text_inputs(NVIDIA, "hello", max_tokens=4, stream=True)
    told = {name: array.tolist() for name, array in arrays.items()}
    assert told == {
        "text_input": [[b"hello"]],
        "max_tokens": [[4]],
        "bad_words": [[b""]],
        "end_id": [[-1]],
        "stream": [[True]],
    }
    assert not is_text({"input": NVIDIA["input"], "output": []})


@pytest.mark.parametrize(("data_type", "kind"), [("TYPE_UINT64", int), ("TYPE_STRING", str)])
def test_sequences(data_type: str, kind: type) -> None:
    """A number that nobody else uses, as text where the model wants it; start and end marked."""
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": data_type}
    config = {"sequence_batching": {"control_input": [{"name": "ID", "control": [control]}]}}
    first, middle, last = sequence_parameters(config)
    assert isinstance(first["sequence_id"], kind)
    assert first["sequence_id"] == middle["sequence_id"] == last["sequence_id"]
    marks = [(one["sequence_start"], one["sequence_end"]) for one in (first, middle, last)]
    assert marks == [(True, False), (False, False), (False, True)]
    request = service_pb2.ModelInferRequest()
    set_parameters(request, first)
    assert request.parameters["sequence_start"].bool_param


def part(
    count: int | None, ids: tuple[int, ...] | None = None, reason: str | None = None
) -> TextChunk:
    return TextChunk(b"x", count, ids, reason)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([part(1, (5,)), part(3, (6, 7))], None),
        ([part(1), part(1), part(2)], None),  # half a character brings no token's text
        ([part(2), part(1)], "num_output_tokens goes 2, 1"),
        ([part(1, (5,)), part(3, (7,))], "3 tokens are counted but 2 arrived"),
        ([part(1, None, ""), part(2, None, "stop")], None),
        ([part(1, None, "stop"), part(2, None, "stop")], "finish_reason goes 'stop', 'stop'"),
        ([part(1, None, "")], "finish_reason goes ''"),
    ],
)
def test_order_of_a_text(parts: list[TextChunk], told: str | None) -> None:
    """Counts, ids and the reason to finish must go together."""
    assert order_faults(parts) == ([told] if told else [])


def test_order_that_is_not_told() -> None:
    """NVIDIA's ensembles count nothing."""
    assert order_faults([part(None), part(None)]) is None


def test_steps_of_nested_ensembles() -> None:
    """All of them, once."""
    configs: dict[str, Any] = {
        "a": {"ensemble_scheduling": {"step": [{"model_name": "b"}, {"model_name": "c"}]}},
        "b": {"ensemble_scheduling": {"step": [{"model_name": "c"}, {"model_name": "d"}]}},
    }
    assert sorted(all_steps("a", configs)) == ["b", "c", "d"]
    assert all_steps("c", configs) == []


def test_faults_of_bytes_and_names() -> None:
    """Too few bytes for the shape; an output that nobody declared."""
    config = {"output": [{"name": "O", "data_type": "TYPE_INT32", "dims": ["2"]}]}
    good = response([1, 2]).infer_response
    assert output_faults(config, [good], batch=1) == []
    short = response([1, 2]).infer_response
    short.raw_output_contents[0] = b"\0" * 4
    assert output_faults(config, [short], batch=1) == [
        "output O has 4 bytes, which are not [2] of INT32"
    ]
    other = response([1, 2], name="P").infer_response
    assert output_faults(config, [other], batch=1) == [
        "output O is missing",
        "P is not an output of the configuration",
    ]
    assert output_faults(config, [good, good], batch=1, names=("O",)) == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"max_batch_size": 8}, "no dynamic_batching"),
        ({"max_batch_size": 1, "dynamic_batching": {}}, "max_batch_size is 1"),
        ({"max_batch_size": 8, "dynamic_batching": {}}, ""),
    ],
)
def test_who_is_expected_to_batch(config: dict[str, Any], reason: str) -> None:
    """The others are skipped with this reason."""
    assert no_batching_reason(config) == reason


class _Counted:
    """A subject whose statistics are given."""

    def __init__(self, grown: Statistics, delay_us: int = 0) -> None:
        self.name, self.repeat, self.client, self._grown = "e", "again", self, grown
        self.configs = {"s": {"dynamic_batching": {"max_queue_delay_microseconds": delay_us}}}

    def statistics(self, _: str) -> Statistics:
        return self._grown


@pytest.mark.parametrize(
    ("grown", "status"),
    [
        (Statistics(8, 2, 8, queue_ms=80, compute_ms=160), "pass"),
        (Statistics(8, 8, 8, queue_ms=800, compute_ms=160), "fail"),
        (Statistics(8, 8, 8, queue_ms=80, compute_ms=160), "skipped"),
        (Statistics(8, 8, 8, queue_ms=1, compute_ms=0.1), "skipped"),
        (Statistics(), "skipped"),
    ],
)
def test_batching_is_judged_by_waiting(grown: Statistics, status: str) -> None:
    """Only requests that waited could have been executed together."""
    request: Any = type("Sent", (), {"record": staticmethod(dict)})
    counted: Any = _Counted(grown)
    [outcome] = step_outcomes(counted, {"s": Statistics()}, request)
    assert outcome.status == status


_ONE_BY_ONE = Statistics(8, 8, 8, queue_ms=800, compute_ms=160)
_BATCHED = Statistics(8, 2, 8, queue_ms=80, compute_ms=160)
_HARDLY_WAITED = Statistics(8, 8, 8, queue_ms=80, compute_ms=160)


class _Waves(_Counted):
    """An ensemble with one step, whose statistics grow by these from wave to wave."""

    config: ClassVar[dict[str, Any]] = {}
    steps, decoupled = ("s",), False

    def __init__(self, *grown: Statistics) -> None:
        super().__init__(Statistics())
        self.configs["s"]["max_batch_size"] = 8  # type: ignore[assignment]
        self._waves = iter(grown)

    def send_all(self, *messages: object, stream: bool) -> list[Any]:
        assert not stream
        wave = next(self._waves)
        now = zip(astuple(self._grown), astuple(wave), strict=True)
        self._grown = Statistics(*(before + more for before, more in now))
        return [RecordedAnswer() for _ in messages]

    def pass_outcome(self, check: str, detail: str) -> SmokeOutcome:
        return SmokeOutcome(self.name, check, "pass", detail)


@pytest.mark.parametrize(
    ("waves", "status"),
    [
        ([_BATCHED], "pass"),
        ([_ONE_BY_ONE, _BATCHED], "pass"),
        ([_ONE_BY_ONE, _ONE_BY_ONE, _HARDLY_WAITED], "skipped"),
        ([_ONE_BY_ONE] * 3, "fail"),
    ],
)
def test_the_best_of_three_waves_counts(waves: list[Statistics], status: str) -> None:
    """One wave of a busy machine is no evidence; no more are asked than are needed."""
    request: Any = type("Sent", (), {"record": staticmethod(dict), "message": None})
    counted: Any = _Waves(*waves)
    at_once, step = concurrent_ensemble_check(counted, request)
    assert (at_once.status, step.status) == ("pass", status)
    assert next(counted._waves, None) is None


@pytest.mark.parametrize(("queue_ms", "status"), [(1.6, "skipped"), (4.0, "fail")])
def test_time_for_a_batch_to_gather_is_no_waiting(queue_ms: float, status: str) -> None:
    """A request that is alone waits for it too, and then is executed by itself."""
    request: Any = type("Sent", (), {"record": staticmethod(dict)})
    counted: Any = _Counted(Statistics(8, 8, 8, queue_ms=8 * queue_ms, compute_ms=8 * 0.6), 1500)
    [outcome] = step_outcomes(counted, {"s": Statistics()}, request)
    assert outcome.status == status


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers a tensor request with its own inputs, and keeps what came."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        self.requests.append(request)
        return service_pb2.ModelInferResponse(
            outputs=[
                {"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in request.inputs
            ],
            raw_output_contents=request.raw_input_contents,
        )


def test_the_one_request_of_a_reload_has_the_declared_types(sandbox: Sandbox) -> None:
    """BF16 has no NumPy type: its bits must not go out as UINT16."""
    sandbox.data["models"]["speller"]["task"] = "tensors"
    config = {"input": [{"name": "half", "data_type": "TYPE_BF16", "dims": ["2"]}]}
    echo, server = Echo(), grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(echo, server)
    url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        asked = sandbox.load(), "speller", Endpoint(url), "speller__ab12", config
        answer = smoke_model(*asked, streams=False)
    finally:
        server.stop(None)
    assert answer == SmokeResult("half[2]", "half[2]")
    [request] = echo.requests
    assert (request.model_name, request.inputs[0].datatype) == ("speller__ab12", "BF16")
