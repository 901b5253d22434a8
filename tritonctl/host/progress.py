# SPDX-License-Identifier: Apache-2.0
"""Protocols by which the library reports progress to its caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class ProgressStep(Protocol):
    """One running piece of work."""

    def update(self, text: str) -> None:
        """Show `text` (one line) as the step's current activity."""


class Progress(Protocol):
    """Receives the steps of a longer operation."""

    def step(self, title: str) -> AbstractContextManager[ProgressStep]:
        """Announce a step that lasts as long as the context."""

    def note(self, text: str) -> None:
        """Report something outside a step."""


class _SilentStep:
    def update(self, text: str) -> None:
        """Show nothing."""


class Silent:
    """Progress for library callers: prints nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:  # noqa: ARG002 - the Protocol's signature
        """Run the step silently."""
        yield _SilentStep()

    def note(self, text: str) -> None:
        """Print nothing."""


class Board(Protocol):
    """Receives the stages of several models' builds, which may run in parallel."""

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Announce a stage; `done`: nothing to run, `expected`: seconds of its last run."""

    def stage(self, model: str, stage: str) -> AbstractContextManager[Progress]:
        """Announce a running stage that lasts as long as the context."""


class SharedProgressBoard:
    """A Board that passes every step on to one Progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Show nothing."""

    @contextmanager
    def stage(self, model: str, stage: str) -> Iterator[Progress]:  # noqa: ARG002 - Board
        """Forward the stage's steps."""
        yield self._progress
