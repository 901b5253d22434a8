# SPDX-License-Identifier: Apache-2.0
"""Other people's clients, re-created: what they send, and how they read the answer.

Each is a class of requests, not a copy of a program; docs/reference/clients.md has the programs.
The model is called `ensemble`, the only name that NVIDIA's scripts accept, and is served twice: as
an ensemble, which streams, and as `ensemble_unary`, which answers once.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.configurations import FOREIGN, FOREIGN_ANSWER, FOREIGN_UNARY
from tests.servers import Handle
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]
PROMPT = "7342 in English:"
OK, NOT_IMPLEMENTED = 200, 501
AT_ONCE = 40


@dataclass(frozen=True)
class Sent:
    """A request: its tensors, [1, n] each, and the outputs that it names; all of them if none."""

    tensors: Mapping[str, Any]
    outputs: Sequence[str] = ()
    answer: str = FOREIGN_ANSWER


def i32(value: int) -> Any:
    return np.array([[value]], dtype=np.int32)


def f32(value: float) -> Any:
    return np.array([[value]], dtype=np.float32)


def u64(value: int) -> Any:
    return np.array([[value]], dtype=np.uint64)


def yes(value: bool) -> Any:
    return np.array([[value]], dtype=bool)


def text(*values: str) -> Any:
    return np.array([values], dtype=object)


COMMON = {"text_input": text(PROMPT), "max_tokens": i32(40)}
END_TO_END = COMMON | {
    "beam_width": i32(1),
    "temperature": f32(1.0),
    "num_return_sequences": i32(1),
    "exclude_input_in_output": yes(False),
    "seed": u64(0),
}
CLIENTS = {
    "llama-index": Sent(
        COMMON
        | {"top_k": i32(1), "top_p": f32(0), "temperature": f32(1.0), "random_seed": u64(0)}
        | {"length_penalty": f32(1.0), "repetition_penalty": f32(1.0), "beam_width": i32(1)}
        | {"stream": yes(True)},
        ["text_output"],
    ),
    "NVIDIA end to end, streamed": Sent(END_TO_END | {"stream": yes(True)}, ["text_output"]),
    "NVIDIA end to end, whole": Sent(
        END_TO_END | {"stream": yes(False)}, ["text_output"], PROMPT + FOREIGN_ANSWER
    ),
    "NVIDIA end to end, every flag": Sent(
        END_TO_END
        | {"stream": yes(True), "pad_id": i32(50256), "end_id": i32(2), "stop_words": text("§§")}
        | {"repetition_penalty": f32(1.0), "presence_penalty": f32(0), "bad_words": text("")}
        | {"return_context_logits": yes(False), "return_generation_logits": yes(False)}
        | {"return_perf_metrics": yes(False), "frequency_penalty": f32(0)},
        ["text_output"],
    ),
    "Triton's OpenAI frontend": Sent(
        COMMON
        | {"stream": yes(True), "top_p": f32(1.0), "temperature": f32(0.7), "seed": u64(0)}
        | {"frequency_penalty": f32(0), "presence_penalty": f32(0), "stop_words": text("§", "§§")}
        | {"return_num_input_tokens": yes(True), "return_num_output_tokens": yes(True)},
    ),
    "GenAI-Perf": Sent(
        COMMON | {"exclude_input_in_output": yes(True), "stream": yes(True), "seed": u64(0)}
    ),
}


@pytest.fixture
def client(replay_server: Server) -> Iterator[grpcclient.InferenceServerClient]:
    """NVIDIA's own, which all of them use."""
    with grpcclient.InferenceServerClient(replay_server.grpc_url) as client:
        yield client


def inputs_of(tensors: Mapping[str, Any]) -> list[grpcclient.InferInput]:
    """As these clients make them."""
    inputs = []
    for name, array in tensors.items():
        made = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        inputs.append(made.set_data_from_numpy(array))
    return inputs


def streamed(client: grpcclient.InferenceServerClient, sent: Sent, model: str) -> list[Any]:
    """Results and errors of a request over a stream, which is closed when the answer has ended."""
    received: list[Any] = []
    client.start_stream(callback=lambda result, error: received.append(error or result))
    outputs = [grpcclient.InferRequestedOutput(name) for name in sent.outputs]
    client.async_stream_infer(
        model, inputs_of(sent.tensors), outputs=outputs or None, request_id="1"
    )
    client.stop_stream()
    return received


@pytest.mark.parametrize("name", CLIENTS)
def test_a_stream_is_read_as_nvidia_s(client: grpcclient.InferenceServerClient, name: str) -> None:
    """One text per response, without a batch dimension; put together they are the answer."""
    sent = CLIENTS[name]
    results = streamed(client, sent, FOREIGN)
    assert all(not isinstance(result, InferenceServerException) for result in results), results
    texts = [result.as_numpy("text_output") for result in results]
    assert {array.shape for array in texts} == {(1,)}
    assert "".join(array[0].decode() for array in texts) == sent.answer
    assert (len(texts) > 1) == bool(sent.tensors["stream"].item())
    if not sent.outputs:
        assert results[-1].as_numpy("num_input_tokens").shape == (1, 1)
        assert results[-1].as_numpy("num_output_tokens").item() > 0


@pytest.mark.parametrize("name", CLIENTS)
def test_the_same_request_answered_once(
    client: grpcclient.InferenceServerClient, name: str
) -> None:
    """ModelInfer of the unary model: the whole text, the prompt in front if asked for."""
    tensors = {key: value for key, value in CLIENTS[name].tensors.items() if key != "stream"}
    outputs = [grpcclient.InferRequestedOutput(output) for output in CLIENTS[name].outputs]
    result = client.infer(FOREIGN_UNARY, inputs_of(tensors), outputs=outputs or None)
    array = result.as_numpy("text_output")
    echoed = not tensors.get("exclude_input_in_output", yes(True)).item()
    assert array.shape == (1,)
    assert array[0].decode() == (PROMPT if echoed else "") + FOREIGN_ANSWER


def test_many_unary_requests_at_once(replay_server: Server) -> None:
    """They wait beside each other, in one process."""

    def ask(number: int) -> str:
        with grpcclient.InferenceServerClient(replay_server.grpc_url) as client:
            tensors = {"text_input": text(f"{number} in English:")}
            result = client.infer(FOREIGN_UNARY, inputs_of(tensors))
        answer: str = result.as_numpy("text_output")[0].decode()
        return answer

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(AT_ONCE)))
    assert answers == [f"{number} in English:" for number in range(AT_ONCE)]


# Tensors of which another value than the neutral one must not be ignored.
ASKS_FOR_MORE = {
    "beam_width": i32(4),
    "num_return_sequences": i32(2),
    "return_context_logits": yes(True),
    "embedding_bias_words": text("seven"),
    "lora_task_id": u64(3),
    "prompt_embedding_table": np.zeros((1, 2, 4), dtype=np.float16),
}


@pytest.mark.parametrize("name", ASKS_FOR_MORE)
def test_what_cannot_be_done_is_refused_by_name(
    client: grpcclient.InferenceServerClient, name: str
) -> None:
    """Over a stream as a message, to ModelInfer with INVALID_ARGUMENT."""
    tensors = COMMON | {name: ASKS_FOR_MORE[name]}
    [error] = streamed(client, Sent(tensors), FOREIGN)
    assert isinstance(error, InferenceServerException)
    assert name in error.message()
    with pytest.raises(InferenceServerException, match=name) as caught:
        client.infer(FOREIGN_UNARY, inputs_of(tensors))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_stream_of_the_unary_model(client: grpcclient.InferenceServerClient) -> None:
    """Refused, and the message names the model that streams."""
    [error] = streamed(client, Sent(COMMON | {"stream": yes(True)}), FOREIGN_UNARY)
    assert "stream is true, but this model responds once" in error.message()
    assert f"call {FOREIGN} over a gRPC stream" in error.message()


def post(server: Server, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{server.http_url}/v2/models/{path}", data=json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("model", [FOREIGN, FOREIGN_UNARY])
def test_generate_with_nested_parameters(replay_server: Server, model: str) -> None:
    """As LiteLLM asks: most tensors are members of `parameters`."""
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 40, "seed": 0}, "stream": False}
    status, content = post(replay_server, f"{model}/generate", body)
    assert (status, json.loads(content)["text_output"]) == (OK, FOREIGN_ANSWER)


def test_generate_stream_with_nested_parameters(replay_server: Server) -> None:
    """Every event has its piece of the text."""
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 40, "seed": 0}, "stream": True}
    status, content = post(replay_server, f"{FOREIGN}/generate_stream", body)
    events = [json.loads(line.removeprefix("data: ")) for line in content.split("\n\n") if line]
    assert status == OK
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == FOREIGN_ANSWER


def test_http_infer(replay_server: Server) -> None:
    """KServe's JSON: the unary model answers, of the other Triton says why not."""
    tensors = [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [PROMPT]}]
    body = {"inputs": tensors, "outputs": [{"name": "text_output"}]}
    status, content = post(replay_server, f"{FOREIGN_UNARY}/infer", body)
    [output] = json.loads(content)["outputs"]
    assert (status, output["shape"], output["data"]) == (OK, [1], [PROMPT])
    status, content = post(replay_server, f"{FOREIGN}/infer", {"inputs": tensors})
    assert status == NOT_IMPLEMENTED
    assert "decoupled transaction policy" in content


def test_our_own_infer(replay_handle: Handle, replay_server: Server, cli: Cli) -> None:
    """`tritonctl infer` asks the unary model; of one that streams it says what to use."""
    where = ["--input", f'text_input=[["{PROMPT}"]]', "--url", replay_server.grpc_url]
    done = cli("infer", FOREIGN_UNARY, *where, cwd=replay_handle.project.root)
    assert json.loads(done.stdout)["text_output"] == [PROMPT]
    done = cli("infer", FOREIGN, *where, cwd=replay_handle.project.root)
    assert (done.returncode, "the model streams" in done.stderr) == (2, True)
    assert "serving.unary: true" in done.stderr
