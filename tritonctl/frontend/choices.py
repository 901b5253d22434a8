# SPDX-License-Identifier: Apache-2.0
"""The answers to one request as the endpoint's records: streamed events, or one JSON object."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import Any

from tritonctl.frontend.answers import Answers
from tritonctl.frontend.asked import TextAsked, Usage
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.streaming import DONE, PLACE, Template, event, send
from tritonctl.protocol.generation import Chunk


class Choices(ABC):
    """What an endpoint makes of answers: one for each request.

    Subclasses say how a piece of an answer, its end, and a whole answer look.
    """

    prefix: str  # of ids
    whole: str  # `object` of an unstreamed answer
    piece: str  # `object` of an event

    def __init__(self, asked: TextAsked, *, include_usage: bool) -> None:
        self.asked = asked
        self.usage = Usage()
        self.count = len(asked.prompts) * asked.choices
        self._include_usage = include_usage
        self._head: dict[str, Any] = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "object": self.piece,
            "created": int(time.time()),
            "model": asked.target.shown,
        }

    @abstractmethod
    def begin(self, index: int) -> bytes:
        """Events before the first piece of an answer."""

    @abstractmethod
    def events(self, index: int, chunk: Chunk) -> bytes:
        """Events of one chunk, the end of the answer among them."""

    @abstractmethod
    def choice(self, index: int, chunks: list[Chunk]) -> dict[str, Any]:
        """A whole answer."""

    def observe(self, index: int, chunk: Chunk) -> None:  # noqa: B027 - most have no use for it
        """A chunk of an answer that goes out whole."""

    @property
    def complete(self) -> bool:
        """Whether the answer is all that was asked for, though the model could go on."""
        return False

    def chunk_event(self, choice: dict[str, Any]) -> dict[str, Any]:
        """An event's data around a choice."""
        data = {**self._head, "choices": [choice]}
        return {**data, "usage": None} if self._include_usage else data

    def template(self, choice: dict[str, Any]) -> Template:
        """Events around a choice that has PLACE in it."""
        return Template(self.chunk_event(choice))

    async def stream(self, exchange: Exchange, answers: Answers) -> None:
        """Answer by events."""
        begun: set[int] = set()

        async def take(index: int, chunk: Chunk) -> bool:
            data = self.events(index, chunk)
            if index not in begun:
                begun.add(index)
                data = self.begin(index) + data
            if data:
                await send(exchange, data)
            return self.complete

        await answers.ask(exchange, self.asked, self.usage, take)
        await exchange.finish(self._last())

    async def answer(self, exchange: Exchange, answers: Answers) -> None:
        """Answer by one object."""
        given: list[list[Chunk]] = [[] for _ in range(self.count)]

        async def take(index: int, chunk: Chunk) -> bool:
            given[index].append(chunk)
            self.observe(index, chunk)
            return self.complete

        await answers.ask(exchange, self.asked, self.usage, take)
        choices = [self.choice(index, chunks) for index, chunks in enumerate(given)]
        await exchange.answer_json(
            {**self._head, "object": self.whole, "choices": choices, "usage": self.usage.record}
        )

    def _last(self) -> bytes:
        if not self._include_usage:
            return DONE
        data = {**self._head, "choices": [], "usage": self.usage.record}
        return event(data) + DONE


def text_of(chunks: list[Chunk]) -> str:
    """The text of an answer."""
    return "".join(chunk.text for chunk in chunks)


__all__ = ["PLACE", "Choices", "text_of"]
