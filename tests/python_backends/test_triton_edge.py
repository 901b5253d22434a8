# SPDX-License-Identifier: Apache-2.0
"""The Triton models with a stand-in for the module that only Triton's stub process has."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from textlib.scheduling.decoder_stream import DecoderStream
from textlib.tokens.token_bytes import load_token_bytes
from textlib.tokens.token_chunk import FinishReason, TokenChunk, pack, unpack
from textlib.triton.parameters import ModelParameters
from textlib.triton.request_tensors import GenerationRequest
from textlib.triton.sampling import SamplingParams
from tokenizers import Tokenizer

from tests.modules import module_of

pytestmark = pytest.mark.timed

BACKENDS = Path(__file__).parents[2] / "python_backends"


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """As in triton_python_backend_utils."""


class TritonError:
    """As in triton_python_backend_utils."""

    INVALID_ARG = "invalid"
    INTERNAL = "internal"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"

    def __init__(self, message: str, code: str) -> None:
        self.message = message
        self.code = code


class Tensor:
    """As in triton_python_backend_utils."""

    def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        self.name = name
        self.array = array

    def as_numpy(self) -> np.ndarray[Any, Any]:
        return self.array


class InferenceResponse:
    """As in triton_python_backend_utils."""

    def __init__(self, output_tensors: list[Tensor] | None = None, error: Any = None) -> None:
        self.tensors = {tensor.name: tensor.array for tensor in output_tensors or []}
        self.error = error


class MetricFamily:
    """As in triton_python_backend_utils; `values` is what Prometheus would read."""

    COUNTER, GAUGE = "counter", "gauge"
    values: ClassVar[dict[tuple[str, str], float]] = {}

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert description
        assert kind in (self.COUNTER, self.GAUGE)
        self.name = name

    def Metric(self, labels: Mapping[str, str]) -> SimpleNamespace:  # noqa: N802 - Triton's name
        assert labels["model_instance"] == "speller_x_0_0"
        assert labels["process"] == str(os.getpid())
        key = (self.name, labels.get("reason", ""))

        def increment(value: float) -> None:
            self.values[key] = self.values.get(key, 0) + value

        return SimpleNamespace(increment=increment, set=partial(self.values.__setitem__, key))


class Request:
    """One request with its tensors and the outputs that were asked for."""

    def __init__(self, outputs: list[str] | None = None, **tensors: np.ndarray[Any, Any]) -> None:
        self.tensors = {name: Tensor(name, array) for name, array in tensors.items()}
        self.sent: list[tuple[InferenceResponse, int]] = []
        self._outputs = outputs or []

    def get_response_sender(self) -> SimpleNamespace:
        return SimpleNamespace(send=lambda response, flags: self.sent.append((response, flags)))

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def inputs(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(name=partial(str, name), as_numpy=tensor.as_numpy)
            for name, tensor in self.tensors.items()
        ]


@pytest.fixture
def triton(triton_utils: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in, with what the backends use of it."""
    triton_utils.__dict__.update(
        TritonModelException=TritonModelException,
        TritonError=TritonError,
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        MetricFamily=MetricFamily,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
        get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(MetricFamily, "values", {})
    return triton_utils


def arguments(folder: Path, **parameters: str) -> dict[str, str]:
    """What Triton passes to initialize()."""
    values = {key: {"string_value": value} for key, value in parameters.items()}
    return {
        "model_config": json.dumps({"name": "speller_x", "parameters": values}),
        "model_repository": str(folder),
        "model_version": "1",
        "model_name": "speller_x",
        "model_instance_name": "speller_x_0_0",
    }


def model(backend: str, args: Mapping[str, str]) -> Any:
    """An initialised TritonPythonModel."""
    made = module_of(BACKENDS / backend / "model.py", backend).TritonPythonModel()
    made.initialize(args)
    return made


@pytest.fixture
def repository(byte_level: Path, tmp_path: Path) -> Path:
    """A model folder with 1/tokenizer/tokenizer.json."""
    folder = tmp_path / "1" / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(byte_level.read_bytes())
    return tmp_path


def text(*prompts: bytes) -> np.ndarray[Any, Any]:
    """A STRING tensor [n, 1]."""
    return np.array([[prompt] for prompt in prompts], dtype=np.object_)


def test_tokenizer_answers_each_request(triton: ModuleType, repository: Path) -> None:
    """One bad request among good ones, and a request with two prompts."""
    args = arguments(repository, max_input_len="20", add_special_tokens="true")
    requests = [
        Request(text_input=text(b"one")),
        Request(text_input=text(b"\xff")),
        Request(text_input=text(b"two", b"seven thousand")),
        Request(),
    ]
    tokenizer = model("tokenizer", args)
    one, bad, two, empty = tokenizer.execute(requests)
    tokenizer.finalize()

    assert one.tensors["input_ids"].shape == (1, int(one.tensors["input_lengths"][0, 0]))
    assert one.tensors["input_ids"].dtype == np.int32
    assert bad.error.code == TritonError.INVALID_ARG
    assert two.tensors["input_ids"].shape == (2, two.tensors["input_lengths"].max())
    assert two.tensors["input_ids"][0, -1] == -1
    assert "text_input is missing, and so is messages" in empty.error.message


def test_a_step_counts_the_errors_that_it_answers(triton: ModuleType, repository: Path) -> None:
    """Triton takes them for successes; they are published within a second, like its uptime."""
    args = arguments(repository, max_input_len="20", add_special_tokens="true")
    tokenizer = model("tokenizer", args)
    tokenizer.execute([Request(text_input=text(b"one")), Request(), Request()])
    errors, uptime = "tritonctl_errors_total", "tritonctl_uptime_seconds_total"
    deadline = time.monotonic() + 30
    while not (MetricFamily.values[errors, "invalid"] and MetricFamily.values[uptime, ""]):
        assert time.monotonic() < deadline, MetricFamily.values
        time.sleep(0.01)
    tokenizer.finalize()

    assert MetricFamily.values[errors, "invalid"] == 2
    assert MetricFamily.values[errors, "failed"] == 0
    resident = "tritonctl_server_resident_bytes", ""
    assert MetricFamily.values[resident] > 10_000_000  # whose child is who runs the tests
    assert set(MetricFamily.values) == {(uptime, ""), resident} | {
        (errors, reason) for reason in ("invalid", "queue_full", "unavailable", "failed")
    }


def test_tokenizer_takes_conversations_beside_prompts(triton: ModuleType, repository: Path) -> None:
    """Each request of a batch gets its own ids; what is refused is refused alone."""
    config = {"chat_template": "{{ messages[0].role }}: {{ messages[0].content }}"}
    (repository / "1" / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    args = arguments(repository, max_input_len="20", add_special_tokens="true")
    chat = text(b'[{"role": "user", "content": "one"}]')
    requests = [
        Request(messages=chat),
        Request(text_input=text(b"user: one")),
        Request(messages=text(b"[]")),
        Request(messages=chat, text_input=text(b"one")),
        Request(messages=text(b'[{"role": "user", "content": "' + b"x" * 40 + b'"}]')),
    ]
    tokenizer = model("tokenizer", args)
    answer, same, empty, both, long = tokenizer.execute(requests)
    tokenizer.finalize()

    assert answer.tensors["input_ids"].tolist() == same.tensors["input_ids"].tolist()
    assert "messages is empty" in empty.error.message
    assert "both present" in both.error.message
    assert "messages has" in long.error.message
    assert {bad.error.code for bad in (empty, both, long)} == {TritonError.INVALID_ARG}


def test_checkpoint_without_a_chat_template(triton: ModuleType, repository: Path) -> None:
    """Messages are refused and the way out is named."""
    args = arguments(repository, max_input_len="20", add_special_tokens="true")
    request = Request(messages=text(b'[{"role": "user", "content": "one"}]'))
    (refused,) = model("tokenizer", args).execute([request])

    assert "messages: the checkpoint has no chat template. Send text" in refused.error.message


def test_detokenizer_computes_what_is_asked_for(triton: ModuleType, repository: Path) -> None:
    """Only the requested outputs, and a foreign tensor fails alone."""
    detokenizer = model("detokenizer", arguments(repository, skip_special_tokens="true"))
    chunk = pack(TokenChunk(1, 0, True, FinishReason.STOP, 4, 3, [], [40, 41, 1]))[np.newaxis]
    every = ["text_output", "num_input_tokens", "num_output_tokens", "finish_reason"]
    some, full, bad = detokenizer.execute(
        [
            Request(["finish_reason"], token_chunk=chunk),
            Request(every, token_chunk=chunk),
            Request(every, token_chunk=np.zeros((1, 3), dtype=np.int32)),
        ]
    )

    assert some.tensors.keys() == {"finish_reason"}
    assert list(full.tensors) == every
    assert full.tensors["num_input_tokens"].tolist() == [[4]]
    assert full.tensors["num_output_tokens"].tolist() == [[3]]
    assert full.tensors["finish_reason"].tolist() == [[b"stop"]]
    assert full.tensors["text_output"].shape == (1,)
    assert bad.error.code == TritonError.INVALID_ARG


def test_a_configuration_error_fails_the_load(triton: ModuleType, repository: Path) -> None:
    """Triton prints the message of a TritonModelException in its model table."""
    with pytest.raises(TritonModelException, match=r"speller_x: config\.pbtxt has no parameter"):
        model("tokenizer", arguments(repository))


def test_a_missing_artefact_fails_the_load(triton: ModuleType, tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(TritonModelException, match=r"tokenizer\.json is missing"):
        model("detokenizer", arguments(tmp_path, skip_special_tokens="true"))


def test_an_unexpected_error_is_answered(triton: ModuleType) -> None:
    """A bug of ours fails one request, not the stub process."""
    from textlib.triton.edge import respond_to_each

    def broken(request: Any) -> list[Any]:
        raise ZeroDivisionError("by zero")

    failed: list[str] = []
    (answer,) = respond_to_each([Request()], broken, lambda error: failed.append(error.reason))

    assert answer.error.code == TritonError.INTERNAL
    assert answer.error.message == "unexpected ZeroDivisionError: by zero"
    assert failed == ["failed"]


def test_sink(triton: ModuleType) -> None:
    """FINAL goes with the last response and with an error."""
    from textlib.errors import EngineUnavailableError, RequestCancelledError
    from textlib.triton.edge import TritonSink
    from textlib.triton.engine_responses import chunk_tensors

    sent: list[tuple[Any, int]] = []
    sender = SimpleNamespace(
        send=lambda response, flags: sent.append((response, flags)), is_cancelled=lambda: True
    )
    sink = TritonSink(sender, chunk_tensors)
    chunk = TokenChunk(1, 0, False, FinishReason.NONE, 4, 3, [], [40, 41, 1])
    sink.send(chunk)
    sink.send(replace(chunk, index=1, last=True, finish_reason=FinishReason.STOP))
    sink.fail(EngineUnavailableError("closing"))
    sink.fail(RequestCancelledError("gone"))

    assert [flags for _, flags in sent] == [0, 1, 1, 1]
    (row,) = sent[0][0].tensors["token_chunk"]
    assert unpack(row) == chunk
    assert [sent[2][0].error.code, sent[3][0].error.code] == ["unavailable", "cancelled"]
    assert sink.is_cancelled()


def _settings(**values: str) -> ModelParameters:
    return ModelParameters("speller_engine", values)


def test_engines_answer_with_chunks_or_with_text(triton: ModuleType, byte_level: Path) -> None:
    """`inline_detokenizer` decides; text is exact and only what is requested."""
    from textlib.triton.engine_responses import EngineResponses

    tokenizer = Tokenizer.from_file(str(byte_level))
    ids = tokenizer.encode("héllo 👩‍👩‍👧‍👦 e\u0301 七千", add_special_tokens=False).ids
    table = load_token_bytes(byte_level, skip_special_tokens=True)
    names = ["text_output", "num_output_tokens", "finish_reason", "output_log_probs"]
    request, plain = Request(names), Request(["token_chunk"])
    asked = GenerationRequest(np.array([1], dtype=np.int32), SamplingParams(99), streaming=True)
    sinks = {
        name: EngineResponses.from_parameters(settings, table).response_sink(made)
        for name, settings, made in (
            ("text", _settings(inline_detokenizer="true"), request),
            ("chunks", _settings(), plain),
        )
    }
    stream = DecoderStream(1, asked, sinks["text"], table=table)
    for position, token in enumerate(ids):
        stream.receive([token], [-0.5])
        stream.outcome = FinishReason.STOP if position == len(ids) - 1 else None
        chunk = stream.next_response().chunk
        assert chunk is not None
        for sink in sinks.values():
            sink.send(chunk)

    answers = [response.tensors for response, _ in request.sent]
    assert {tuple(answer) for answer in answers} == {tuple(names)}
    text = b"".join(answer["text_output"][0] for answer in answers).decode()
    assert text == tokenizer.decode(ids)
    assert [answer["num_output_tokens"][0, 0] for answer in answers] == list(range(1, len(ids) + 1))
    assert [flags for _, flags in request.sent] == [0] * (len(ids) - 1) + [1]
    assert answers[-1]["finish_reason"].tolist() == [[b"stop"]]
    assert answers[0]["output_log_probs"].tolist() == [[-0.5]]
    chunks = [unpack(response.tensors["token_chunk"][0]) for response, _ in plain.sent]
    assert [token for chunk in chunks for token in chunk.token_ids] == ids


def test_an_inlining_engine_watches_no_receipts(triton: ModuleType, byte_level: Path) -> None:
    """Nobody behind it would ever acknowledge anything."""
    from textlib.triton.engine_responses import EngineResponses

    table = load_token_bytes(byte_level, skip_special_tokens=True)
    assert (
        EngineResponses.from_parameters(
            _settings(inline_detokenizer="true"), table
        ).open_receipt_watch()
        is None
    )
    watch = EngineResponses.from_parameters(
        _settings(inline_detokenizer="false"), table
    ).open_receipt_watch()
    assert watch is not None
    watch.close()


def test_a_malformed_switch_fails_the_load(triton: ModuleType, byte_level: Path) -> None:
    """As every parameter."""
    from textlib.errors import ModelConfigurationError
    from textlib.triton.engine_responses import EngineResponses

    table = load_token_bytes(byte_level, skip_special_tokens=True)
    with pytest.raises(
        ModelConfigurationError, match=r"'inline_detokenizer' .* is 'yes', expected"
    ):
        EngineResponses.from_parameters(_settings(inline_detokenizer="yes"), table)
