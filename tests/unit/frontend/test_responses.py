# SPDX-License-Identifier: Apache-2.0
"""`/v1/responses` over an ensemble with a script: items in, items or typed events out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import WORDS, FakeEnsemble, chunks_of
from tests.unit.frontend.conftest import MODEL, Served
from tritonctl.errors import ServerError
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.text_models import TextModel
from tritonctl.project.frontend import Frontend, Reasoning
from tritonctl.project.server import Tenant
from tritonctl.protocol.generation import ChatPrompt

ROOT = Path(__file__).parents[3]
TOKENIZER = ROOT / "examples" / "number-speller" / "checkpoint" / "tokenizer.json"
RESPONSES = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
NOW = {"type": "function", "name": "now"}
IN_CHAT_FORM = {
    "type": "function",
    "function": {key: value for key, value in WEATHER.items() if key != "type"},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PIECES = ["I", " look.\n", "<tool", "_call>\n", CALL.removeprefix("<tool_call>\n")]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}


@contextmanager
def served(
    words: Sequence[str] = WORDS,
    *,
    script: Sequence[Any] | None = None,
    reasoning: Reasoning | None = None,
    tokenizer: Path | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """The application; its model says `words`, or follows the script."""
    ensemble = FakeEnsemble(words=words, script=script)
    text = TextModel(
        tool_format="hermes", reasoning=reasoning, tokenizer=tokenizer and str(tokenizer)
    )
    config = FrontendConfig(
        servers=("127.0.0.1:1",),
        models=(MODEL,),
        texts={MODEL: text},
        settings=Frontend(**settings),
    )
    app = build_app(config, connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


def respond(frontend: Served, **fields: Any) -> Any:
    """The response to a text, or to other fields."""
    return frontend.http.post(RESPONSES, json={"model": MODEL, "input": "one two"} | fields)


def events(response: Any) -> list[Any]:
    """The events of a stream, whose names and numbers are right."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    result = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        result.append(event)
    return result


def types(stream: Sequence[Any]) -> list[str]:
    """Their types without the common prefix."""
    return [event["type"].removeprefix("response.") for event in stream]


def without_ids(value: Any) -> Any:
    """A copy without random ids and times."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    hidden = {"id", "item_id", "call_id", "created_at", "completed_at", "sequence_number"}
    return {key: without_ids(item) for key, item in value.items() if key not in hidden}


def part(text: str) -> dict[str, Any]:
    """A content part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message(text: str, status: str = "completed") -> dict[str, Any]:
    """A message without its id."""
    return {"type": "message", "status": status, "role": "assistant", "content": [part(text)]}


def test_a_text_is_answered_with_a_message() -> None:
    """The response object repeats the request, and says that nothing is stored."""
    with served() as frontend:
        response = respond(
            frontend,
            instructions="Be brief.",
            metadata={"a": "b"},
            store=True,
            temperature=0.5,
            user="ada",
        ).json()
        assert frontend.ensemble.asked[0].prompt == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one two"},
        ]
        assert frontend.ensemble.asked[0].sampling.temperature == 0.5
    assert response["id"].startswith("resp_")
    assert response["created_at"] <= response["completed_at"]
    assert without_ids(response) == {
        "object": "response",
        "model": MODEL,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "background": False,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {"a": "b"},
        "output": [message("".join(WORDS))],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "user": "ada",
        "usage": {
            "input_tokens": 4,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 8,
        },
    }


def test_a_stream_of_text() -> None:
    """OpenAI's sequence; its last event has the object that the whole answer has."""
    with served() as frontend:
        stream = events(respond(frontend, stream=True))
        whole = respond(frontend).json()
    assert types(stream) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(WORDS),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    created, started, added, part_added, *deltas, text, part_done, item_done, end = stream
    for event in (created, started):
        assert event["response"]["status"] == "in_progress"
        assert (event["response"]["output"], event["response"]["usage"]) == ([], None)
    assert added["item"] | {"id": ""} == {
        "id": "",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    assert part_added["part"] == part("")
    assert [event["delta"] for event in deltas] == list(WORDS)
    assert text["text"] == "".join(WORDS)
    assert part_done["part"] == part("".join(WORDS))
    assert item_done["item"] == end["response"]["output"][0]
    places = {
        (event["item_id"], event["output_index"], event["content_index"])
        for event in (part_added, *deltas, text, part_done)
    }
    assert places == {(added["item"]["id"], 0, 0)}
    assert without_ids(end["response"]) == without_ids(whole)
    assert {each["response"]["id"] for each in (created, started, end)} == {
        created["response"]["id"]
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off(stream: bool) -> None:
    """`max_output_tokens`: the response and its last item are incomplete, for that reason."""
    with served() as frontend:
        response = respond(frontend, max_output_tokens=2, stream=stream)
        end = events(response)[-1] if stream else {"response": response.json()}
        assert frontend.ensemble.asked[0].sampling.max_tokens == 2
    assert end.get("type", "response.incomplete") == "response.incomplete"
    assert end["response"]["status"] == "incomplete"
    assert end["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert end["response"]["completed_at"] is None
    assert without_ids(end["response"]["output"]) == [message("".join(WORDS[:2]), "incomplete")]


def test_a_call() -> None:
    """An item of its own, behind the text; the template gets the tools in the form it knows."""
    with served(PIECES) as frontend:
        whole = respond(frontend, tools=[WEATHER]).json()
        asked = frontend.ensemble.asked[0].prompt
        assert isinstance(asked, ChatPrompt)
        assert asked.tools == [IN_CHAT_FORM]
        stream = events(respond(frontend, tools=[WEATHER], stream=True))
    call = {
        "type": "function_call",
        "status": "completed",
        "name": "weather",
        "arguments": '{"city": "Paris"}',
    }
    assert without_ids(whole["output"]) == [message("I look."), call]
    assert whole["output"][1]["call_id"].startswith("call_")
    assert whole["output"][1]["id"].startswith("fc_")
    assert whole["tools"] == [WEATHER]
    assert types(stream)[-8:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added = stream[-5]
    assert (added["output_index"], added["item"]["arguments"]) == (1, "")
    assert stream[-3]["arguments"] == call["arguments"]
    assert without_ids(stream[-1]["response"]["output"]) == without_ids(whole["output"])


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most(stream: bool) -> None:
    """`parallel_tool_calls: false`: the answer is complete after the first call."""
    with served([*PIECES, "\n", CALL, " more"]) as frontend:
        response = respond(frontend, tools=[WEATHER], parallel_tool_calls=False, stream=stream)
        whole = events(response)[-1]["response"] if stream else response.json()
        assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
        assert whole["status"] == "completed"
        assert whole["parallel_tool_calls"] is False
        assert (frontend.ensemble.cancelled, frontend.ensemble.open) == (1, 0)


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ({"type": "function", "name": "weather"}, None),
        ("required", ["weather", "now"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "now"}],
            },
            ["now"],
        ),
    ],
)
def test_calls_that_are_forced(choice: Any, allowed: list[str] | None) -> None:
    """By a guide: arguments arrive as they are written, and nothing is text."""
    words = (
        ['{"city"', ': "Oslo"}']
        if allowed is None
        else ['[{"name": "now", "arguments": ', '{"a"', ": 1}}]"]
    )
    with served(words) as frontend:
        stream = events(respond(frontend, tools=[WEATHER, NOW], tool_choice=choice, stream=True))
        guide = json.loads(frontend.ensemble.asked[0].sampling.guided_decoding_guide or "")
    (item,) = stream[-1]["response"]["output"]
    assert item["name"] == ("weather" if allowed is None else "now")
    deltas = [event["delta"] for event in stream if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == item["arguments"]
    assert len(deltas) == 2
    assert stream[-1]["response"]["tool_choice"] == choice
    if allowed is None:
        assert guide == WEATHER["parameters"]
    else:
        choices = guide["items"].get("anyOf", [guide["items"]])
        assert [each["properties"]["name"]["const"] for each in choices] == allowed


def test_some_of_the_tools() -> None:
    """`allowed_tools`: the model is shown these alone, and a call of another is text."""
    choice = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "now"}],
    }
    with served([CALL]) as frontend:
        whole = respond(frontend, tools=[WEATHER, NOW], tool_choice=choice).json()
        asked = frontend.ensemble.asked[0].prompt
    assert isinstance(asked, ChatPrompt)
    assert asked.tools == [{"type": "function", "function": {"name": "now"}}]
    assert without_ids(whole["output"]) == [message(CALL)]
    assert whole["tools"] == [WEATHER, NOW]


def test_a_forced_call_that_is_cut_off() -> None:
    """Its item is incomplete, so that no client takes half of its arguments for all."""
    choice = {"type": "function", "name": "weather"}
    with served(script=chunks_of(['{"city', '": "O'], "length")) as frontend:
        whole = respond(frontend, tools=[WEATHER], tool_choice=choice).json()
    assert whole["status"] == "incomplete"
    assert (whole["output"][0]["status"], whole["output"][0]["arguments"]) == (
        "incomplete",
        '{"city": "O',
    )


def test_reasoning_is_an_item() -> None:
    """With its text, its own events and its tokens."""
    with served(["<think>\n", "hm", "m\n", "</think>\n", "\nyes"], reasoning="tags") as frontend:
        whole = respond(frontend).json()
        stream = events(respond(frontend, stream=True))
    reasoning = {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hmm"}],
    }
    assert without_ids(whole["output"]) == [reasoning, message("yes")]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert types(stream)[2:9] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert without_ids(stream[-1]["response"]) == without_ids(whole)


def test_cut_off_in_the_reasoning() -> None:
    """There is no message, and the reasoning is incomplete."""
    script = chunks_of(["<think>", "hm"], "length")
    with served(script=script, reasoning="tags") as frontend:
        whole = respond(frontend).json()
    assert [(item["type"], item["status"]) for item in whole["output"]] == [
        ("reasoning", "incomplete")
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_text(stream: bool) -> None:
    """A message all the same: clients read the answer from it."""
    with served(script=chunks_of([""], "stop")) as frontend:
        response = respond(frontend, stream=stream)
        whole = events(response)[-1]["response"] if stream else response.json()
    assert without_ids(whole["output"]) == [message("")]


def test_a_schema() -> None:
    """`text.format` guides the answer, and is repeated in the response."""
    text_format = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}
    with served(['{"age": 36}']) as frontend:
        whole = respond(frontend, text={"format": text_format}).json()
        sampling = frontend.ensemble.asked[0].sampling
        respond(frontend, text={"format": {"type": "json_object"}})
        other = frontend.ensemble.asked[1].sampling
    assert json.loads(sampling.guided_decoding_guide or "") == SCHEMA
    assert json.loads(other.guided_decoding_guide or "") == {"type": "object"}
    assert whole["text"] == {"format": text_format, "verbosity": "medium"}


@pytest.mark.parametrize("size", [1, 3, 200])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_next_to_tools(stream: bool, size: int) -> None:
    """Agents with tools and a typed output: the guide allows an object of it, or calls."""
    text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    answers = ('{"age": 36}', '[{"name": "weather", "arguments": {"city": "Oslo"}}]')
    for answer in answers:
        pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
        with served(pieces) as frontend:
            response = respond(frontend, tools=[WEATHER, NOW], text=text, stream=stream)
            whole = events(response)[-1]["response"] if stream else response.json()
            guide = json.loads(frontend.ensemble.asked[0].sampling.guided_decoding_guide or "")
        (item,) = whole["output"]
        if answer.startswith("{"):
            assert item["content"][0]["text"] == answer
        else:
            assert (item["name"], json.loads(item["arguments"])) == ("weather", {"city": "Oslo"})
        assert guide["anyOf"][0] == SCHEMA
        names = [each["properties"]["name"] for each in guide["anyOf"][1]["items"]["anyOf"]]
        assert names == [{"const": "weather"}, {"const": "now"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_schema_next_to_calls_that_are_forced(choice: Any) -> None:
    """There is no text, so its schema has nothing to guide."""
    text = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    with served(['{"city": "Oslo"}']) as frontend:
        respond(frontend, tools=[WEATHER], text=text, tool_choice=choice)
        guide = json.loads(frontend.ensemble.asked[0].sampling.guided_decoding_guide or "")
    assert guide["type"] == ("array" if choice == "required" else "object")
    assert "age" not in json.dumps(guide)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(stream: bool) -> None:
    """Of the message's tokens, in its part and in the events of its text."""
    with served(tokenizer=TOKENIZER) as frontend:
        include = ["message.output_text.logprobs"]
        response = respond(frontend, include=include, stream=stream)
        assert response.status_code == 200, response.text
        sent = events(response) if stream else []
        whole = sent[-1]["response"] if stream else response.json()
        assert frontend.ensemble.asked[0].sampling.return_log_probs is True
    (listed,) = [item["content"][0]["logprobs"] for item in whole["output"]]
    if stream:
        deltas = [e["logprobs"] for e in sent if e["type"] == "response.output_text.delta"]
        assert [token for each in deltas for token in each] == listed


def test_log_probabilities_of_parsed_text() -> None:
    """Which tokens became text, and which calls, is unknown: refused, not guessed."""
    with served(tokenizer=TOKENIZER) as frontend:
        include = ["message.output_text.logprobs"]
        error = frontend.error(respond(frontend, include=include, tools=[WEATHER]))
    assert error["param"] == "include"
    assert "parsed for reasoning or calls" in error["message"]


def test_a_failure_in_the_stream() -> None:
    """An `error` and `response.failed`, which has what arrived; the status was sent before."""
    script = [*chunks_of(["seven "], ""), ServerError("gone", remedy="")]
    with served(script=script) as frontend:
        stream = events(respond(frontend, stream=True))
    assert types(stream)[-2:] == ["error", "failed"]
    error, failed = stream[-2:]
    assert set(error) == {"type", "code", "message", "param", "sequence_number"}
    assert error["code"] == "server_unavailable"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert without_ids(failed["response"]["output"]) == [message("seven ", "incomplete")]


def test_a_failure_before_the_stream() -> None:
    """Is a status, as of other endpoints."""
    with served(script=[ServerError("gone", remedy="")]) as frontend:
        response = respond(frontend, stream=True)
        assert response.status_code == 503
        assert frontend.error(response)["code"] == "server_unavailable"


def test_tenants_and_telemetry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, budgets, metrics and the access log count it as other text endpoints."""
    (tmp_path / "alice").write_text("k1")
    tenant = Tenant(api_key_file=tmp_path / "alice", tokens_per_minute=1000)
    config = FrontendConfig(
        servers=("127.0.0.1:1",), models=(MODEL,), tenants={"alice": tenant}, settings=Frontend()
    )
    ensemble = FakeEnsemble()
    with TestClient(build_app(config, connect=ensemble.connect)) as http:
        frontend = Served(http, ensemble)
        refused = respond(frontend)
        assert (refused.status_code, frontend.error(refused)["code"]) == (401, "invalid_api_key")
        http.headers["authorization"] = "Bearer k1"
        unknown = frontend.error(respond(frontend))
        assert unknown["param"] == "max_output_tokens", unknown
        whole = respond(frontend, max_output_tokens=100)
        assert whole.status_code == 200
        assert whole.headers["x-ratelimit-remaining-tokens"] == "796"  # of the reserved ones
        page = http.get("/metrics").text
    assert 'endpoint="/v1/responses",model="speller",outcome="stop",tenant="alice"' in page
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["path"], last["prompt_tokens"], last["output_tokens"]) == (RESPONSES, 2, 4)
    assert (last["reserved_tokens"], last["refunded_tokens"]) == (204, 198)


FIRST_CALL = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
SECOND_CALL = {"type": "function_call", "call_id": "c2", "name": "now", "arguments": ""}


def called(*ids: str) -> list[dict[str, Any]]:
    """Calls in the form of chat templates."""
    function = {"name": "now", "arguments": "{}"}
    return [{"id": each, "type": "function", "function": function} for each in ids]


CONVERSATIONS: dict[str, tuple[list[Any], list[Any]]] = {
    "roles": (
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "!"}]},
            {"role": "assistant", "content": "?!"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                ],
            },
        ],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "!"},
            {"role": "assistant", "content": "?!"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
    ),
    "calls in one turn": (
        [
            {"role": "user", "content": "?"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
                "encrypted_content": None,
            },
            {"role": "assistant", "content": "I look.", "id": "msg_1", "status": "completed"},
            {**FIRST_CALL, "id": "fc_1", "status": "completed"},
            SECOND_CALL,
            {"role": "assistant", "content": "Wait."},
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "one"}],
            },
        ],
        [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "text", "text": "Wait."},
                ],
                "reasoning_content": "hm",
                "tool_calls": called("c1", "c2"),
            },
            {"role": "tool", "content": "noon", "tool_call_id": "c1"},
            {"role": "tool", "content": "one", "tool_call_id": "c2"},
        ],
    ),
    "calls in two turns": (
        [
            FIRST_CALL,
            {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            SECOND_CALL,
            {"type": "function_call_output", "call_id": "c2", "output": "one"},
        ],
        [
            {"role": "assistant", "content": None, "tool_calls": called("c1")},
            {"role": "tool", "content": "noon", "tool_call_id": "c1"},
            {"role": "assistant", "content": None, "tool_calls": called("c2")},
            {"role": "tool", "content": "one", "tool_call_id": "c2"},
        ],
    ),
    "reasoning that was cut off": (
        [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"role": "user", "content": "go on"},
        ],
        [
            {"role": "assistant", "content": "", "reasoning_content": "hm"},
            {"role": "user", "content": "go on"},
        ],
    ),
    "a refusal": (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
        [{"role": "assistant", "content": "No."}],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_items_are_messages(name: str) -> None:
    """What the chat template gets: items of the assistant in a row are one message."""
    items, messages = CONVERSATIONS[name]
    with served() as frontend:
        response = respond(frontend, input=items)
        assert response.status_code == 200, response.text
        assert frontend.ensemble.asked[0].prompt == messages


def test_an_answer_can_be_sent_back() -> None:
    """All of its items are accepted as they came."""
    with served(["<think>", "hm", "</think>", *PIECES], reasoning="tags") as frontend:
        items = respond(frontend, tools=[WEATHER]).json()["output"]
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        result = {
            "type": "function_call_output",
            "call_id": items[2]["call_id"],
            "output": "sunny",
        }
        again = respond(frontend, tools=[WEATHER], input=[*items, result])
        assert again.status_code == 200, again.text
        asked = frontend.ensemble.asked[1].prompt
    assert isinstance(asked, ChatPrompt)
    assert [each["role"] for each in asked.messages] == ["assistant", "tool"]
    assert asked.messages[0]["reasoning_content"] == "hm"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": 5}, "input", "expected text or a list"),
    ({"input": []}, "input", "at least 1"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type", "'function_call_output'"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "expected 'input_text'",
    ),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "`store: false`"),
    (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "1"}]},
        "input[0].call_id",
        "no earlier item",
    ),
    ({"input": [FIRST_CALL | {"arguments": "[1]"}]}, "input[0].arguments", "not a JSON object"),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]},
        "input[0].encrypted_content",
        "expected nothing",
    ),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
    ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "nothing is stored"),
    ({"background": True}, "background", "nothing is stored"),
    ({"background": 0}, "background", "nothing is stored"),
    ({"truncation": "auto"}, "truncation", "not shortened"),
    ({"include": ["reasoning.encrypted_content"]}, "include", "not supported"),
    ({"reasoning": {"effort": "low"}}, "reasoning", "not supported"),
    ({"service_tier": "flex"}, "service_tier", "only one tier"),
    ({"max_tool_calls": 2}, "max_tool_calls", "not supported"),
    ({"max_tokens": 5}, "max_tokens", "`max_output_tokens`"),
    ({"messages": []}, "messages", "`input`"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"colour": "red"}, "colour", "unknown field"),
    ({"metadata": {"a": 1}}, "metadata.a", "expected text"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "expected 'function'"),
    ({"tools": [NOW, NOW]}, "tools[1].name", "two tools are named `now`"),
    ({"tools": [NOW | {"defer_loading": True}]}, "tools[0].defer_loading", "expected false"),
    ({"tools": [NOW | {"defer_loading": 0}]}, "tools[0].defer_loading", "true or false"),
    ({"tool_choice": "required"}, "tool_choice", "only for requests with `tools`"),
    ({"tools": [NOW], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "'allowed_tools'"),
    (
        {"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice.name",
        "no tool is named `x`",
    ),
    (
        {
            "tools": [NOW],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "now"}, {"type": "function", "name": "x"}],
            },
        },
        "tool_choice.tools[1].name",
        "no tool is named `x`",
    ),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "expected 'text'"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "expected 'medium'"),
    # Pairs that are valid alone.
    (
        {
            "tools": [NOW],
            "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "array"}}},
        },
        "text.format",
        "must be of `type: object`",
    ),
    ({"top_logprobs": 0}, "top_logprobs", "only for `include"),
    (
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
        "top_logprobs",
        "chosen token",
    ),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "`stream: true`"),
    ({"min_tokens": 5, "max_output_tokens": 2}, "min_tokens", "more than the limit"),
]


@pytest.mark.parametrize(("fields", "param", "text"), REFUSED)
def test_refused_by_field(fields: dict[str, Any], param: str, text: str) -> None:
    """400 with the field's name, and nothing reaches the ensemble."""
    with served() as frontend:
        response = respond(frontend, **fields)
        error = frontend.error(response)
        assert response.status_code == 400, error
        assert error["param"] == param, error
        assert text in error["message"], error
        assert frontend.ensemble.asked == []


def test_text_without_log_probabilities() -> None:
    """A tokenizer whose tokens do not map to text: the request's own field is named."""
    with served() as frontend:
        error = frontend.error(respond(frontend, include=["message.output_text.logprobs"]))
        assert (error["param"], error["code"]) == ("include", "unsupported_parameter")
