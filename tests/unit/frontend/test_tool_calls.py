# SPDX-License-Identifier: Apache-2.0
"""Calls of tools in a model's text: each family's markup, whole and cut anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tritonctl.frontend.tools.calls import (
    CallArguments,
    CallStart,
    Content,
    Event,
    delta,
    message_of,
)
from tritonctl.frontend.tools.formats import FORMATS, find_format
from tritonctl.frontend.tools.stream import CallStream

SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
PARIS = '{"city": "Paris", "days": 3}'
Call = tuple[str, Any]
WEATHER: Call = ("weather", {"city": "Paris", "days": 3})
NOW: Call = ("now", {})

# Format, what the model writes, the text for the reader, the calls.
ANSWERS: dict[str, tuple[str, str, str, list[Call]]] = {
    "text alone": (
        "hermes",
        "It rains <b>today</b> < 3 {}.\n",
        "It rains <b>today</b> < 3 {}.\n",
        [],
    ),
    "nothing": ("hermes", "", "", []),
    "whitespace alone": ("hermes", " \n", " \n", []),
    "hermes": (
        "hermes",
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
        "",
        [WEATHER],
    ),
    "hermes, text and two calls": (
        "hermes",
        (
            f'See.\n\n<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>\n'
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
        ),
        "See.",
        [WEATHER, NOW],
    ),
    "hermes, arguments first": (
        "hermes",
        f'<tool_call>{{"arguments": {PARIS}, "name": "weather"}}</tool_call>',
        "",
        [WEATHER],
    ),
    "hermes, arguments as a string": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {json.dumps(PARIS)}}}</tool_call>',
        "",
        [WEATHER],
    ),
    "hermes, no arguments": ("hermes", '<tool_call>{"name": "now"}</tool_call>', "", [NOW]),
    "hermes, the closer in a string": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>\\" \\\\"}}</tool_call>',
        "",
        [("weather", {"city": '</tool_call>" \\'})],
    ),
    "hermes, without its closer": (
        "hermes",
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n',
        "",
        [WEATHER],
    ),
    "hermes, text behind a call": (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>\nDone.',
        "\nDone.",
        [NOW],
    ),
    "hermes, broken JSON": (
        "hermes",
        'So: <tool_call>{"name": "weather", "arguments": {"city": }}</tool_call> there.',
        'So: <tool_call>{"name": "weather", "arguments": {"city": }}</tool_call> there.',
        [],
    ),
    "hermes, broken and then whole": (
        "hermes",
        '<tool_call>{"name": }</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": }</tool_call>',
        [NOW],
    ),
    "hermes, cut off": (
        "hermes",
        'Well <tool_call>{"name": "weather", "argu',
        'Well <tool_call>{"name": "weather", "argu',
        [],
    ),
    "hermes, an unknown tool": (
        "hermes",
        '<tool_call>{"name": "format_disk", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "format_disk", "arguments": {}}</tool_call>',
        [],
    ),
    "hermes, numbers that JSON has not": (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"days": 1e999}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": 1e999}}</tool_call>',
        [],
    ),
    "hermes, half an opener at the end": ("hermes", "a < b <tool_ca", "a < b <tool_ca", []),
    "qwen_coder": (
        "qwen_coder",
        (
            "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
        ),
        "I look.",
        [WEATHER],
    ),
    "qwen_coder, a text that looks like a number": (
        "qwen_coder",
        (
            "<tool_call><function=weather><parameter=city>\n75001\n</parameter>"
            '<parameter=tags>\n["a", 1]\n</parameter></function></tool_call>'
        ),
        "",
        [("weather", {"city": "75001", "tags": ["a", 1]})],
    ),
    "glm": (
        "glm",
        (
            "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
        ),
        "",
        [WEATHER],
    ),
    "deepseek V3": (
        "deepseek",
        (
            "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
            "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "Hm.",
        [WEATHER, NOW],
    ),
    "deepseek V3.1": (
        "deepseek",
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>"
        ),
        "",
        [WEATHER],
    ),
    "kimi": (
        "kimi",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
            f"<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_calls_section_end|>"
        ),
        "",
        [WEATHER],
    ),
    "mistral, a list": (
        "mistral",
        (
            f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, '
            '{"name": "now", "arguments": {}}]'
        ),
        "",
        [WEATHER, NOW],
    ),
    "mistral, names and marks": (
        "mistral",
        f"Well [1].[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{{}}",
        "Well [1].",
        [WEATHER, NOW],
    ),
    "mistral, names alone": ("mistral", f"[TOOL_CALLS]weather{PARIS}", "", [WEATHER]),
    "mistral, no call": (
        "mistral",
        "[TOOL_CALLS] none " + "x" * 300,
        "[TOOL_CALLS] none " + "x" * 300,
        [],
    ),
    "jamba": (
        "jamba",
        f'<tool_calls>[\n{{"name": "weather", "arguments": {PARIS}}}\n]</tool_calls>',
        "",
        [WEATHER],
    ),
    "command_r": (
        "command_r",
        (
            '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "weather", '
            f'"parameters": {PARIS}}}\n]<|END_ACTION|>'
        ),
        "",
        [WEATHER],
    ),
    "granite": (
        "granite",
        f'<|tool_call|>[{{"name": "weather", "arguments": {PARIS}}}]',
        "",
        [WEATHER],
    ),
    "internlm": (
        "internlm",
        (
            f'Yes.<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {PARIS}}}'
            "<|action_end|>"
        ),
        "Yes.",
        [WEATHER],
    ),
    "pythonic": ("pythonic", '[weather(city="Paris", days=3), now()]', "", [WEATHER, NOW]),
    "pythonic, brackets and quotes": (
        "pythonic",
        "[weather(city='a]\\')\"', tags=[1, {'b': None}])]",
        "",
        [("weather", {"city": "a]')\"", "tags": [1, {"b": None}]})],
    ),
    "pythonic, a link": ("pythonic", "[text](https://x.y)", "[text](https://x.y)", []),
    "pythonic, code": ("pythonic", "[now(__import__('os'))]", "[now(__import__('os'))]", []),
    "pythonic, an expression": (
        "pythonic",
        "[weather(city=open('x').read())]",
        "[weather(city=open('x').read())]",
        [],
    ),
    "pythonic, in the middle": ("pythonic", "See [now()]", "See [now()]", []),
    "llama3": ("llama3", f'{{"name": "weather", "parameters": {PARIS}}}', "", [WEATHER]),
    "llama3, two": (
        "llama3",
        (
            f'\n{{"type": "function", "name": "weather", "parameters": {PARIS}}}; '
            '{"name": "now", "parameters": {}}'
        ),
        "",
        [WEATHER, NOW],
    ),
    "llama3, behind the mark": (
        "llama3",
        f'<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}',
        "",
        [WEATHER],
    ),
    "llama3, other JSON": ("llama3", '{"answer": {"a": 1}} so', '{"answer": {"a": 1}} so', []),
    "llama3, JSON with a name": (
        "llama3",
        '{"name": "Ada", "age": 36} so',
        '{"name": "Ada", "age": 36} so',
        [],
    ),
    "llama3, in the middle": (
        "llama3",
        'As in {"name": "now", "parameters": {}}',
        'As in {"name": "now", "parameters": {}}',
        [],
    ),
}
EACH_ANSWER = pytest.mark.parametrize("name", ANSWERS)


def read(markup: str, pieces: Iterable[str], most_calls: int | None = None) -> list[Event]:
    """The events of an answer in pieces."""
    stream = CallStream(FORMATS[markup], SCHEMAS, most_calls)
    events = [event for piece in pieces for event in stream.feed(piece)]
    return events + stream.finish()


def told(events: Sequence[Event]) -> tuple[str, list[Call]]:
    """The text, and the calls by name and arguments."""
    whole = message_of(list(events))
    calls = [each["function"] for each in whole.get("tool_calls", [])]
    return whole["content"] or "", [(c["name"], json.loads(c["arguments"])) for c in calls]


@EACH_ANSWER
def test_whole(name: str) -> None:
    """Each family's markup: the text without it, the calls in order."""
    markup, answer, text, calls = ANSWERS[name]
    assert told(read(markup, [answer])) == (text, calls)


@EACH_ANSWER
def test_in_single_characters(name: str) -> None:
    """The smallest pieces give the same."""
    markup, answer, text, calls = ANSWERS[name]
    assert told(read(markup, answer)) == (text, calls)


@given(data=st.data())
@examples(300)
def test_cut_anywhere(data: st.DataObject) -> None:
    """However an answer is cut into pieces, text and calls are those of the whole."""
    name = data.draw(st.sampled_from(sorted(ANSWERS)))
    markup, answer, text, calls = ANSWERS[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=8)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert told(read(markup, pieces)) == (text, calls)


MARKUP = [
    *("<tool_call>", "</tool_call>", "<tool_", '{"name": "now"', ', "arguments": ', "{}", "}", "["),
    *("]", '"', "\\", "\n", " ", "text", ";", "<function=now>", "</function>", "[TOOL_CALLS]"),
    *("[ARGS]", "now", "now()", "(", ")", "'", "<|python_tag|>", "<arg_key>", "😀"),
]


@given(
    markup=st.sampled_from(sorted(FORMATS)),
    pieces=st.lists(st.sampled_from(MARKUP), max_size=14),
)
@examples(400)
def test_nothing_is_lost(markup: str, pieces: list[str]) -> None:
    """Random markup: pieces give what the whole gives, and without a call every byte is text."""
    whole = read(markup, ["".join(pieces)])
    assert told(read(markup, pieces)) == told(whole)
    text, calls = told(whole)
    if not calls:
        assert text == "".join(pieces)


@EACH_ANSWER
def test_no_half_markup_is_text(name: str) -> None:
    """What has been said at any moment is the beginning of the text in the end."""
    markup, answer, text, _ = ANSWERS[name]
    stream, said = CallStream(FORMATS[markup], SCHEMAS), ""
    for character in answer:
        said += "".join(e.text for e in stream.feed(character) if isinstance(e, Content))
        assert text.startswith(said)


@pytest.mark.parametrize("markup", FORMATS)
def test_ordinary_text_goes_on_at_once(markup: str) -> None:
    """A word is there as soon as its last letter is: only whitespace waits for what follows."""
    stream = CallStream(FORMATS[markup], SCHEMAS)
    for piece in ("It", " is", " 3", " >", " 2", ",\n", "so", " x", "=[1]", " {}."):
        said = "".join(e.text for e in stream.feed(piece) if isinstance(e, Content))
        assert said.lstrip() == piece.strip()


def test_other_json_goes_on_at_once() -> None:
    """Llama's calls have no mark: an object that cannot be one is let go at its first key."""
    stream = CallStream(FORMATS["llama3"], SCHEMAS)
    assert stream.feed('{"an') == [Content('{"an')]
    assert stream.feed("swer") == [Content("swer")]


def test_one_call_at_most() -> None:
    """`parallel_tool_calls: false`: the answer is full after the first call."""
    answer = ANSWERS["hermes, text and two calls"][1]
    stream = CallStream(FORMATS["hermes"], SCHEMAS, max_calls=1)
    events = stream.feed(answer)
    assert stream.full
    assert told(events)[1] == [WEATHER]
    assert told(read("mistral", [ANSWERS["mistral, a list"][1]], 1))[1] == [WEATHER]


def test_ids() -> None:
    """The model's own id, or one of the form that the family's template takes back."""
    (begins,) = [e for e in read("kimi", [ANSWERS["kimi"][1]]) if isinstance(e, CallStart)]
    assert begins.id == "functions.weather:0"
    ids = [
        e.id
        for e in read("mistral", [ANSWERS["mistral, names and marks"][1]])
        if isinstance(e, CallStart)
    ]
    assert ids[1] == "abc123XYZ"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    hermes = read("hermes", [ANSWERS["hermes, text and two calls"][1]])
    ids = [e.id for e in hermes if isinstance(e, CallStart)]
    assert len(set(ids)) == 2
    assert all(each.startswith("call_") for each in ids)


def test_deltas_add_up() -> None:
    """The chunks' deltas, added as OpenAI's clients add them, are the whole message."""
    events = read("hermes", ANSWERS["hermes, text and two calls"][1])
    content, calls = "", {}  # type: str, dict[int, dict[str, Any]]
    for event in events:
        change = delta(event)
        content += change.get("content", "")
        for each in change.get("tool_calls", []):
            call = calls.setdefault(each["index"], {"name": "", "arguments": ""})
            call["name"] += each["function"].get("name", "")
            call["arguments"] += each["function"].get("arguments", "")
            call |= {key: each[key] for key in ("id", "type") if key in each}
    whole = message_of(events)
    assert content == whole["content"]
    assert [{**c["function"], "id": c["id"], "type": c["type"]} for c in whole["tool_calls"]] == [
        calls[0],
        calls[1],
    ]
    assert message_of(read("hermes", ["text"])) == {"content": "text"}


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("hermes", "<tool_call>" * 4000),
        ("hermes", '<tool_call>{"a": "' + "</tool_call>" * 4000),
        ("mistral", "[TOOL_CALLS]" * 4000),
        ("llama3", "<|python_tag|>" * 4000),
        ("llama3", "{" * 40000),
        ("llama3", '{"name": ' * 6000),
        ("pythonic", "[f(" + "(" * 40000),
        ("pythonic", "[f(a=" + "-" * 40000 + "1)]"),
        ("pythonic", "[" + "a" * 40000),
        ("qwen_coder", "<tool_call><function=now>" + "<parameter=a>" * 4000 + "</tool_call>"),
        ("glm", "<tool_call>now" + "<arg_key>" * 4000 + "</tool_call>"),
        ("hermes", "<tool_call>" + '{"name": "now", "arguments": ' + "[" * 40000 + "</tool_call>"),
    ],
)
def test_hostile_answers_take_no_time(markup: str, text: str) -> None:
    """A model that has lost its way costs no more than its text, and the text is not lost."""
    began = time.process_time()
    pieces = [text[place : place + 40] for place in range(0, len(text), 40)]
    assert told(read(markup, pieces)) == (text, [])
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", None),
        ("<tool_call> without the variable", None),
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call>\n<function=x>\n<parameter=y>{% endif %}", "qwen_coder"),
        ("{% if tools %}<tool_call>{{ n }}\n<arg_key>{% endif %}", "glm"),
        ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]{% endif %}", "mistral"),
        ("{% if tools %}<|start_header_id|>ipython <|python_tag|>{% endif %}", "llama3"),
        ('{% if tools %}<|start_header_id|> {"name": n, "parameters": p}{% endif %}', "llama3"),
        ("{% if tools %}[func_name1(params)] <|python_tag|>{% endif %}", "pythonic"),
        ("{% if tools %}<｜tool▁calls▁begin｜>{% endif %}", "deepseek"),
    ],
)
def test_format_of_a_template(template: str, name: str | None) -> None:
    """The format is read from the chat template; unknown markup has none."""
    assert find_format(template) == name


def test_arguments_are_said_with_their_call() -> None:
    """Arguments follow the beginning of their own call."""
    events = read("hermes", [ANSWERS["hermes, text and two calls"][1]])
    kinds = [(type(e), getattr(e, "index", None)) for e in events]
    assert kinds == [
        (Content, None),
        (CallStart, 0),
        (CallArguments, 0),
        (CallStart, 1),
        (CallArguments, 1),
    ]
