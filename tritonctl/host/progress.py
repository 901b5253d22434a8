# SPDX-License-Identifier: Apache-2.0
"""How the library reports progress to its caller."""

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
        """Report something outside a step."""


class _SilentStep:
    def update(self, text: str) -> None:
        """Nothing is shown."""


class Silent:
    """Progress for library callers: prints nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:  # noqa: ARG002 - the Protocol's signature
        """Run the step silently."""
        yield _SilentStep()

    def note(self, text: str) -> None:
        """Nothing is printed."""


class Board(Protocol):
    """Receives the stages of several models' builds, which may run in parallel."""

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Announce a stage to run, or one that is `done`; expected: seconds that it took before."""

    def stage(self, model: str, stage: str) -> AbstractContextManager[Progress]:
        """Announce that a stage runs; it ends, well or badly, with the context."""


class Unordered:
    """A Board that passes every step on to one Progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """A plan is not shown."""

    @contextmanager
    def stage(self, model: str, stage: str) -> Iterator[Progress]:  # noqa: ARG002 - Board
        """Pass the steps on."""
        yield self._progress
