# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's chat template, rendered as Hugging Face's `apply_chat_template` renders it.

Only `chat_worker` runs this: nothing here bounds the time or memory that a template takes.
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

from textlib.chat_files import special_tokens, template_source
from textlib.chat_messages import Conversation, Message
from textlib.errors import ConfigurationError, RequestError

MOST_BYTES = 10_000_000
_MOST_REASON = 500


class ChatTemplate:
    """The template in a tokenizer's folder; raises ConfigurationError if it is none."""

    def __init__(self, folder: Path) -> None:
        self._tokens = special_tokens(folder)
        self._plain = _Template(template_source(folder))
        with_tools = template_source(folder, tools=True)
        self._with_tools = (
            self._plain if with_tools == self._plain.source else _Template(with_tools)
        )

    def render(self, conversation: Conversation) -> bytes:
        """The prompt up to where the answer begins, UTF-8. Raises RequestError."""
        template = self._plain if conversation.tools is None else self._with_tools
        messages = conversation.messages
        if not template.takes_parts:
            messages = [_with_joined_parts(message) for message in messages]
        calls = any(message.get("tool_calls") for message in messages)
        try:
            return self._rendered(template, _with_read_arguments(messages), conversation)
        except RequestError:
            if not calls:
                raise
            # Some families' templates take the arguments of earlier calls as text. Where that
            # fails, too, the first reason is the one to tell.
            with suppress(RequestError):
                return self._rendered(template, messages, conversation)
            raise

    def _rendered(
        self, template: "_Template", messages: Sequence[Message], conversation: Conversation
    ) -> bytes:
        try:
            return _joined(
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
            raise _refused(str(error)) from error
        except MemoryError as error:
            raise _refused("it takes too much memory") from error
        except Exception as error:  # a template is a program: anything can come out of it
            raise _refused(f"{type(error).__name__}: {error}") from error


class _Template:
    """takes_parts: it goes through the parts of a message's content by itself."""

    def __init__(self, source: str) -> None:
        self.source = source
        environment = _environment()
        try:
            self.compiled = environment.from_string(source)
            loops = environment.parse(source).find_all(nodes.For)
        except TemplateSyntaxError as error:
            reason = str(error).rstrip(".")
            raise ConfigurationError(
                f"line {error.lineno} of the checkpoint's chat template is not Jinja: {reason}"
            ) from error
        self.takes_parts = any(_is_content(loop.iter) for loop in loops)


def _is_content(node: nodes.Node) -> bool:
    """`message.content`, `message['content']`, or a variable of that name."""
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _with_joined_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _with_read_arguments(messages: Sequence[Message]) -> list[Message]:
    """OpenAI's clients send the arguments of a call as JSON text, most templates want the value."""
    return [
        {**message, "tool_calls": [_read_call(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _read_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
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
    """{% generation %}: marks the model's own words for training; here it only shows them."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_shown"), [], [], body).set_lineno(line)

    def _shown(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the server's local time, as in transformers


def _joined(pieces: Iterator[str]) -> bytes:
    text, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > MOST_BYTES:
            raise _too_long()
        text.append(piece)
    prompt = "".join(text).encode("utf-8")
    if len(prompt) > MOST_BYTES:
        raise _too_long()
    return prompt


def _too_long() -> RequestError:
    return _refused(f"its text is longer than {MOST_BYTES} bytes")


def _refused(reason: str) -> RequestError:
    return RequestError(
        f"messages: the checkpoint's chat template cannot render them: {reason:.{_MOST_REASON}}"
    )
