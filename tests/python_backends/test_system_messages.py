# SPDX-License-Identifier: Apache-2.0
"""System messages where a chat template has no such role, and where it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textlib.chat.messages import parse_messages
from textlib.chat.template import ChatTemplate
from textlib.errors import RequestError

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples" / "number-speller" / "checkpoint"
USER = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>"
RAISES = (
    USER + "{{ m.content }}{% else %}{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
)
DROPS = USER + "{{ m.content }}{% endif %}{% endfor %}"
SHOWS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
READS_PARTS = (
    USER + "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% else %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
)


def prompt(folder: Path, messages: list[Any], **fields: Any) -> str:
    """The prompt of a conversation. Raises RequestError."""
    value = {"messages": messages, **fields}
    raw = ChatTemplate(folder).render(parse_messages(json.dumps(value).encode()))
    return raw.decode()


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A tokenizer's folder with the template that a test is given."""
    (tmp_path / "chat_template.jinja").write_text(request.param)
    return tmp_path


def say(role: str, content: Any) -> dict[str, Any]:
    """One message."""
    return {"role": role, "content": content}


CONVERSATIONS: list[tuple[list[dict[str, Any]], str]] = [
    ([say("system", "S"), say("user", "U")], "<user>S\n\nU"),
    ([say("system", "S"), say("system", "T"), say("user", "U")], "<user>S\n\nT\n\nU"),
    (
        [say("user", "U"), say("assistant", "A"), say("system", "S"), say("user", "V")],
        "<user>U<assistant>A<user>S\n\nV",
    ),
    (
        [say("system", "S"), say("assistant", "A"), say("user", "U")],
        "<assistant>A<user>S\n\nU",
    ),
    ([say("user", "U"), say("user", "V")], "<user>U<user>V"),
]


@pytest.mark.parametrize("folder", [RAISES, DROPS, READS_PARTS], indirect=True)
@pytest.mark.parametrize(("messages", "expected"), CONVERSATIONS)
def test_without_the_role(folder: Path, messages: list[Any], expected: str) -> None:
    """They begin the next user message, whether the template refuses or drops them."""
    assert prompt(folder, messages) == expected


@pytest.mark.parametrize("folder", [RAISES, READS_PARTS], indirect=True)
def test_parts(folder: Path) -> None:
    """Texts join in the same way when they come in parts."""
    parts = [{"type": "text", "text": "U"}]
    assert prompt(folder, [say("system", "S"), say("user", parts)]) == "<user>S\n\nU"
    system = [{"type": "text", "text": "S"}]
    assert prompt(folder, [say("system", system), say("user", "U")]) == "<user>S\n\nU"


@pytest.mark.parametrize("folder", [SHOWS], indirect=True)
@pytest.mark.parametrize(("messages", "_"), CONVERSATIONS)
def test_with_the_role(folder: Path, messages: list[Any], _: str) -> None:
    """The template has its way."""
    expected = "".join(f"<{each['role']}>{each['content']}" for each in messages)
    assert prompt(folder, messages) == expected


@pytest.mark.parametrize("folder", [RAISES], indirect=True)
def test_refused_on_request(folder: Path) -> None:
    """As transformers does; and where no user message follows."""
    messages = [say("system", "S"), say("user", "U")]
    with pytest.raises(RequestError, match="no system"):
        prompt(folder, messages, system_messages="refuse")
    with pytest.raises(RequestError, match="no system"):
        prompt(folder, [say("user", "U"), say("system", "S")])
    with pytest.raises(RequestError, match="system_messages is not prepend or refuse"):
        prompt(folder, messages, system_messages="drop")


def test_the_shipped_checkpoint() -> None:
    """Its users' frameworks send system messages, and it was trained without."""
    messages = [say("system", "Be brief."), say("user", "7342 in English:")]
    joined = [say("user", "Be brief.\n\n7342 in English:")]
    assert prompt(SHIPPED, messages) == prompt(SHIPPED, joined)
