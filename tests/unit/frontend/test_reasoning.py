# SPDX-License-Identifier: Apache-2.0
"""`reasoning_content`: thoughts told apart from the answer, however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fakes.ensemble_client import FakeEnsemble
from tests.unit.frontend.conftest import MODEL, Served, events
from tests.unit.frontend.test_tools import CALL, WEATHER, arguments
from tritonctl.frontend.app import build_app
from tritonctl.frontend.config import FrontendConfig
from tritonctl.frontend.reasoning import ThinkingReader
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.tools.calls import Content, Thought
from tritonctl.project.frontend import Reasoning

ANSWERS = {
    # text, whether the prompt has opened the thoughts → thoughts, content
    ("<think>\nhm, 1 < 2\n\nso\n</think>\n\nYes.\n", False): ("hm, 1 < 2\n\nso", "Yes.\n"),
    ("\n<think></think>Yes", False): ("", "Yes"),
    ("no tag, <think>late</think>", False): ("", "no tag, <think>late</think>"),
    (" \n", False): ("", " \n"),
    ("<thin", False): ("", "<thin"),
    ("<think>cut </thin", False): ("cut </thin", ""),
    ("hm\n</think>\n\nYes", True): ("hm", "Yes"),
    ("<think>hm</think>Yes</think>", True): ("hm", "Yes</think>"),
    ("cut\n", True): ("cut", ""),
    ("", True): ("", ""),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(("text", "opened"), ANSWERS)
def test_thoughts_and_content(text: str, opened: bool, size: int) -> None:
    """Of pieces of any size; newlines around the tags are nobody's."""
    reader = ThinkingReader(None, opened=opened)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    news = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    thoughts = "".join(event.text for event in news if isinstance(event, Thought))
    content = "".join(event.text for event in news if isinstance(event, Content))
    assert (thoughts, content) == ANSWERS[text, opened]


@contextmanager
def served(words: Sequence[str], reasoning: Reasoning | None = "tags") -> Iterator[Served]:
    """A model that says these, and has tools in Hermes' markup."""
    ensemble = FakeEnsemble(words=words)
    text = TextModel(tool_format="hermes", reasoning=reasoning)
    config = FrontendConfig(servers=("127.0.0.1:1",), models=(MODEL,), texts={MODEL: text})
    app = build_app(config, connect=ensemble.connect)
    with TestClient(app, raise_server_exceptions=False) as http:
        yield Served(http, ensemble)


WORDS = ["<think>", "\nlet me", " see\n", "</think>\n\n", "Yes", "."]


def test_a_message() -> None:
    """Two fields; without the setting all is content."""
    with served(WORDS) as one:
        message = one.chat().json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "Yes.")
    with served(WORDS, None) as one:
        message = one.chat().json()["choices"][0]["message"]
    assert message["content"] == "".join(WORDS)
    assert "reasoning_content" not in message


def test_a_stream() -> None:
    """A delta has thoughts or content, and thoughts come at once."""
    with served(WORDS) as one:
        *chunks, _ = events(one.chat(stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == [
        "let me",
        " see",
    ]
    assert "".join(d.get("content") or "" for d in deltas) == "Yes."


def test_tools_behind_thoughts() -> None:
    """A call that is only thought of is none."""
    with served([f"<think>{CALL}", "</think>", CALL]) as one:
        choice: Any = one.chat(tools=[WEATHER]).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == CALL
    assert arguments(choice) == [("weather", {"city": "Paris"})]
    assert choice["finish_reason"] == "tool_calls"


def test_guided_answers_have_no_thoughts() -> None:
    """Guided decoding begins with the first token, whatever the prompt has opened."""
    with served(['{"a": 1}'], "opened") as one:
        form = {"type": "json_object"}
        message = one.chat(response_format=form).json()["choices"][0]["message"]
    assert message["content"] == '{"a": 1}'


def test_earlier_thoughts_reach_the_template() -> None:
    """Clients send messages back as they came."""
    earlier = {"role": "assistant", "content": "Yes.", "reasoning_content": "let me see"}
    with served(WORDS) as one:
        assert one.chat(messages=[earlier]).status_code == 200
        assert one.ensemble.asked[0].prompt == [earlier]
