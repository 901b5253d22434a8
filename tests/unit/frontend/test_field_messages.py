# SPDX-License-Identifier: Apache-2.0
"""What a client reads about a wrong value: where it is, as deep as is known, and what fits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.frontend.conftest import CHAT, COMPLETIONS, MODEL, Served

USER = {"role": "user", "content": "x"}
EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"
TEXT_OR_LIST = "expected text or a list"


def content(value: Any, role: str = "user") -> dict[str, Any]:
    """A conversation of one message."""
    return {"messages": [{"role": role, "content": value}]}


# The path, the body, the field that the error names, and its message behind that name.
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (COMPLETIONS, {"prompt": []}, "prompt", "expected at least 1 in the list, got a list of 0"),
    (COMPLETIONS, {"prompt": None}, "prompt", f"{TEXT_OR_LIST}, got null"),
    (COMPLETIONS, {"prompt": 5}, "prompt", f"{TEXT_OR_LIST}, got 5"),
    (COMPLETIONS, {"prompt": ["x", None]}, "prompt[1]", "expected text, got null"),
    (EMBEDDINGS, {"input": []}, "input", "expected at least 1 in the list, got a list of 0"),
    (EMBEDDINGS, {"input": ["x", {}]}, "input[1]", "expected text, got an object"),
    (RERANK, {"query": "x", "documents": [1]}, "documents[0]", "expected text or an object, got 1"),
    (
        RERANK,
        {"query": "x", "documents": [{"text": None}]},
        "documents[0].text",
        "expected text, got null",
    ),
    (CHAT, {"stop": [""]}, "stop[0]", 'expected at least 1 characters, got ""'),
    (CHAT, {"stop": ""}, "stop", 'expected at least 1 characters, got ""'),
    (CHAT, {"stop": ["a", 1]}, "stop[1]", "expected text, got 1"),
    (CHAT, {"stop": ["a"] * 5}, "stop", "expected at most 4 in the list, got a list of 5"),
    (CHAT, {"stop": 1}, "stop", f"{TEXT_OR_LIST}, got 1"),
    *(
        (
            CHAT,
            {"response_format": {"type": value}},
            "response_format.type",
            f"expected 'text' or 'json_object' or 'json_schema', got {text}",
        )
        for value, text in (("zzz", '"zzz"'), (None, "null"), (1, "1"))
    ),
    (CHAT, content(None), "messages[0].content", "expected text, got null"),
    (
        CHAT,
        content(None, "assistant"),
        "messages[0].content",
        "expected text or `tool_calls`, got null",
    ),
    (
        CHAT,
        content([]),
        "messages[0].content",
        "expected at least 1 in the list, got a list of 0",
    ),
    (
        CHAT,
        content([{"type": "text", "text": None}]),
        "messages[0].content[0].text",
        "expected text, got null",
    ),
    (
        CHAT,
        content([{"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[0].content[0].type",
        "expected 'text', got \"image_url\"",
    ),
    (
        CHAT,
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "maybe"},
        "tool_choice",
        "expected 'none', 'auto' or 'required', got \"maybe\"",
    ),
]


@pytest.mark.parametrize(("path", "fields", "param", "message"), WRONG)
def test_what_fits(
    frontend: Served, path: str, fields: dict[str, Any], param: str, message: str
) -> None:
    """Not what would fit a value of another type, nor a list around the wrong item."""
    body = {"model": MODEL, **({"messages": [USER]} if path == CHAT else {}), **fields}
    answer = frontend.http.post(path, json=body)
    error = frontend.error(answer)
    assert answer.status_code == 400
    assert (error["param"], error["message"]) == (param, f"`{param}`: {message}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {}}, "response_format.type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, ""),
    ],
)
def test_what_is_missing(frontend: Served, fields: dict[str, Any], param: str) -> None:
    """Absent is not null."""
    param = param or "messages[0].content[0].text"
    error = frontend.error(frontend.chat(**fields))
    assert (error["param"], error["code"]) == (param, "missing_required_parameter")
    assert error["message"] == f"`{param}` is missing"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"model": "speller", "model": "speller", "messages": [%s]}', "model"),
        ('{"model": "speller", "temperature": 0, "messages": [%s], "temperature": 1}', ""),
        ('{"model": "speller", "messages": [%s, {"role": "user", "role": "x"}]}', "role"),
        (
            '{"model": "speller", "messages": [%s], "response_format": {"b": {"a": 1, "a": 2}}}',
            "a",
        ),
        ('{"model": "speller", "messages": [%s], "messages": [], "x": NaN}', "messages"),
    ],
)
def test_a_key_that_comes_twice(frontend: Served, body: str, key: str) -> None:
    """A proxy that checks one of them, and a server that obeys the other, are a way around it."""
    content = (body % '{"role": "user", "content": "x"}').encode()
    answer = frontend.http.post(CHAT, content=content, headers={"content-type": "application/json"})
    error = frontend.error(answer)
    key = key or "temperature"
    assert answer.status_code == 400
    assert (error["param"], error["message"]) == (key, f"an object has the key `{key}` twice")
