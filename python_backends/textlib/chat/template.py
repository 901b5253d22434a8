# SPDX-License-Identifier: Apache-2.0
"""Render a checkpoint's chat template as Hugging Face's `apply_chat_template` does.

Only `chat/worker.py` runs this: nothing here limits the time or memory that a template takes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from textlib.chat.files import special_tokens, template_source
from textlib.chat.messages import ChatConversation, Message
from textlib.errors import ModelConfigurationError, RequestError

MAX_PROMPT_BYTES = 10_000_000
_MAX_REASON_LENGTH = 500
_PROBE = "system-role-probe"  # a text that no template contains


class ChatTemplate:
    """The template in a tokenizer's folder; raises ModelConfigurationError if it is invalid."""

    def __init__(self, folder: Path) -> None:
        self._tokens = special_tokens(folder)
        self._default = _Template(template_source(folder))
        with_tools = template_source(folder, tools=True)
        self._with_tools = (
            self._default if with_tools == self._default.source else _Template(with_tools)
        )

    def render(self, conversation: ChatConversation) -> bytes:
        """Render the prompt up to the start of the answer, UTF-8. Raises RequestError."""
        template = self._default if conversation.tools is None else self._with_tools
        messages = conversation.messages
        if not template.reads_parts:
            messages = [_with_joined_parts(message) for message in messages]
        if conversation.prepends_system and any(map(_is_system, messages)):
            messages = self._with_shown_system(template, messages)
        calls = any(message.get("tool_calls") for message in messages)
        try:
            return self._render_with(template, _with_parsed_arguments(messages), conversation)
        except RequestError:
            if not calls:
                raise
            # Some templates expect the arguments of earlier calls as text. If that fails, too,
            # report the first error.
            with suppress(RequestError):
                return self._render_with(template, messages, conversation)
            raise

    def _with_shown_system(
        self, template: "_Template", messages: Sequence[Message]
    ) -> Sequence[Message]:
        """Put system messages into the user's, if the template has no such role."""
        if template.shows_system is None:
            template.shows_system = self._shows_system(template)
        return messages if template.shows_system else _with_prepended_system(messages)

    def _shows_system(self, template: "_Template") -> bool:
        """Try it. True, too, for a template that refuses the same conversation without it."""
        user = {"role": "user", "content": "?"}
        system = {"role": "system", "content": _PROBE}
        if (text := self._try_render(template, [system, user])) is not None:
            return _PROBE.encode() in text
        return self._try_render(template, [user]) is None

    def _try_render(self, template: "_Template", messages: Sequence[Message]) -> bytes | None:
        """Render messages; None if the template refuses them."""
        try:
            return self._render_with(template, messages, ChatConversation([]))
        except RequestError:
            return None

    def _render_with(
        self, template: "_Template", messages: Sequence[Message], conversation: ChatConversation
    ) -> bytes:
        try:
            return _join_pieces(
                template.compiled.generate(
                    messages=messages,
                    tools=conversation.tools,
                    documents=None,
                    add_generation_prompt=True,
                    **self._tokens,
                    **conversation.variables,
                )
            )
        except RequestError:
            raise
        except TemplateError as error:
            raise _render_error(str(error)) from error
        except MemoryError as error:
            raise _render_error("it takes too much memory") from error
        except Exception as error:  # a template is a program and can raise anything
            raise _render_error(f"{type(error).__name__}: {error}") from error


class _Template:
    """A compiled template. reads_parts: it iterates over the parts of a message's content."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.shows_system: bool | None = None  # unknown until a conversation needs it
        environment = _environment()
        try:
            self.compiled = environment.from_string(source)
            loops = environment.parse(source).find_all(nodes.For)
        except TemplateSyntaxError as error:
            reason = str(error).rstrip(".")
            raise ModelConfigurationError(
                f"line {error.lineno} of the checkpoint's chat template is not Jinja: {reason}"
            ) from error
        self.reads_parts = any(_is_content(loop.iter) for loop in loops)


def _is_content(node: nodes.Node) -> bool:
    """`message.content`, `message['content']`, or a variable of that name."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")


def _with_prepended_system(messages: Sequence[Message]) -> list[Message]:
    """Put each system message in front of the next user's; one without stays, to be refused."""
    merged: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if _is_system(message):
            waiting.append(message)
        elif message["role"] == "user":
            merged.append(_joined([*waiting, message]))
            waiting = []
        else:
            merged.append(message)
    return [*merged, *waiting]


def _joined(messages: Sequence[Message]) -> Message:
    """Join contents by an empty line, in a message like the last one."""
    *earlier, last = messages
    contents = [message["content"] for message in messages]
    if not earlier:
        return last
    if all(isinstance(content, str) for content in contents):
        return {**last, "content": "\n\n".join(contents)}
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts.append({"type": "text", "text": "\n\n"})
    return {**last, "content": parts[:-1]}


def _with_joined_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _with_parsed_arguments(messages: Sequence[Message]) -> list[Message]:
    """Parse the arguments of calls: OpenAI's clients send JSON text, most templates need values."""
    return [
        {**message, "tool_calls": [_parse_call_arguments(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _parse_call_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        value = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(value, dict):
        return call
    return {**call, "function": {**function, "arguments": value}}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """{% generation %} marks the model's words for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's convention

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace Jinja's filter, which escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the server's local time, as in transformers


def _join_pieces(pieces: Iterator[str]) -> bytes:
    text, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_PROMPT_BYTES:
            raise _too_long()
        text.append(piece)
    prompt = "".join(text).encode("utf-8")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise _too_long()
    return prompt


def _too_long() -> RequestError:
    return _render_error(f"its text is longer than {MAX_PROMPT_BYTES} bytes")


def _render_error(reason: str) -> RequestError:
    return RequestError(
        "messages: the checkpoint's chat template cannot render them: "
        f"{reason:.{_MAX_REASON_LENGTH}}"
    )
