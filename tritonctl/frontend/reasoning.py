# SPDX-License-Identifier: Apache-2.0
"""What a model thinks before it answers, told apart from its answer: `reasoning_content`.

Models that reason write <think> ... </think> first. Some chat templates write the opening tag into
the prompt, so that the answer begins within. Newlines around the tags belong to neither text.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from tritonctl.frontend.tools.calls import Content, Event, Thought
from tritonctl.project.frontend import Reasoning

_OPEN, _CLOSE = "<think>", "</think>"


class Reader(Protocol):
    """Makes events of an answer's text while it comes."""

    @property
    def calls(self) -> int:
        """Calls of tools so far."""

    @property
    def full(self) -> bool:
        """Whether all calls that are allowed have been made."""

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""

    def finish(self) -> list[Event]:
        """The rest."""


class _Place(Enum):
    """Where in an answer the reader is; at the GAPs it drops newlines."""

    START = auto()
    GAP_BEFORE = auto()
    THOUGHTS = auto()
    GAP_BEHIND = auto()
    ANSWER = auto()


_BEHIND_GAP = {_Place.GAP_BEFORE: _Place.THOUGHTS, _Place.GAP_BEHIND: _Place.ANSWER}


class ThinkingReader:
    """Reads thoughts; what comes behind them is for `inner`, or is plain text.

    opened: the prompt has opened them. Text goes on at once, but for what may yet be a tag.
    """

    def __init__(self, inner: Reader | None, *, opened: bool) -> None:
        self._inner, self._opened = inner, opened
        self._place = _Place.START
        self._held = ""

    @property
    def calls(self) -> int:
        """As Reader."""
        return 0 if self._inner is None else self._inner.calls

    @property
    def full(self) -> bool:
        """As Reader."""
        return self._inner is not None and self._inner.full

    def feed(self, text: str) -> list[Event]:
        """What the next piece of text makes certain."""
        events: list[Event] = []
        self._held += text
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """The rest. An answer that was cut while it thought has no content."""
        held, self._held = self._held, ""
        inside = self._place is _Place.THOUGHTS or (self._place is _Place.START and self._opened)
        events: list[Event] = []
        if inside:
            events = _thoughts(held.rstrip("\n"))
        elif held and self._place is _Place.START:
            events = self._answer(held)
        return events + ([] if self._inner is None else self._inner.finish())

    def _step(self, events: list[Event]) -> bool:
        """Read what is held; whether the place has changed, so that more of it can be read."""
        before = self._place
        if before is _Place.START:
            self._begin()
        elif before in _BEHIND_GAP:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._place = _BEHIND_GAP[before]
        elif before is _Place.THOUGHTS:
            events += self._think()
        elif self._held:
            text, self._held = self._held, ""
            events += self._answer(text)
        return self._place is not before

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(_OPEN):
            self._held, self._place = start.removeprefix(_OPEN), _Place.GAP_BEFORE
        elif not _OPEN.startswith(start):
            self._place = _Place.GAP_BEFORE if self._opened else _Place.ANSWER

    def _think(self) -> list[Event]:
        text, tag, behind = self._held.partition(_CLOSE)
        if tag:
            self._held, self._place = behind, _Place.GAP_BEHIND
            return _thoughts(text.rstrip("\n"))
        sizes = range(len(_CLOSE) - 1, 0, -1)
        part = next((size for size in sizes if text.endswith(_CLOSE[:size])), 0)
        certain = text[: len(text) - part].rstrip("\n")
        self._held = text[len(certain) :]
        return _thoughts(certain)

    def _answer(self, text: str) -> list[Event]:
        return [Content(text)] if self._inner is None else self._inner.feed(text)


def _thoughts(text: str) -> list[Event]:
    return [Thought(text)] if text else []


def thinking(inner: Reader | None, reasoning: Reasoning | None) -> Reader | None:
    """The reader of one answer of a model that reasons so; None: it does not, as far as known."""
    if reasoning is None:
        return inner
    return ThinkingReader(inner, opened=reasoning == "opened")
