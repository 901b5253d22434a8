# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's chat template, rendered as Hugging Face's `apply_chat_template` renders it.

Only `chat_worker` runs this: nothing here bounds the time or memory that a template takes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from textlib.chat_files import special_tokens, template_source
from textlib.errors import ConfigurationError, RequestError

MOST_BYTES = 10_000_000
_MOST_REASON = 500


class ChatTemplate:
    """The template in a tokenizer's folder; raises ConfigurationError if it is none."""

    def __init__(self, folder: Path) -> None:
        self._tokens = special_tokens(folder)
        try:
            self._template = _environment().from_string(template_source(folder))
        except TemplateSyntaxError as error:
            reason = str(error).rstrip(".")
            raise ConfigurationError(
                f"line {error.lineno} of the checkpoint's chat template is not Jinja: {reason}"
            ) from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        """The prompt up to where the answer begins, UTF-8. Raises RequestError."""
        try:
            return _joined(
                self._template.generate(
                    messages=messages,
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._tokens,
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
