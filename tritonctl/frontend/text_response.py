# SPDX-License-Identifier: Apache-2.0
"""Answer a text request: with server-sent events, or with one JSON object."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from tritonctl.frontend.answers import TextGenerator
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.text_request import TextGenerationRequest, Usage
from tritonctl.protocol.generation import Chunk

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would buffer events.
    (b"x-accel-buffering", b"no"),
)
_DONE = b"data: [DONE]\n\n"
PLACE = "\N{OBJECT REPLACEMENT CHARACTER}place of the text"


class EventTemplate:
    """Encodes events that differ in one text only: their JSON is encoded once per stream."""

    def __init__(self, event: Any) -> None:
        """`event`: contains PLACE at the position of the text."""
        prefix, suffix = orjson.dumps(event).split(orjson.dumps(PLACE))
        self._prefix = b"data: " + prefix
        self._suffix = suffix + b"\n\n"

    def of(self, text: str) -> bytes:
        """Encode the event with this text."""
        return self._prefix + orjson.dumps(text) + self._suffix


class Envelope(Protocol):
    """The fields around the answers of a response."""

    def final_events(self, usage: Usage) -> bytes:
        """Encode the end of a stream."""

    def body(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """A complete response."""


class ResponseEnvelope:
    """The fields around the choices of a response."""

    def __init__(
        self,
        model: str,
        *,
        id_prefix: str,
        object_name: str,
        event_object_name: str,
        include_usage: bool,
    ) -> None:
        """model: as requested. include_usage: a stream ends with its token counts."""
        self._object_name = object_name
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": f"{id_prefix}-{secrets.token_hex(12)}",
            "object": event_object_name,
            "created": int(time.time()),
            "model": model,
        }

    def event(self, choice: dict[str, Any]) -> bytes:
        """Encode an event with one choice."""
        return _encode_event(self._event_data(choice))

    def template(self, choice: dict[str, Any]) -> EventTemplate:
        """A template for events with a choice that contains PLACE."""
        return EventTemplate(self._event_data(choice))

    def final_events(self, usage: Usage) -> bytes:
        """Encode the end of a stream."""
        if not self._include_usage:
            return _DONE
        return _encode_event({**self._head, "choices": [], "usage": usage.record}) + _DONE

    def body(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """A complete response."""
        return {
            **self._head,
            "object": self._object_name,
            "choices": choices,
            "usage": usage.record,
        }

    def _event_data(self, choice: dict[str, Any]) -> dict[str, Any]:
        data = {**self._head, "choices": [choice]}
        return {**data, "usage": None} if self._include_usage else data


def _encode_event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class ChoiceFormatter(ABC):
    """Formats the chunks of one answer, either with `events` or with `collect` and `choice`."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete although the model could continue."""
        return False

    @abstractmethod
    def opening_events(self) -> bytes:
        """Encode the events before the first chunk."""

    @abstractmethod
    def events(self, chunk: Chunk) -> bytes:
        """Encode the events of a chunk."""

    @abstractmethod
    def collect(self, chunk: Chunk) -> None:
        """Add a chunk to the complete answer."""

    @abstractmethod
    def choice(self) -> dict[str, Any]:
        """The complete answer."""


async def respond(
    request: HttpRequest,
    generator: TextGenerator,
    generation: TextGenerationRequest,
    envelope: Envelope,
    formatters: Sequence[ChoiceFormatter],
    *,
    stream: bool,
) -> None:
    """Generate the answers and send them as events, or as one body.

    formatters: of each answer, by its index. Raises ApiError, ClientGoneError.
    """
    request.record.stream = stream
    async with request.cancel_on_disconnect():
        if stream:
            await _send_events(request, generator, generation, envelope, formatters)
        else:
            await _send_body(request, generator, generation, envelope, formatters)


async def _send_events(
    request: HttpRequest,
    generator: TextGenerator,
    generation: TextGenerationRequest,
    envelope: Envelope,
    formatters: Sequence[ChoiceFormatter],
) -> None:
    """The first events start the response; errors before that set its status."""
    started_answers: set[int] = set()
    async with generator.generate(request, generation) as answers:
        async for index, chunk in answers:
            formatter = formatters[index]
            data = b""
            if index not in started_answers:
                started_answers.add(index)
                data = formatter.opening_events()
            data += formatter.events(chunk)
            if data:
                if not request.started:
                    await request.start(200, _HEADERS)
                await request.write(data)
            if formatter.is_complete:
                answers.finish(index)
    await request.finish(envelope.final_events(answers.usage))


async def _send_body(
    request: HttpRequest,
    generator: TextGenerator,
    generation: TextGenerationRequest,
    envelope: Envelope,
    formatters: Sequence[ChoiceFormatter],
) -> None:
    async with generator.generate(request, generation) as answers:
        async for index, chunk in answers:
            formatter = formatters[index]
            formatter.collect(chunk)
            if formatter.is_complete:
                answers.finish(index)
    choices = [formatter.choice() for formatter in formatters]
    await request.answer_json(envelope.body(choices, answers.usage))
