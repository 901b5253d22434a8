# SPDX-License-Identifier: Apache-2.0
"""Length before place, through the application: what cannot fit never reaches a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests import sample_tokenizers
from tests.fakes.ensemble_client import FakeEnsemble
from tests.unit.frontend.conftest import MODEL, Served, config_of, events
from tritonctl.frontend.app import build_app

STEP, ENGINE = f"{MODEL}_tokenizer", f"{MODEL}_engine"
TOKENIZER = {"add_special_tokens": "false", "max_input_len": "63"}
STEPS = [{"model_name": STEP}, {"model_name": ENGINE}]
FORMS: dict[str, dict[str, Any]] = {  # the steps of a model, and who has the tokenizer
    "three steps": {
        MODEL: {"ensemble_scheduling": {"step": STEPS}},
        STEP: {"parameters": TOKENIZER},
        ENGINE: {"parameters": {"max_seq_len": "64"}},
    },
    "fused": {MODEL: {"parameters": TOKENIZER | {"max_seq_len": "64", "fused": "true"}}},
}


@pytest.fixture(params=list(FORMS))
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A model of 64 tokens whose tokenizer the frontend can read."""
    form = FORMS[request.param]
    configs = {
        name: {
            key: {name: {"string_value": text} for name, text in value.items()}
            if key == "parameters"
            else value
            for key, value in config.items()
        }
        for name, config in form.items()
    }
    folder = tmp_path / (STEP if STEP in form else MODEL) / "1" / "tokenizer"
    folder.mkdir(parents=True)
    sample_tokenizers.byte_level(folder)
    ensemble = FakeEnsemble(configs=configs)
    config = config_of(MODEL).model_copy(update={"repository": tmp_path})
    app = build_app(config, connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


def test_what_cannot_fit_is_refused_with_the_numbers(counted: Served) -> None:
    """A prompt that is too long by itself, and one that leaves too little for max_tokens."""
    long = counted.error(counted.complete(prompt="\u2603" * 22, max_tokens=1))
    assert long["code"] == "context_length_exceeded"
    assert long["param"] == "prompt"
    assert "maximum context length is 64 tokens. However, your prompt has 66" in long["message"]
    both = counted.complete(prompt="\u2603" * 20, max_tokens=5)
    assert both.status_code == 400
    error = counted.error(both)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert (
        "65 tokens (60 in the prompt, 5 in the completion). Ask for at most 4" in (error["message"])
    )
    assert counted.ensemble.asked == []
    assert counted.complete(prompt="\u2603" * 20, max_tokens=4).status_code == 200


def test_what_the_tokenizer_step_refuses_is_refused_in_its_words(counted: Served) -> None:
    """Naming the field that the client sent; nothing of it reaches a server."""
    error = counted.error(counted.chat())
    assert (error["code"], error["param"]) == ("invalid_value", "messages")
    assert "the checkpoint has no chat template" in error["message"]
    assert counted.ensemble.asked == []


def test_log_probabilities_are_named_by_the_served_tokenizer(counted: Served) -> None:
    """The one in the repository: where the frontend runs there may be no checkpoint."""
    answer = counted.complete(logprobs=0, max_tokens=2)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["logprobs"] is not None


def test_without_a_tokenizer_requests_go_on_and_it_is_said_once(
    frontend: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign server decides itself what fits."""
    with caplog.at_level("WARNING", "tritonctl.frontend"):
        assert frontend.complete(prompt="\u2603" * 5000).status_code == 200
        assert frontend.chat().status_code == 200
    assert len([one for one in caplog.messages if "not counted" in one]) <= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone(counted: Served, stream: bool) -> None:
    """`max_tokens: 0` with `echo`: the prompt and its count; no server works for it."""
    fields: dict[str, Any] = {"prompt": ["\u2603", "ab"], "max_tokens": 0, "echo": True, "n": 2}
    if stream:
        fields["stream_options"] = {"include_usage": True}
        *chunks, last, end = events(counted.complete(**fields, stream=True))
        assert end == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        texts = ["".join(each["text"] for each in choices if each["index"] == i) for i in range(4)]
        reasons = {each["finish_reason"] for each in choices}
        usage = last["usage"]
    else:
        answer = counted.complete(**fields).json()
        texts = [choice["text"] for choice in answer["choices"]]
        reasons = {choice["finish_reason"] for choice in answer["choices"]} | {None}
        usage = answer["usage"]
    assert texts == ["\u2603", "\u2603", "ab", "ab"]
    assert reasons == {None, "length"}
    assert usage == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    assert counted.ensemble.asked == []
    too_long = counted.complete(prompt="\u2603" * 22, max_tokens=0, echo=True)
    assert counted.error(too_long)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({}, "max_tokens", "only for `echo: true`"),
        ({"echo": True, "logprobs": 0}, "echo", "not of the prompt's"),
        ({"echo": True, "min_tokens": 1}, "min_tokens", "more than the limit"),
        ({"echo": True, "prompt": [1]}, "echo", "only text is repeated"),
    ],
)
def test_a_prompt_alone_is_refused(
    counted: Served, fields: dict[str, Any], param: str, text: str
) -> None:
    """Next to fields that cannot be honoured with it."""
    error = counted.error(counted.complete(max_tokens=0, **fields))
    assert error["param"] == param
    assert text in error["message"]


def test_a_prompt_alone_needs_a_count(frontend: Served) -> None:
    """An estimate would be taken for the number of tokens."""
    error = frontend.error(frontend.complete(max_tokens=0, echo=True))
    assert (error["param"], error["code"]) == ("max_tokens", "unsupported_parameter")
    assert frontend.ensemble.asked == []
