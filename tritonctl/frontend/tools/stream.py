# SPDX-License-Identifier: Apache-2.0
"""Extract tool calls from streamed text.

Text is forwarded at once, except a possible start of a call: an incomplete opener, or whitespace,
which belongs to the markup if a call follows. A call is forwarded when it is complete, so a
malformed one becomes text, complete and in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tritonctl.frontend.tools.blocks import CallBlock
from tritonctl.frontend.tools.bodies import Schemas
from tritonctl.frontend.tools.calls import (
    CallArguments,
    CallStart,
    Content,
    Event,
    MalformedCallError,
    ToolCall,
)
from tritonctl.frontend.tools.formats import CallFormat, Opener

_SPACE = " \t\r\n"


@dataclass(slots=True)
class CallStream:
    """Reads the events of one answer."""

    markup: CallFormat
    schemas: Schemas  # parameters of each tool that may be called
    max_calls: int | None = None  # further calls are dropped, and `full` becomes true
    calls: int = 0
    _pending: str = ""
    _block: tuple[Opener, CallBlock] | None = None
    _gap: str = ""  # whitespace in front of the block
    _has_text: bool = False
    _after_call: bool = False
    _openers: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        """Compile the pattern of all openers."""
        texts = [re.escape(opener.text) for opener in self.markup.openers]
        self._openers = re.compile("|".join(texts))

    @property
    def full(self) -> bool:
        """Whether the maximum number of calls is reached."""
        return self.max_calls is not None and self.calls >= self.max_calls

    def feed(self, text: str) -> list[Event]:
        """Return the events that the next piece of text completes."""
        events: list[Event] = []
        self._pending += text
        while (block := self._block or self._find_block(events)) and self._feed_block(
            *block, events
        ):
            pass
        return events

    def finish(self) -> list[Event]:
        """Return the remaining events. A call that lacks only its closer counts as a call."""
        events: list[Event] = []
        if self._block is not None:
            self._close(self._block[1], events)
        elif not (self._after_call and self._is_between(self._pending)):
            self._emit_text(self._pending, events)
        self._pending = ""
        return events

    def _find_block(self, events: list[Event]) -> tuple[Opener, CallBlock] | None:
        """Emit the text before the next block, and return the block."""
        for match in self._openers.finditer(self._pending):
            opener = next(each for each in self.markup.openers if each.text == match.group())
            text = self._pending[: match.start()]
            if opener.first and (self._has_text or not self._is_between(text)):
                continue
            stop = 0 if self._after_call and self._is_between(text) else len(text.rstrip())
            self._emit_text(text[:stop], events)
            self._gap = text[stop:]
            self._pending = self._pending[match.start() :]
            self._block = (opener, opener.block())
            return self._block
        certain = self._certain_length()
        self._emit_text(self._pending[:certain], events)
        self._pending = self._pending[certain:]
        return None

    def _certain_length(self) -> int:
        """Return the length of pending text that cannot belong to a call."""
        text = self._pending
        max_opener_length = max(len(opener.text) for opener in self.markup.openers)
        for size in range(min(max_opener_length - 1, len(text)), 0, -1):
            if any(opener.text.startswith(text[-size:]) for opener in self.markup.openers):
                text = text[:-size]
                break
        if self._after_call and self._is_between(text):
            return 0
        return len(text.rstrip(_SPACE))

    def _is_between(self, text: str) -> bool:
        """Whether this text may stand between two calls."""
        return not text.strip(_SPACE + (self.markup.separators if self.calls else ""))

    def _feed_block(self, opener: Opener, block: CallBlock, events: list[Event]) -> bool:
        """Feed the open block. True: it has ended."""
        text, self._pending = self._pending, ""
        try:
            tail = block.feed(text)
        except MalformedCallError:
            self._block = None
            self._emit_text(self._gap + opener.text, events)
            self._pending = block.raw[len(opener.text) :]
            return True
        if tail is None:
            return False
        self._pending = tail
        self._close(block, events)
        return True

    def _close(self, block: CallBlock, events: list[Event]) -> None:
        self._block = None
        try:
            calls = self.markup.read(block.body(), self.schemas)
            self._check_names(calls)
        except MalformedCallError:
            self._emit_text(self._gap + block.raw, events)
            return
        for call in calls:
            if not self.full:
                call_id = call.id or self.markup.make_id()
                events.append(CallStart(self.calls, call_id, call.name))
                events.append(CallArguments(self.calls, call.arguments))
                self.calls += 1
        self._after_call = True

    def _check_names(self, calls: list[ToolCall]) -> None:
        for call in calls:
            if call.name not in self.schemas:
                raise MalformedCallError(f"no tool is named {call.name:.80}")

    def _emit_text(self, text: str, events: list[Event]) -> None:
        if not text:
            return
        self._after_call = False
        self._has_text = self._has_text or bool(text.strip())
        if events and isinstance(events[-1], Content):
            events[-1] = Content(events[-1].text + text)
        else:
            events.append(Content(text))
