# SPDX-License-Identifier: Apache-2.0
"""Bodies that are costly to read: the work for one is bounded, and others come in between."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tritonctl.frontend import json_structure
from tritonctl.frontend.bodies import Body, BodyParser, parse
from tritonctl.frontend.chat import UNSUPPORTED, ChatRequest
from tritonctl.frontend.completions import CompletionRequest
from tritonctl.frontend.embeddings import EmbeddingRequest
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.json_structure import MAX_MARKS, count_marks_in_steps
from tritonctl.frontend.rerank import RerankRequest
from tritonctl.frontend.responses.request import ResponsesRequest

MAX_CALLS = 20_000  # of functions, except the parser's own of each object
AN_OBJECT = json_structure._object.__code__
BODIES: tuple[type[Body], ...] = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RerankRequest,
    ResponsesRequest,
)
MESSAGE = '{"role": "user", "content": "x"}'


def chat(field: str, value: str) -> str:
    """A conversation with another field."""
    messages = "" if field == "messages" else f'"messages": [{MESSAGE}], '
    return f'{{"model": "speller", {messages}"{field}": {value}}}'


def messages(content: str) -> str:
    """A conversation with this content."""
    return chat("messages", f'[{{"role": "user", "content": {content}}}]')


def listed(item: str, count: int) -> str:
    """A list of equal items."""
    return f"[{', '.join([item] * count)}]"


def keys(count: int) -> str:
    """Different keys."""
    return ", ".join(f'"k{number}": 1' for number in range(count))


def items(value: str) -> str:
    """A request of /v1/responses with this input."""
    return f'{{"model": "speller", "input": {value}}}'


SHAPES: dict[str, tuple[type[Body], str]] = {}
for _size, _count in (("few", 20_000), ("many", 200_000)):
    SHAPES |= {
        f"{_size} numbers as parts": (ChatRequest, messages(listed("1", _count))),
        f"{_size} objects as parts": (ChatRequest, messages(listed('{"a": 1}', _count))),
        f"{_size} numbers as messages": (ChatRequest, chat("messages", listed("1", _count))),
        f"{_size} bad messages": (
            ChatRequest,
            chat("messages", listed('{"role": "z", "content": [1, 2, 3]}', _count // 10)),
        ),
        f"{_size} bad tools": (ChatRequest, chat("tools", listed('{"type": 1}', _count))),
        f"{_size} numbers to stop at": (ChatRequest, chat("stop", listed("1", _count))),
        f"{_size} functions": (ChatRequest, chat("functions", listed("{}", _count))),
        f"{_size} keys": (ChatRequest, f'{{"model": "speller", {keys(_count)}}}'),
        f"{_size} keys of a message": (ChatRequest, chat("messages", f"[{{{keys(_count)}}}]")),
        f"{_size} biases": (ChatRequest, chat("logit_bias", f"{{{keys(_count)}}}")),
        f"{_size} data": (ChatRequest, chat("metadata", f"{{{keys(_count)}}}")),
        f"{_size} negative ids as prompt": (
            CompletionRequest,
            f'{{"model": "m", "prompt": {listed("-1", _count)}}}',
        ),
        f"{_size} objects as input": (ResponsesRequest, items(listed('{"a": 1}', _count))),
        f"{_size} numbers as input": (ResponsesRequest, items(listed("1", _count))),
        f"{_size} parts of an item": (
            ResponsesRequest,
            items(f'[{{"role": "user", "content": {listed("{}", _count)}}}]'),
        ),
        f"{_size} thoughts": (
            ResponsesRequest,
            items(f'[{{"type": "reasoning", "summary": {listed("1", _count)}}}]'),
        ),
        f"{_size} lists as prompt": (
            CompletionRequest,
            f'{{"model": "m", "prompt": {listed("[1]", _count)}}}',
        ),
        f"{_size} lists behind a text": (
            EmbeddingRequest,
            f'{{"model": "m", "input": ["x", {listed("[]", _count)[1:]}}}',
        ),
        f"{_size} documents": (
            RerankRequest,
            f'{{"model": "m", "query": "x", "documents": {listed("{}", _count)}}}',
        ),
    }
SHAPES |= {
    "deep lists": (ChatRequest, messages("[" * 500_000)),
    "deep objects": (ChatRequest, messages('{"a": ' * 100_000)),
    "deep schemas": (
        ChatRequest,
        chat("tools", listed('{"type": 1, "f": ' + '{"a":' * 90 + "1" + "}" * 91, 2000)),
    ),
    "a long key": (ChatRequest, chat("tool" * 100_000, "1")),
    "a long number": (ChatRequest, chat("n", "9" * 500_000)),
    "a long text": (ChatRequest, chat("stop", f'"{"a" * 500_000}"')),
}


@pytest.mark.parametrize(("body_type", "body"), SHAPES.values(), ids=SHAPES)
def test_the_work_for_a_refusal_is_bounded(body_type: type[Body], body: str) -> None:
    """Not by the number of values, of errors, or the length of what the message repeats."""
    calls = 0

    def count(frame: FrameType, *_: Any) -> None:
        nonlocal calls
        calls += frame.f_code is not AN_OBJECT

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(ApiError) as raised:
            parse(body_type, body.encode(), UNSUPPORTED)
    finally:
        sys.setprofile(previous)
    assert raised.value.status == 400
    assert len(raised.value.body) < 1000
    assert calls < MAX_CALLS


def lists_in(schema: Any) -> Iterator[dict[str, Any]]:
    """Every list of a core schema whose items are validated."""
    if isinstance(schema, dict):
        if schema.get("type") == "list" and schema["items_schema"]["type"] != "any":
            yield schema
        for value in schema.values():
            yield from lists_in(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from lists_in(value)


@pytest.mark.parametrize("body_type", BODIES)
def test_lists_report_their_first_bad_item(body_type: type[Body]) -> None:
    """Otherwise the errors of all items are built."""
    found = list(lists_in(body_type.__pydantic_core_schema__))
    assert found
    assert all(each.get("fail_fast") for each in found)


def test_the_first_bad_item_is_named() -> None:
    """However many there are."""
    with pytest.raises(ApiError) as raised:
        parse(ChatRequest, chat("messages", f"[{MESSAGE}, {'1, ' * 5000}1]").encode(), {})
    assert raised.value.param == "messages[1]"
    assert raised.value.message == "`messages[1]`: expected an object, got 1"


def marks_of(body: bytes) -> int:
    """Commas, opening brackets and texts of a small body, by the counter's limit."""
    padding = b"1," * (MAX_MARKS - 20)
    low, high = 0, 20
    while low < high:
        middle = (low + high) // 2
        try:
            for _ in count_marks_in_steps(body + padding + b"," * middle):
                pass
            low = middle + 1
        except ApiError:
            high = middle
    return 20 - low + 1


@pytest.mark.parametrize(
    ("body", "marks"),
    [
        (b"{}", 1),
        (b'["a,b[{", 1]', 3),
        (b'["\\",", 1]', 3),
        (b'["\\\\", 1]', 3),
        (b'["\\\\\\",", 1]', 3),
        (b'{"a": [], "b": {}}', 6),
    ],
)
def test_marks_in_texts_do_not_count(body: bytes, marks: int) -> None:
    """A long text is one value, whatever it contains."""
    assert marks_of(body) == marks


@pytest.mark.parametrize("offset", range(8))
def test_texts_across_pieces(offset: int) -> None:
    """Escapes and quotes are read right wherever a piece ends."""
    text = "," * offset + '\\",\\\\,' * 200_000
    body = messages(f'"{text}"').encode()
    parsed = parse(ChatRequest, body, UNSUPPORTED)
    assert parsed.messages[0].content == json.loads(f'"{text}"')


def test_others_come_in_between() -> None:
    """A large body is read in many steps, and only one of several bodies at a time."""
    body = messages(json.dumps("x, " * 400_000)).encode()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def run() -> list[int]:
        parser, finished = BodyParser(), []

        async def one() -> None:
            await parser.parse(ChatRequest, body, UNSUPPORTED)
            finished.append(turns)

        ticking = asyncio.create_task(other())
        await asyncio.gather(*(one() for _ in range(3)))
        ticking.cancel()
        return finished

    finished = asyncio.run(run())
    assert finished[0] > 15
    assert finished[1] - finished[0] > 15
    assert finished[2] - finished[1] > 15


def test_as_much_as_a_conversation_may_have() -> None:
    """Values that the fields allow are not too many for the body."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = json.dumps({"model": "speller", "messages": [message] * 4096}).encode()
    assert len(parse(ChatRequest, body, UNSUPPORTED).messages) == 4096
    texts = json.dumps({"model": "m", "input": ["x"] * 2048}).encode()
    assert len(parse(EmbeddingRequest, texts, {}).texts) == 2048
