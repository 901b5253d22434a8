# SPDX-License-Identifier: Apache-2.0
"""`tools`, `response_format` and `logprobs` of the endpoints, over an ensemble with a script."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import FakeEnsemble, chunks_of
from tests.unit.frontend.conftest import MODEL, Served, events
from tritonctl.errors import RequestRejectedError
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.text_models import TextModel, text_models, tool_template
from tritonctl.frontend.tools.fields import MAX_TOOLS
from tritonctl.frontend.tools.formats import FORMATS
from tritonctl.frontend.tools.guided import required_guide
from tritonctl.frontend.vocabulary import TOOL_MARKS
from tritonctl.project.file import load_project
from tritonctl.project.frontend import Frontend, ToolFormat
from tritonctl.protocol.generation import ChatPrompt, Chunk, generation_request
from tritonctl.protocol.generation import SamplingParameters as Sampling

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "examples" / "number-speller" / "checkpoint"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PIECES = ["I", " look.\n", "<tool", "_call>\n", CALL.removeprefix("<tool_call>\n"), "\n", CALL]


@contextmanager
def served(
    words: Sequence[str] = PIECES,
    *,
    tool_format: str | None = "hermes",
    script: Sequence[Any] | None = None,
    tokenizer: Path | None = None,
) -> Iterator[Served]:
    """The application; its model says `words`, or follows the script."""
    ensemble = FakeEnsemble(words=words, script=script)
    text = TextModel(tool_format=tool_format, tokenizer=str(tokenizer) if tokenizer else None)
    config = FrontendConfig(servers=("127.0.0.1:1",), models=(MODEL,), texts={MODEL: text})
    app = build_app(config, connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


@pytest.fixture
def hermes() -> Iterator[Served]:
    """A model that says something and calls `weather` twice."""
    with served() as one:
        yield one


def arguments(choice: Any) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in a message."""
    calls = choice["message"]["tool_calls"]
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def test_a_message_with_calls(hermes: Served) -> None:
    """Text, calls with ids, and the reason; the tools reach the chat template as they were sent."""
    (choice,) = hermes.chat(tools=[WEATHER, NOW]).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    assert arguments(choice) == [("weather", {"city": "Paris"})] * 2
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    (asked,) = hermes.ensemble.asked
    assert isinstance(asked.prompt, ChatPrompt)
    assert asked.prompt.tools == [WEATHER, NOW]
    tensors = generation_request(MODEL, asked.prompt, Sampling()).raw_input_contents[0]
    assert json.loads(tensors[4:]) == {
        "messages": [{"role": "user", "content": "one two three"}],
        "tools": [WEATHER, NOW],
    }


def test_a_stream_with_calls(hermes: Served) -> None:
    """No markup in any piece; the pieces of calls have their indices; the reason comes last."""
    *chunks, end = events(hermes.chat(tools=[WEATHER], stream=True))
    assert end == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice["delta"] for choice in choices]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 0, 1, 1]
    assert calls[0]["type"] == "function"
    assert calls[0]["function"] == {"name": "weather", "arguments": ""}
    assert json.loads(calls[1]["function"]["arguments"]) == {"city": "Paris"}
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most(stream: bool) -> None:
    """`parallel_tool_calls: false`: the answer ends after the first call, as does the engine's."""
    with served() as frontend:
        fields = {"tools": [WEATHER], "parallel_tool_calls": False}
        response = frontend.chat(**fields, stream=stream)
        if stream:
            *chunks, _ = events(response)
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            assert sum("id" in c for d in deltas for c in d.get("tool_calls", [])) == 1
            assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        else:
            answer = response.json()
            assert arguments(answer["choices"][0]) == [("weather", {"city": "Paris"})]
            assert answer["choices"][0]["finish_reason"] == "tool_calls"
            assert answer["usage"]["completion_tokens"] == len(PIECES) - 2
        assert frontend.ensemble.cancelled == 1
        assert frontend.ensemble.open == 0


def test_several_answers_with_one_call_each(hermes: Served) -> None:
    """Each answer has its own, and ends after it."""
    answer = hermes.chat(tools=[WEATHER], parallel_tool_calls=False, n=2).json()
    assert [arguments(choice) for choice in answer["choices"]] == [
        [("weather", {"city": "Paris"})]
    ] * 2
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls"] * 2
    assert answer["usage"]["completion_tokens"] == 2 * (len(PIECES) - 2)
    assert (hermes.ensemble.cancelled, hermes.ensemble.open) == (2, 0)


def test_what_is_no_call_is_text() -> None:
    """A call that was cut off by the limit, or is broken, is told as it was written."""
    with served(["<tool_call>", '{"name": "wea']) as frontend:
        (choice,) = frontend.chat(tools=[WEATHER]).json()["choices"]
        assert choice["message"]["content"] == '<tool_call>{"name": "wea'
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
    with served([CALL, " more", "!"]) as frontend:
        (choice,) = frontend.chat(tools=[WEATHER], max_tokens=2).json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["content"] == " more"


@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}])
def test_without_tools_all_is_text(hermes: Served, fields: dict[str, Any]) -> None:
    """`tool_choice: none`: the model is shown no tools, and nothing is taken for a call."""
    (choice,) = hermes.chat(**fields).json()["choices"]
    assert choice["message"]["content"] == "".join(PIECES)
    assert choice["finish_reason"] == "stop"
    assert hermes.ensemble.asked[0].prompt == [{"role": "user", "content": "one two three"}]


def test_a_named_function() -> None:
    """The guide is its schema, and the whole answer its arguments, as they come."""
    choice = {"type": "function", "function": {"name": "weather"}}
    with served(['{"city"', ': "Oslo"}']) as frontend:
        (whole,) = frontend.chat(tools=[WEATHER, NOW], tool_choice=choice).json()["choices"]
        assert arguments(whole) == [("weather", {"city": "Oslo"})]
        assert whole["message"]["content"] is None
        assert whole["finish_reason"] == "tool_calls"
        sampling = frontend.ensemble.asked[0].sampling
        assert sampling.guided_decoding_guide_type == "json_schema"
        assert json.loads(sampling.guided_decoding_guide or "") == WEATHER["function"]["parameters"]  # type: ignore[index]
        *chunks, _ = events(frontend.chat(tools=[WEATHER], tool_choice=choice, stream=True))
        calls = [
            call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])
        ]
        assert [call["function"]["arguments"] for call in calls] == ["", '{"city"', ': "Oslo"}']


REQUIRED = '[{"name": "weather", "arguments": {"city": "[}"}} ,\n {"name":"now","arguments":{}}]'


@pytest.mark.parametrize("size", [1, 2, 7, 200])
def test_required(size: int) -> None:
    """The guide is a list of calls of any tool; pieces of arguments go on at once."""
    words = [REQUIRED[place : place + size] for place in range(0, len(REQUIRED), size)]
    with served(words) as frontend:
        (whole,) = frontend.chat(tools=[WEATHER, NOW], tool_choice="required").json()["choices"]
        assert arguments(whole) == [("weather", {"city": "[}"}), ("now", {})]
        assert whole["message"]["content"] is None
        guide = json.loads(frontend.ensemble.asked[0].sampling.guided_decoding_guide or "")
        assert guide["minItems"] == 1
        names = [each["properties"]["name"] for each in guide["items"]["anyOf"]]
        assert names == [{"const": "weather"}, {"const": "now"}]


def test_required_and_cut_off() -> None:
    """Half a name is no call, and the list around it is no text: only the guide asks for it."""
    script = chunks_of(['[{"na', 'me": "no'], "length")
    with served(script=script) as frontend:
        (whole,) = frontend.chat(tools=[NOW], tool_choice="required").json()["choices"]
        assert whole["message"]["content"] == ""
        assert "tool_calls" not in whole["message"]
        assert whole["finish_reason"] == "length"
        *chunks, _ = events(frontend.chat(tools=[NOW], tool_choice="required", stream=True))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert not any(each.get("content") or "tool_calls" in each for each in deltas)


def test_definitions_move_to_the_root_of_the_guide() -> None:
    """`$ref` counts from there: each tool's own definitions stay apart."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#"}},
        "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
    }
    guide = required_guide({"f": schema, "g": {"definitions": {"x": {"type": "null"}}}})
    assert guide["$defs"]["0.x"] == {"type": "array", "items": {"$ref": "#/$defs/0.x"}}
    assert guide["$defs"]["1.x"] == {"type": "null"}
    assert guide["$defs"]["0."]["properties"]["b"] == {"$ref": "#/$defs/0."}
    assert guide["items"]["anyOf"][0]["properties"]["arguments"] == {"$ref": "#/$defs/0."}
    assert required_guide({"f": {}}, max_calls=1)["maxItems"] == 1
    assert schema["$defs"]  # the caller's own is left alone


TEXT = {"role": "user", "content": "?"}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
# What is asked for: the field that the error names, and a piece of its text.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "web"}]}, "tools[0].type", "expected"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ""),
    ({"tools": [NOW, NOW]}, "tools[1].function.name", "two tools are named `now`"),
    ({"tools": [WEATHER, NOW] * MAX_TOOLS}, "tools", ""),
    ({"tool_choice": "required"}, "tool_choice", "only for requests with `tools`"),
    ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice", "expected"),
    (
        {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice.function.name",
        "no tool is named `x`",
    ),
    ({"messages": [{"role": "tool", "content": "1"}]}, "messages[0].tool_call_id", "missing"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    (
        {"messages": [{"role": "user", "content": "?", "tool_calls": [CALLED]}]},
        "messages[0].tool_calls",
        "only for the role `assistant`",
    ),
    (
        {"messages": [TEXT, {"role": "user", "content": "?", "tool_call_id": "1"}]},
        "messages[1].tool_call_id",
        "only for the role `tool`",
    ),
    ({"response_format": {"type": "xml"}}, "response_format.type", "expected 'text' or"),
    (
        {
            "tools": [NOW],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"anyOf": [{"type": "object"}]}},
            },
        },
        "response_format",
        "must be of `type: object`",
    ),
    (
        {
            "tools": [NOW],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "x"}}],
                },
            },
        },
        "tool_choice.allowed_tools.tools[0].function.name",
        "no tool is named `x`",
    ),
    ({"tools": [NOW], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "'allowed_tools'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"top_logprobs": 1}, "top_logprobs", "only for `logprobs: true`"),
    ({"logprobs": True}, "logprobs", "do not map to text"),
    ({"logprobs": True, "top_logprobs": 2, "temperature": 0}, "top_logprobs", "chosen token"),
    ({"logprobs": True, "top_logprobs": 1, "temperature": 1}, "top_logprobs", "chosen token"),
]


@pytest.mark.parametrize(("fields", "param", "text"), REFUSED)
def test_refused_by_field(hermes: Served, fields: dict[str, Any], param: str, text: str) -> None:
    """400 with the field's name, and nothing reaches the ensemble."""
    response = hermes.chat(**fields)
    error = hermes.error(response)
    assert response.status_code == 400, error
    assert error["param"] == param, error
    assert text in error["message"]
    assert hermes.ensemble.asked == []


def test_a_model_without_tools() -> None:
    """Its chat template shows none, or writes calls in an unknown way."""
    with served(tool_format=None) as frontend:
        error = frontend.error(frontend.chat(tools=[NOW]))
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        assert "chat template shows no tools" in error["message"]
        assert frontend.chat(tools=[NOW], tool_choice="none").status_code == 200


def test_some_of_the_tools(hermes: Served) -> None:
    """`allowed_tools`: the model is shown these alone, and a call of another is text."""
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "now"}}],
        },
    }
    (answer,) = hermes.chat(tools=[WEATHER, NOW], tool_choice=choice).json()["choices"]
    assert answer["message"]["content"] == "".join(PIECES)
    (asked,) = hermes.ensemble.asked
    assert isinstance(asked.prompt, ChatPrompt)
    assert asked.prompt.tools == [NOW]


def test_a_schema_next_to_tools() -> None:
    """The answer is an object of the schema, or calls; each schema's definitions stay apart."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"type": "integer"}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with served([' {"a"', ": 1}"]) as frontend:
        (answer,) = frontend.chat(tools=[WEATHER], response_format=form).json()["choices"]
        guide = json.loads(frontend.ensemble.asked[0].sampling.guided_decoding_guide or "")
    assert answer["message"]["content"] == '{"a": 1}'
    assert answer["finish_reason"] == "stop"
    assert guide["$defs"] == {"text.x": {"type": "integer"}}
    assert guide["anyOf"][0]["properties"] == {"a": {"$ref": "#/$defs/text.x"}}
    with served(['[{"name": "weather", ', '"arguments": {}}]']) as frontend:
        (answer,) = frontend.chat(tools=[WEATHER], response_format=form).json()["choices"]
    assert arguments(answer) == [("weather", {})]
    assert answer["finish_reason"] == "tool_calls"


def test_a_format_next_to_tools_that_may_not_be_called(hermes: Served) -> None:
    """Or one without restrictions: nothing is lost."""
    form = {"type": "json_object"}
    assert hermes.chat(tools=[NOW], tool_choice="none", response_format=form).status_code == 200
    assert hermes.chat(tools=[NOW], response_format={"type": "text"}).status_code == 200


def test_an_earlier_call_and_its_result(hermes: Served) -> None:
    """All of it reaches the chat template."""
    parsed = {**CALLED, "function": {"name": "now", "arguments": "{}", "parsed_arguments": {}}}
    messages: list[dict[str, Any]] = [
        TEXT,
        {"role": "assistant", "content": None, "tool_calls": [parsed], "parsed": {}},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": "and now?"}]},
    ]
    assert hermes.chat(messages=messages).status_code == 200
    expected = [dict(each) for each in messages]
    expected[1] = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
    assert hermes.ensemble.asked[0].prompt == expected


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        (
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": {"a": 1}},
            },
            {"a": 1},
        ),
    ],
)
def test_response_format(asked: dict[str, Any], schema: dict[str, Any]) -> None:
    """A schema for the engine; free text has none."""
    with served(["{", "}"]) as frontend:
        assert (
            frontend.chat(response_format=asked).json()["choices"][0]["message"]["content"] == "{}"
        )
        frontend.chat(response_format={"type": "text"})
        guided, free = (one.sampling for one in frontend.ensemble.asked)
        assert guided.guided_decoding_guide_type == "json_schema"
        assert json.loads(guided.guided_decoding_guide or "") == schema
        assert free == Sampling()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [NOW], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_an_engine_without_guides(fields: dict[str, Any], param: str) -> None:
    """Triton refuses the tensor; the client learns which of its fields that was."""
    refusal = RequestRejectedError(
        "Triton refused the request: [request id: x] unexpected inference input "
        "'guided_decoding_guide_type' for model 'speller'",
        remedy="",
    )
    with served(script=[refusal]) as frontend:
        error = frontend.error(frontend.chat(**fields))
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")


def test_a_schema_that_is_too_long(hermes: Served) -> None:
    """Engines take 64 KiB."""
    schema = {"name": "n", "schema": {"enum": ["x" * 70_000]}}
    error = hermes.error(
        hermes.chat(response_format={"type": "json_schema", "json_schema": schema})
    )
    assert error["param"] == "response_format"
    assert "at most 65536" in error["message"]


def answer_of(pieces: Sequence[tuple[str, tuple[int, ...], tuple[float, ...]]]) -> list[Chunk]:
    """Chunks of text, ids and log probabilities."""
    made = []
    for number, (text, ids, log_probs) in enumerate(pieces, start=1):
        reason = "stop" if number == len(pieces) else ""
        made.append(Chunk(text, 3, number, reason, 0, log_probs, None, ids))
    return made


def ids_of(*tokens: str) -> tuple[int, ...]:
    """Ids in the shipped checkpoint's vocabulary."""
    vocabulary = json.loads((SHIPPED / "tokenizer.json").read_text(encoding="utf-8"))
    return tuple(vocabulary["model"]["vocab"][token] for token in tokens)


def log_prob_script() -> list[Chunk]:
    """` seven`, half of 七, its other half with a stop word's first letter, the end."""
    first, second, third = (bytes([value]) for value in "七".encode())
    shown = {0xE4: "ä", 0xB8: "¸", 0x83: "ĥ"}
    seven, a, b, c, x = ids_of(
        "Ġseven", *(shown[piece[0]] for piece in (first, second, third)), "x"
    )
    added = json.loads((SHIPPED / "tokenizer.json").read_text("utf-8"))["added_tokens"]
    end = next(each["id"] for each in added if each["content"] == "<|end_of_text|>")
    return answer_of(
        [
            (" seven", (seven,), (-0.5,)),
            ("", (a, b), (-1.0, float("-inf"))),
            ("七", (c,), (-2.0,)),
            ("", (x, end), (-3.0, -4.0)),
        ]
    )


def test_log_probs_of_a_message() -> None:
    """Each token with its bytes; what adds no text, the stop word and the end, is left out."""
    with served(script=log_prob_script(), tokenizer=SHIPPED / "tokenizer.json") as frontend:
        answer = frontend.chat(logprobs=True, top_logprobs=1, temperature=0).json()
        content = answer["choices"][0]["logprobs"]["content"]
        assert [bytes(entry["bytes"]) for entry in content] == [
            b" seven",
            *(bytes([value]) for value in "七".encode()),
        ]
        assert [entry["logprob"] for entry in content] == [-0.5, -1.0, -9999.0, -2.0]
        assert content[0]["token"] == " seven"  # noqa: S105 - a token of text
        (top,) = content[0]["top_logprobs"]
        assert {**content[0], "top_logprobs": []} == {**top, "top_logprobs": []}
        assert frontend.ensemble.asked[0].sampling.return_log_probs is True
        *chunks, _ = events(frontend.chat(logprobs=True, stream=True))
        streamed = [
            entry
            for chunk in chunks
            for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert [{**entry, "top_logprobs": []} for entry in content] == streamed


def test_log_probs_of_a_text() -> None:
    """The lists of old: offsets count characters."""
    with served(script=log_prob_script(), tokenizer=SHIPPED / "tokenizer.json") as frontend:
        answer = frontend.complete(logprobs=0, prompt="ab").json()
        record = answer["choices"][0]["logprobs"]
        assert record["tokens"][0] == " seven"
        assert record["token_logprobs"] == [-0.5, -1.0, -9999.0, -2.0]
        assert record["text_offset"] == [0, 6, 6, 6]
        assert record["top_logprobs"] is None
        *chunks, _ = events(frontend.complete(logprobs=1, top_k=1, prompt="ab", stream=True))
        choices = [chunk["choices"][0] for chunk in chunks]
        assert "".join(choice["text"] for choice in choices) == " seven七"
        assert choices[0]["logprobs"]["top_logprobs"] == [{" seven": -0.5}]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_has_no_log_probs(stream: bool) -> None:
    """Those of the prompt are unknown, and the answer's would be taken for them."""
    with served(script=log_prob_script(), tokenizer=SHIPPED / "tokenizer.json") as frontend:
        refused = frontend.complete(logprobs=0, echo=True, prompt="ab", stream=stream)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("echo", "unsupported_parameter")
        assert frontend.ensemble.asked == []


def test_formats_have_the_names_that_a_project_takes() -> None:
    """One table; the project file knows its keys, and `none`."""
    assert {"none", *FORMATS} == set(get_args(ToolFormat))
    with pytest.raises(ValueError, match="tool_formats has `x`, expected one of speller"):
        Frontend(tool_formats={"x": "hermes"}).refuse_unknown_models(["speller"])


def test_the_template_is_the_tokenizer_steps(tmp_path: Path) -> None:
    """chat_template.jinja wins; of named ones, that for tools; what cannot be read is none."""
    assert tool_template(tmp_path) == ""
    config = tmp_path / "tokenizer_config.json"
    config.write_text("{", encoding="utf-8")
    assert tool_template(tmp_path) == ""
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    config.write_text(json.dumps({"chat_template": named}), encoding="utf-8")
    assert tool_template(tmp_path) == "b"
    config.write_text(json.dumps({"chat_template": "c"}), encoding="utf-8")
    assert tool_template(tmp_path) == "c"
    (tmp_path / "chat_template.jinja").write_text("d", encoding="utf-8")
    assert tool_template(tmp_path) == "d"


def test_models_of_a_project() -> None:
    """The shipped checkpoint's template knows no tools, and its tokens have names; a project may
    say more."""
    project = load_project(ROOT / "tritonctl.yaml")
    found = text_models(project)["speller"]
    assert found == TextModel(tokenizer=str(SHIPPED / "tokenizer.json"), reads_names=False)
    told = project.model_copy(update={"frontend": Frontend(tool_formats={"speller": "mistral"})})
    assert text_models(told)["speller"].tool_format == "mistral"


def test_marks_that_may_be_special_tokens_are_text() -> None:
    """The text path keeps what parsers look for, and so do log probabilities."""
    folder = str(ROOT / "python_backends" / "textlib" / "tokens")
    marks = runpy.run_path(f"{folder}/tool_call_tokens.py")["TOOL_MARKS"]
    assert marks == TOOL_MARKS
    for markup in FORMATS.values():
        for opener in markup.openers:
            whole = opener.text in marks or opener.first
            assert whole or opener.text == "<|action_start|><|plugin|>"
