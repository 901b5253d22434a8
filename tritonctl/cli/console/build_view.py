# SPDX-License-Identifier: Apache-2.0
"""Show builds: a live table of models and stages, or log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tritonctl.cli.console.control_characters import visible
from tritonctl.host.progress import Progress, ProgressStep

_REFRESH_PER_SECOND = 4
_MAX_LINE_LENGTH = 60
_MARKS = {"waits": "·", "runs": "[cyan]▶[/]", "done": "[green]✓[/]", "failed": "[red]✗[/]"}


@dataclass
class _Row:
    """A stage of a model."""

    state: str = "waits"
    expected: float | None = None  # seconds of the last build
    started: float = 0.0  # time by the table's clock
    took: float | None = None  # seconds
    line: str = ""

    def elapsed(self, now: float) -> str:
        """Return the elapsed seconds as text."""
        if self.took is not None:
            return f"{self.took:.1f} s"
        return f"{now - self.started:.0f} s" if self.state == "runs" else ""

    def remaining(self, now: float) -> str:
        """Return the remaining seconds as text, if the stage takes as long as last time."""
        if self.expected is None or self.state not in ("waits", "runs"):
            return ""
        ran = now - self.started if self.state == "runs" else 0.0
        return f"{max(0.0, self.expected - ran):.0f} s"


class BuildTable:
    """A Board as a live table; `note` prints messages above it."""

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}
        self._note = note
        self._clock = clock

    def live(self, console: object) -> Live:
        """Return a context that draws the table on a rich console."""
        return Live(
            get_renderable=self.table,
            console=console,  # type: ignore[arg-type]
            refresh_per_second=_REFRESH_PER_SECOND,
        )

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Add a row; an existing one keeps its state."""
        row = self._rows.setdefault((model, stage), _Row(expected=expected))
        if row.state == "waits" and done:
            row.state, row.line = "done", "up to date"

    @contextmanager
    def stage(self, model: str, stage: str) -> Iterator[Progress]:
        """Show the steps and the tool's last line in the row."""
        row = self._rows.setdefault((model, stage), _Row())
        row.state, row.started = "runs", self._clock()
        try:
            yield _RowProgress(row, self._note)
            row.state, row.line = "done", ""
        finally:
            row.took = self._clock() - row.started
            if row.state == "runs":
                row.state = "failed"

    def table(self) -> Table:
        """Return the current table."""
        now = self._clock()
        table = Table(box=None, pad_edge=False, expand=True)
        for column in ("", "model", "stage", "elapsed", "left"):
            table.add_column(column, no_wrap=True)
        table.add_column("", no_wrap=True, ratio=1)  # only this column shrinks on a narrow terminal
        for (model, stage), row in self._rows.items():
            line = escape(visible(row.line[:_MAX_LINE_LENGTH]))
            times = (row.elapsed(now), row.remaining(now))
            table.add_row(_MARKS[row.state], escape(model), stage, *times, f"[dim]{line}[/]")
        return table


class _RowProgress:
    def __init__(self, row: _Row, note: Callable[[str], None]) -> None:
        self._row = row
        self._note = note

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show the step's title until the tool prints a line."""
        self._row.line = title
        yield self

    def update(self, text: str) -> None:
        """Show the tool's last line."""
        self._row.line = text.strip() or self._row.line

    def note(self, text: str) -> None:
        """Print above the table."""
        self._note(text)


class PlainBoard:
    """A Board for logs: one line when a stage starts, one when it ends."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def planned(self, model: str, stage: str, *, done: bool, expected: float | None) -> None:
        """Ignore the plan: a log has only events."""

    @contextmanager
    def stage(self, model: str, stage: str) -> Iterator[Progress]:
        """Print model and stage in both lines, because builds run in parallel."""
        row = _Row(started=time.monotonic())
        self._note(f"▶ {model} {stage}")
        mark = "✗"
        try:
            yield _RowProgress(row, self._note)
            mark = "✓"
        finally:
            self._note(f"{mark} {model} {stage} ({time.monotonic() - row.started:.1f} s)")
