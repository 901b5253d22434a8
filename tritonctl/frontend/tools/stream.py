# SPDX-License-Identifier: Apache-2.0
"""Calls out of an answer's text while it comes.

Text goes on at once, but for what may yet be the beginning of a call: an incomplete opener, and
whitespace, which belongs to a call's markup when a call follows. A call goes on when it is
complete, so that one which turns out malformed is text, whole and in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tritonctl.frontend.tools.blocks import Block
from tritonctl.frontend.tools.bodies import Schemas
from tritonctl.frontend.tools.calls import (
    CallArguments,
    CallBegins,
    Content,
    Event,
    MalformedCallError,
    ToolCall,
)
from tritonctl.frontend.tools.formats import Format, Opener

_SPACE = " \t\r\n"


@dataclass(slots=True)
class CallStream:
    """The events of one answer.

    schemas: the parameters of each tool that may be called. most_calls: further calls are left
    out, and `full` says that the answer can end.
    """

    markup: Format
    schemas: Schemas
    most_calls: int | None = None
    calls: int = 0
    _pending: str = ""
    _block: tuple[Opener, Block] | None = None
    _gap: str = ""  # whitespace in front of the block
    _has_text: bool = False
    _after_call: bool = False
    _openers: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        """What the text is searched for."""
        texts = [re.escape(opener.text) for opener in self.markup.openers]
        self._openers = re.compile("|".join(texts))

    @property
    def full(self) -> bool:
        """Whether all calls that are allowed have been made."""
        return self.most_calls is not None and self.calls >= self.most_calls

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        events: list[Event] = []
        self._pending += text
        while (block := self._block or self._find_block(events)) and self._end_block(
            *block, events
        ):
            pass
        return events

    def finish(self) -> list[Event]:
        """The rest. A call that lacks nothing but its closer is a call."""
        events: list[Event] = []
        if self._block is not None:
            self._close(self._block[1], events)
        elif not (self._after_call and self._is_between(self._pending)):
            self._say(self._pending, events)
        self._pending = ""
        return events

    def _find_block(self, events: list[Event]) -> tuple[Opener, Block] | None:
        """Say what is certainly text; the block that begins behind it."""
        for found in self._openers.finditer(self._pending):
            opener = next(each for each in self.markup.openers if each.text == found.group())
            before = self._pending[: found.start()]
            if opener.first and (self._has_text or not self._is_between(before)):
                continue
            stop = 0 if self._after_call and self._is_between(before) else len(before.rstrip())
            self._say(before[:stop], events)
            self._gap = before[stop:]
            self._pending = self._pending[found.start() :]
            self._block = (opener, opener.block())
            return self._block
        certain = self._certain()
        self._say(self._pending[:certain], events)
        self._pending = self._pending[certain:]
        return None

    def _certain(self) -> int:
        """How much of the pending text belongs to no call."""
        text = self._pending
        longest = max(len(opener.text) for opener in self.markup.openers)
        for size in range(min(longest - 1, len(text)), 0, -1):
            if any(opener.text.startswith(text[-size:]) for opener in self.markup.openers):
                text = text[:-size]
                break
        if self._after_call and self._is_between(text):
            return 0
        return len(text.rstrip(_SPACE))

    def _is_between(self, text: str) -> bool:
        """Whether two calls may have this between them."""
        return not text.strip(_SPACE + (self.markup.separators if self.calls else ""))

    def _end_block(self, opener: Opener, block: Block, events: list[Event]) -> bool:
        """Feed the open block; whether it has ended."""
        text, self._pending = self._pending, ""
        try:
            rest = block.feed(text)
        except MalformedCallError:
            self._block = None
            self._say(self._gap + opener.text, events)
            self._pending = block.raw[len(opener.text) :]
            return True
        if rest is None:
            return False
        self._pending = rest
        self._close(block, events)
        return True

    def _close(self, block: Block, events: list[Event]) -> None:
        self._block = None
        try:
            calls = self.markup.read(block.body(), self.schemas)
            self._check_names(calls)
        except MalformedCallError:
            self._say(self._gap + block.raw, events)
            return
        for call in calls:
            if not self.full:
                call_id = call.id or self.markup.make_id()
                events.append(CallBegins(self.calls, call_id, call.name))
                events.append(CallArguments(self.calls, call.arguments))
                self.calls += 1
        self._after_call = True

    def _check_names(self, calls: list[ToolCall]) -> None:
        for call in calls:
            if call.name not in self.schemas:
                raise MalformedCallError(f"no tool is called {call.name:.80}")

    def _say(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        self._after_call = False
        self._has_text = self._has_text or bool(text.strip())
        if events and isinstance(events[-1], Content):
            events[-1] = Content(events[-1].text + text)
        else:
            events.append(Content(text))
