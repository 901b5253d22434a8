# SPDX-License-Identifier: Apache-2.0
"""How the library tells what it is doing, without knowing who is watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Step(Protocol):
    """One running piece of work."""

    def update(self, text: str) -> None:
        """Show `text` (one line) as what the step does right now."""


class Progress(Protocol):
    """Receives the steps of a longer operation."""

    def step(self, title: str) -> AbstractContextManager[Step]:
        """Announce a step; it ends, well or badly, with the context."""

    def note(self, text: str) -> None:
        """Say something worth knowing that is not a step."""


class _SilentStep:
    def update(self, text: str) -> None:
        """Nobody is watching."""


class Silent:
    """The default for library callers: says nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:  # noqa: ARG002 - the Protocol's signature
        """Run the step without a word."""
        yield _SilentStep()

    def note(self, text: str) -> None:
        """Nobody is listening."""


class Board(Protocol):
    """Receives the builds of several models, stage by stage, at once."""

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """A stage that will run, or need not (`done`); how long it took before, in seconds."""

    def stage(self, model: str, stage: str) -> AbstractContextManager[Progress]:
        """Announce that a stage runs; it ends, well or badly, with the context."""


class Unordered:
    """The board of whoever watches steps one after the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Steps speak for themselves."""

    @contextmanager
    def stage(self, model: str, stage: str) -> Iterator[Progress]:  # noqa: ARG002 - Board
        """The steps, as they are."""
        yield self._progress
