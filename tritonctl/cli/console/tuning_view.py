# SPDX-License-Identifier: Apache-2.0
"""Show a tuning session: tested settings, the best ones, the running load test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tritonctl.cli.console.loadtest_view import LoadView
from tritonctl.host.progress import ProgressStep
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard, ShowFigures
from tritonctl.tuning.outcome import SearchStep
from tritonctl.tuning.space import SearchSpace
from tritonctl.tuning.step_explanation import explain_step
from tritonctl.tuning.trials import Settings, TrialRequest, TuningTrial, settings_key

_MAX_OTHER_ROWS = 8
_ANY_WIDTH = 10_000
_STYLES = {"met": "green", "missed": "red", "refused": "red", "undecided": "yellow"}
_COLUMNS = ("settings", "rate", "verdict", "over the SLO", "P99 ms", "met up to", "left")


@dataclass
class _Candidate:
    """Settings and their last trial."""

    description: str
    rate: float
    seconds_left: float | None
    trial: TuningTrial | None = None
    met: float = 0.0

    def cells(self) -> list[str | Text]:
        """Return the cells of the table's row."""
        met = f"{self.met:.4g}/s" if self.met else ""
        words, rate = Text(self.description), f"{self.rate:.4g}/s"
        if self.seconds_left is not None or self.trial is None:
            remaining = "" if self.seconds_left is None else f"{self.seconds_left:.0f} s"
            return [words, rate, Text("runs", style="cyan"), "", "", met, remaining]
        word = "refused" if self.trial.figures.get("refused") else self.trial.verdict
        times = ", ".join(f"{name} {ms:.3g}" for name, ms in self.trial.p99_ms.items())
        verdict = Text(word, style=_STYLES[word])
        return [words, rate, verdict, f"{self.trial.share_over:.2%}", times, met, ""]


class TuneView:
    """A BoardWatcher and the board of its load tests; `note` prints above the table."""

    def __init__(self, title: str, minutes: float, note: Callable[[str], None]) -> None:
        self._title = title
        self._minutes = minutes
        self.note = note
        self._started_at = time.monotonic()
        self._stage = self._explanation = ""
        self._rows: dict[str, _Candidate] = {}
        self._running: _Candidate | None = None
        self._best: str | None = None
        self._load: LoadView | None = None
        self.trials = 0
        self.board: LoadBoard = _Board(self)

    def live(self, console: object) -> Live:
        """Return a context that draws the view on a rich console."""
        return Live(get_renderable=self.view, console=console, refresh_per_second=2)  # type: ignore[arg-type]

    def stage(self, text: str) -> None:
        """Show the current stage."""
        self._stage = text

    def measuring(self, request: TrialRequest, space: SearchSpace) -> None:
        """Start a trial: its settings become the last row."""
        key = settings_key(request.settings)
        self._best = self._best or key
        row = self._rows.pop(key, None) or _Candidate(
            _describe_settings(request.settings, space), 0.0, None
        )
        row.rate, row.seconds_left = request.rate, request.seconds
        self._rows[key] = self._running = row

    def trial(self, trial: TuningTrial, stored: bool) -> None:  # noqa: ARG002 - TuningWatcher
        """Show the trial's verdict."""
        self.trials += 1
        if self._running is not None:
            self._running.trial, self._running.seconds_left = trial, None
            if trial.leans_met:
                self._running.met = max(self._running.met, trial.request.rate)
        self._running = None

    def step(self, step: SearchStep, space: SearchSpace) -> None:
        """Explain the step and mark the best settings."""
        self._explanation = (
            f"{_describe_settings(step.settings, space)}: {explain_step(step, space)}"
        )
        if step.won:
            self._best = settings_key(step.settings)

    @contextmanager
    def loading(self, title: str) -> Iterator[ShowFigures]:
        """Show the running load test below the table."""
        view = self._load = LoadView(title)

        def show(figures: LiveFigures) -> None:
            view.show(figures)
            if self._running is not None and figures.remaining_seconds is not None:
                self._running.seconds_left = figures.remaining_seconds

        try:
            yield show
        finally:
            self._load = None

    def view(self) -> Group:
        """Return the current view."""
        title = Text(self._title, style="bold")
        title.append(f"  {self._time()}", style="dim")
        parts: list[RenderableType] = [title, Text(self._stage, style="dim")]
        if self._rows:
            parts += [
                _Candidates(self._displayed_rows(), self._hidden_count()),
                Text(self._explanation, style="dim"),
            ]
        if self._load is not None:
            parts += [Text(), self._load.view()]
        return Group(*parts)

    def _time(self) -> str:
        spent = time.monotonic() - self._started_at
        remaining = 60 * self._minutes - spent
        if remaining > 0:
            times = f"{_minutes_and_seconds(spent)}, {_minutes_and_seconds(remaining)}"
            return f"{times} of {self._minutes:g} minutes left"
        return f"{_minutes_and_seconds(spent)}, the {self._minutes:g} minutes are used: finishing"

    def _other_keys(self) -> list[str]:
        return [key for key in self._rows if key != self._best]

    def _hidden_count(self) -> int:
        return max(0, len(self._other_keys()) - _MAX_OTHER_ROWS)

    def _displayed_rows(self) -> Iterator[tuple[str, _Candidate]]:
        """Yield mark and row of the best settings first, then of the latest others."""
        for key in (self._best, *self._other_keys()[-_MAX_OTHER_ROWS:]):
            if key in self._rows:
                row = self._rows[key]
                yield "▶" if row is self._running else "★" if key == self._best else " ", row


class _Candidates:
    """A table if it fits; else two lines per candidate, so that no setting's name is broken."""

    def __init__(self, rows: Iterable[tuple[str, _Candidate]], hidden: int) -> None:
        self._rows = list(rows)
        self._hidden = hidden

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("")
        for heading in _COLUMNS:
            table.add_column(heading, justify="left" if heading in _COLUMNS[:1] else "right")
        for mark, row in self._rows:
            table.add_row(mark, *row.cells())
        unbounded = options.update(max_width=_ANY_WIDTH)
        if Measurement.get(console, unbounded, table).minimum <= options.max_width:
            yield table
        else:
            for mark, row in self._rows:
                settings, rate, verdict, *figure_cells = row.cells()
                labelled_cells = zip(_COLUMNS[3:], figure_cells, strict=True)
                figures = ", ".join(f"{name} {cell}" for name, cell in labelled_cells if cell)
                yield Text.assemble(f"{mark} ", settings)
                yield Text.assemble(f"    {rate} ", verdict, f", {figures}" if figures else "")
        if self._hidden:
            yield Text(f"  and {self._hidden} tested earlier", style="dim")


class _Board:
    """The board of a session's load tests, whose steps appear as the session's stage."""

    def __init__(self, view: TuneView) -> None:
        self._view = view

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show the step until the next one."""
        self._view.stage(title)
        yield self

    def update(self, text: str) -> None:
        """Ignore the output of tools."""

    def note(self, text: str) -> None:
        """Print above the table."""
        self._view.note(text)

    def watch_load(self, title: str) -> AbstractContextManager[ShowFigures]:
        """Show the load test below the table."""
        return self._view.loading(title)


def _describe_settings(settings: Settings, space: SearchSpace) -> str:
    changed = [f"{name}={value}" for name, value in space.changed_settings(settings).items()]
    return ", ".join(changed) or "unchanged"


def _minutes_and_seconds(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
