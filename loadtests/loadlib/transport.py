# SPDX-License-Identifier: Apache-2.0
"""What the asyncio engine wants of a protocol, and what a protocol tells of a request."""

from __future__ import annotations

from typing import Any, Protocol

from loadlib.plan import RequestClass
from loadlib.prompts import Message
from loadlib.workload import Turn


class Heard(Protocol):
    """Listens to the responses of one request."""

    keeps_text: bool
    stopped: bool

    def responded(self, tokens: int, input_tokens: int | None, *, final: bool) -> bool:
        """A response came with so many new tokens; whether the request is to be cancelled now."""


class Transport(Protocol):
    """Sends requests of one plan."""

    async def prepare(self) -> None:
        """Refusal (exit 3) when the endpoint does not answer or the model is not ready."""

    def body(self, request_class: RequestClass, turn: Turn, messages: list[Message] | None) -> Any:
        """A request as it goes out; `messages` is the conversation so far, if it is one."""

    async def exchange(self, body: Any, heard: Heard) -> str:
        """Send it and tell of each response; the text, if kept. WireError when it fails."""

    async def close(self) -> None:
        """Close the connections."""
