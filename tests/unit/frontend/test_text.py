# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions and /v1/completions, streamed and whole."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tests.fakes.ensemble_client import WORDS, FakeEnsemble, Step, chunks_of
from tests.unit.frontend.conftest import MODEL, Served, events, served
from tritonctl.errors import RequestRejectedError, ServerError
from tritonctl.protocol.generation import SamplingParameters, TokenPrompt, generation_request

TEXT = "".join(WORDS)


def test_a_message(frontend: Served) -> None:
    """The whole answer in OpenAI's shape, with the server's counts."""
    answer = frontend.chat().json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "speller"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_a_message_as_it_comes(frontend: Served) -> None:
    """The role, each text as the ensemble cut it, the reason, the end."""
    *chunks, end = events(frontend.chat(stream=True))
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"] for delta in deltas[1:-1]] == list(WORDS)
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert "usage" not in chunks[0]


def test_a_text(frontend: Served) -> None:
    """Cut after 2 tokens: the reason is `length`, whole and streamed."""
    answer = frontend.complete(max_tokens=2).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "".join(WORDS[:2]), "logprobs": None, "finish_reason": "length"}
    ]
    *chunks, _ = events(frontend.complete(max_tokens=2, stream=True))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == "".join(WORDS[:2])
    assert choices[-1]["finish_reason"] == "length"


def test_usage_of_a_stream(frontend: Served) -> None:
    """Asked for, it comes last, without choices; every other chunk has `usage: null`."""
    *chunks, last, _ = events(frontend.chat(stream=True, stream_options={"include_usage": True}))
    assert {str(chunk["usage"]) for chunk in chunks} == {"None"}
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_several_answers(frontend: Served) -> None:
    """One stream each, with a seed of its own; the prompt counts once."""
    answer = frontend.chat(n=3, seed=7).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}
    assert sorted(one.sampling.random_seed or 0 for one in frontend.ensemble.asked) == [7, 8, 9]


def test_several_answers_as_they_come(frontend: Served) -> None:
    """Each index has its role, its whole text and its reason."""
    *chunks, _ = events(frontend.chat(n=2, stream=True))
    for index in range(2):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == TEXT
        assert mine[-1]["finish_reason"] == "stop"


def test_variables_of_the_chat_template(frontend: Served) -> None:
    """As vLLM names them; they reach the template with the messages."""
    assert frontend.chat(chat_template_kwargs={"enable_thinking": False}).status_code == 200
    (asked,) = frontend.ensemble.asked
    content = generation_request(MODEL, asked.prompt, asked.sampling).raw_input_contents[0]
    assert json.loads(content[4:]) == {
        "messages": [{"role": "user", "content": "one two three"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "ids"), [([1, 2], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)])])
def test_prompts_of_token_ids(
    frontend: Served, prompt: list[Any], ids: list[tuple[int, ...]], stream: bool
) -> None:
    """They reach the ensemble as they are, and their number is their count."""
    response = frontend.complete(prompt=prompt, stream=stream)
    assert response.status_code == 200
    assert [each.prompt for each in frontend.ensemble.asked] == [TokenPrompt(each) for each in ids]
    request = generation_request(MODEL, frontend.ensemble.asked[-1].prompt, SamplingParameters())
    (tensor, *_) = request.inputs
    assert (tensor.name, tensor.datatype) == ("prompt_ids", "INT32")
    assert list(tensor.shape) == [1, len(ids[-1])]
    assert struct.unpack(f"<{len(ids[-1])}i", request.raw_input_contents[0]) == ids[-1]


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [[]]}, "prompt[0]", "at least 1"),
        ({"prompt": [1, -1]}, "prompt[1]", "at least 0"),
        ({"prompt": [1, 2**31]}, "prompt[1]", "at most"),
        ({"prompt": [1, "a"]}, "prompt[1]", ""),
        ({"prompt": [1, [2]]}, "prompt[1]", ""),
        ({"prompt": [True]}, "prompt[0]", ""),
        ({"prompt": [1.5]}, "prompt[0]", ""),
        ({"prompt": [[1]] * 129}, "prompt", "at most 128"),
        ({"prompt": [[1]] * 65, "n": 2}, "n", "more than 128 answers"),
        ({"prompt": [1], "echo": True}, "echo", "only text is repeated"),
    ],
)
def test_token_ids_that_are_refused(
    frontend: Served, fields: dict[str, Any], param: str, text: str
) -> None:
    """The field is named, and nothing is asked."""
    response = frontend.complete(**fields)
    error = frontend.error(response)
    assert response.status_code == 400
    assert error["param"] == param, error
    assert text in error["message"], error
    assert frontend.ensemble.asked == []


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("unexpected inference input 'prompt_ids' for model 'm'", "takes text, not token ids"),
        ("prompt_ids has the id 900, expected ids from 0 to 52.", "`prompt` has the id 900"),
    ],
)
def test_a_model_that_refuses_token_ids(problem: str, text: str) -> None:
    """Of an older release, or ids that its tokenizer does not have."""
    script = [RequestRejectedError(problem, remedy="")]
    with served(FakeEnsemble(script=script)) as frontend:
        response = frontend.complete(prompt=[900])
        error = frontend.error(response)
        assert (response.status_code, error["param"]) == (400, "prompt")
        assert text in error["message"]


def test_several_prompts(frontend: Served) -> None:
    """Answer i of prompt p has the index p * n + i, and each prompt counts once."""
    answer = frontend.complete(prompt=["one", "two three"], n=2, echo=True, max_tokens=1).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["oneseven ", "oneseven ", "two threeseven ", "two threeseven "]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 4


def test_echo_as_it_comes(frontend: Served) -> None:
    """The prompt is the first piece."""
    *chunks, _ = events(frontend.complete(prompt="one\n", echo=True, stream=True))
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "one\n" + TEXT


def test_sampling(frontend: Served) -> None:
    """What is given goes to the ensemble under its own names; what is not, does not."""
    frontend.chat()
    frontend.chat(
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        frequency_penalty=-1,
        seed=-1,
        stop=["a", "b"],
        top_k=3,
        min_p=0.1,
        min_tokens=2,
        ignore_eos=True,
    )
    plain, full = (one.sampling for one in frontend.ensemble.asked)
    assert plain == SamplingParameters()
    assert full == SamplingParameters(
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        random_seed=2**64 - 1,
        stop_words=("a", "b"),
        min_tokens=2,
        end_id=-1,
    )


def test_messages(frontend: Served) -> None:
    """Parts stay parts, for the chat template; the system's role has its name of old."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    frontend.chat(
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    )
    assert frontend.ensemble.asked[0].prompt == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": parts},
    ]


def test_a_text_has_16_tokens_unless_asked_for_more(frontend: Served) -> None:
    """OpenAI's default."""
    frontend.complete()
    assert frontend.ensemble.asked[0].sampling.max_tokens == 16


def test_aliases_and_adapters() -> None:
    """Both are other names of a model; the answer repeats the name that was asked for."""
    with served(aliases={"gpt": "speller", "poet": "speller:rhymes"}) as frontend:
        assert frontend.chat(model="gpt").json()["model"] == "gpt"
        frontend.chat(model="poet")
        frontend.chat(model="gpt:prose")
        assert [one.model for one in frontend.ensemble.asked] == ["speller"] * 3
        adapters = [one.sampling.lora_name for one in frontend.ensemble.asked]
        assert adapters == [None, "rhymes", "prose"]
        listed = frontend.http.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["speller", "gpt", "poet"]
        assert frontend.http.get("/v1/models/poet").json()["object"] == "model"


def test_health(frontend: Served) -> None:
    """Live while it runs, ready while a model is."""
    assert frontend.http.get("/health/live").status_code == 200
    assert frontend.http.get("/health/ready").status_code == 200
    frontend.ensemble.ready = False
    answer = frontend.http.get("/health/ready")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"  # a crashed server takes 8 to 19 s
    assert frontend.error(answer)["code"] == "server_unavailable"
    assert frontend.http.get("/health/live").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_is_down(stream: bool) -> None:
    """503, and its address is nobody's business."""
    failure = ServerError("no answer from Triton at 10.0.0.7:8001: UNAVAILABLE", remedy="")
    with served(FakeEnsemble(script=[failure])) as frontend:
        answer = frontend.chat(stream=stream)
        assert answer.status_code == 503
        assert "10.0.0.7" not in answer.text
        assert frontend.error(answer)["code"] == "server_unavailable"


def test_an_error_in_a_stream() -> None:
    """An event of its own ends the stream, without [DONE]."""
    failure = ServerError("no answer", remedy="")
    script: list[Step] = [*chunks_of(["a", "b", "c"])[:2], failure]
    with served(FakeEnsemble(script=script)) as frontend:
        *chunks, last = events(frontend.chat(stream=True))
        assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["", "a", "b"]
        assert last["error"]["code"] == "server_unavailable"


def test_an_answer_without_a_reason() -> None:
    """A stream that merely stops is no answer."""
    with served(FakeEnsemble(script=chunks_of(["a", "b"], ""))) as frontend:
        answer = frontend.chat()
        assert answer.status_code == 503
        assert frontend.error(answer)["code"] == "incomplete_answer"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"logit_bias": {"1": 1}}, "logit_bias", "unsupported_parameter"),
    ({"store": True}, "store", "unsupported_parameter"),
    ({"store": 0}, "store", "unsupported_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "1"}, "temperature", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"stop": ["a"] * 5}, "stop", "invalid_value"),
    ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "invalid_value"),
    ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "pope", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
def test_refused(frontend: Served, fields: dict[str, Any], param: str, code: str) -> None:
    """400 with the field's name, and nothing reaches the ensemble."""
    answer = frontend.chat(**fields)
    assert answer.status_code == 400, answer.text
    error = frontend.error(answer)
    assert (error["param"], error["code"]) == (param, code), error
    assert error["type"] == "invalid_request_error"
    assert f"`{param}`" in error["message"]
    assert frontend.ensemble.asked == []


def test_an_unknown_model(frontend: Served) -> None:
    """404 as OpenAI's."""
    answer = frontend.chat(model="gpt-5")
    assert answer.status_code == 404
    assert frontend.error(answer)["code"] == "model_not_found"
    assert frontend.http.get("/v1/models/gpt-5").status_code == 404


def test_unknown_routes(frontend: Served) -> None:
    """In OpenAI's shape, too."""
    assert frontend.error(frontend.http.get("/v2"))["code"] == "not_found"
    wrong = frontend.http.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert frontend.error(wrong)["code"] == "not_found"
