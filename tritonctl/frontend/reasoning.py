# SPDX-License-Identifier: Apache-2.0
"""Separate a model's reasoning from its answer: `reasoning_content`.

Reasoning models start with <think> ... </think>. Some chat templates put the opening tag into the
prompt, so the output starts inside the tags. Newlines around the tags belong to neither text.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from tritonctl.frontend.tools.calls import Content, Event, Thought
from tritonctl.project.frontend import Reasoning

_OPEN, _CLOSE = "<think>", "</think>"


class AnswerReader(Protocol):
    """Converts an answer's text to events while it is streamed."""

    @property
    def calls(self) -> int:
        """Number of tool calls so far."""

    @property
    def full(self) -> bool:
        """Whether the maximum number of calls is reached."""

    def feed(self, text: str) -> list[Event]:
        """Return the events that the next piece of text completes."""

    def finish(self) -> list[Event]:
        """Return the remaining events."""


class _Section(Enum):
    """The reader's section of an answer; in the GAPs it drops newlines."""

    START = auto()
    GAP_BEFORE = auto()
    THOUGHTS = auto()
    GAP_BEHIND = auto()
    ANSWER = auto()


_AFTER_GAP = {_Section.GAP_BEFORE: _Section.THOUGHTS, _Section.GAP_BEHIND: _Section.ANSWER}


class ThinkingReader:
    """Reads thoughts, and passes the text after them to `inner`; without `inner` it is content.

    opened: the prompt contains the opening tag. Text is forwarded at once, except a possible start
    of a tag.
    """

    def __init__(self, inner: AnswerReader | None, *, opened: bool) -> None:
        self._inner, self._opened = inner, opened
        self._section = _Section.START
        self._buffer = ""

    @property
    def calls(self) -> int:
        """As Reader."""
        return 0 if self._inner is None else self._inner.calls

    @property
    def full(self) -> bool:
        """As Reader."""
        return self._inner is not None and self._inner.full

    def feed(self, text: str) -> list[Event]:
        """Return the events that the next piece of text completes."""
        events: list[Event] = []
        self._buffer += text
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """Return the remaining events. An answer cut inside its thoughts has no content."""
        buffer, self._buffer = self._buffer, ""
        inside = self._section is _Section.THOUGHTS or (
            self._section is _Section.START and self._opened
        )
        events: list[Event] = []
        if inside:
            events = _thoughts(buffer.rstrip("\n"))
        elif buffer and self._section is _Section.START:
            events = self._answer(buffer)
        return events + ([] if self._inner is None else self._inner.finish())

    def _step(self, events: list[Event]) -> bool:
        """Read the buffer. True: the section changed, so that more of it can be read."""
        previous = self._section
        if previous is _Section.START:
            self._read_start()
        elif previous in _AFTER_GAP:
            self._buffer = self._buffer.lstrip("\n")
            if self._buffer:
                self._section = _AFTER_GAP[previous]
        elif previous is _Section.THOUGHTS:
            events += self._think()
        elif self._buffer:
            text, self._buffer = self._buffer, ""
            events += self._answer(text)
        return self._section is not previous

    def _read_start(self) -> None:
        start = self._buffer.lstrip()
        if start.startswith(_OPEN):
            self._buffer, self._section = start.removeprefix(_OPEN), _Section.GAP_BEFORE
        elif not _OPEN.startswith(start):
            self._section = _Section.GAP_BEFORE if self._opened else _Section.ANSWER

    def _think(self) -> list[Event]:
        text, tag, behind = self._buffer.partition(_CLOSE)
        if tag:
            self._buffer, self._section = behind, _Section.GAP_BEHIND
            return _thoughts(text.rstrip("\n"))
        sizes = range(len(_CLOSE) - 1, 0, -1)
        part = next((size for size in sizes if text.endswith(_CLOSE[:size])), 0)
        certain = text[: len(text) - part].rstrip("\n")
        self._buffer = text[len(certain) :]
        return _thoughts(certain)

    def _answer(self, text: str) -> list[Event]:
        return [Content(text)] if self._inner is None else self._inner.feed(text)


def _thoughts(text: str) -> list[Event]:
    return [Thought(text)] if text else []


def with_reasoning(inner: AnswerReader | None, reasoning: Reasoning | None) -> AnswerReader | None:
    """Wrap a reader for a model with this reasoning markup; None: without markup."""
    if reasoning is None:
        return inner
    return ThinkingReader(inner, opened=reasoning == "opened")
