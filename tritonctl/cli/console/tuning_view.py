# SPDX-License-Identifier: Apache-2.0
"""A tuning session on a terminal: the settings tried, the best ones, the load test in flight."""

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
from tritonctl.host.progress import Step as ProgressStep
from tritonctl.loadtest.run.live import LiveFigures, LoadBoard, Show
from tritonctl.tuning.explaining import explained
from tritonctl.tuning.outcome import Step
from tritonctl.tuning.space import Space
from tritonctl.tuning.trials import Asked, Settings, Trial, key_of

_SHOWN = 8
_ANY_WIDTH = 10_000
_STYLES = {"met": "green", "missed": "red", "refused": "red", "undecided": "yellow"}
_COLUMNS = ("settings", "rate", "verdict", "over the SLO", "P99 ms", "met up to", "left")


@dataclass
class _Candidate:
    """Settings and their last trial."""

    words: str
    rate: float
    left: float | None
    trial: Trial | None = None
    met: float = 0.0

    def cells(self) -> list[str | Text]:
        """A row of the table."""
        met = f"{self.met:.4g}/s" if self.met else ""
        words, rate = Text(self.words), f"{self.rate:.4g}/s"
        if self.left is not None or self.trial is None:
            left = "" if self.left is None else f"{self.left:.0f} s"
            return [words, rate, Text("runs", style="cyan"), "", "", met, left]
        word = "refused" if self.trial.figures.get("refused") else self.trial.verdict
        times = ", ".join(f"{name} {ms:.3g}" for name, ms in self.trial.p99_ms.items())
        verdict = Text(word, style=_STYLES[word])
        return [words, rate, verdict, f"{self.trial.share_over:.2%}", times, met, ""]


class TuneView:
    """A Watcher and the board of its load tests; `note` prints above the table."""

    def __init__(self, title: str, minutes: float, note: Callable[[str], None]) -> None:
        self._title = title
        self._minutes = minutes
        self.note = note
        self._began = time.monotonic()
        self._stage = self._why = ""
        self._rows: dict[str, _Candidate] = {}
        self._running: _Candidate | None = None
        self._best: str | None = None
        self._load: LoadView | None = None
        self.trials = 0
        self.board: LoadBoard = _Board(self)

    def live(self, console: object) -> Live:
        """The view on a rich console, redrawn while the context lasts."""
        return Live(get_renderable=self.view, console=console, refresh_per_second=2)  # type: ignore[arg-type]

    def stage(self, text: str) -> None:
        """Show the current stage."""
        self._stage = text

    def measuring(self, asked: Asked, space: Space) -> None:
        """A trial begins: its settings become the last row."""
        key = key_of(asked.settings)
        self._best = self._best or key
        row = self._rows.pop(key, None) or _Candidate(_words(asked.settings, space), 0.0, None)
        row.rate, row.left = asked.rate, asked.seconds
        self._rows[key] = self._running = row

    def trial(self, trial: Trial, stored: bool) -> None:  # noqa: ARG002 - Watcher
        """Show the trial's verdict."""
        self.trials += 1
        if self._running is not None:
            self._running.trial, self._running.left = trial, None
            if trial.leans_met:
                self._running.met = max(self._running.met, trial.asked.rate)
        self._running = None

    def step(self, step: Step, space: Space) -> None:
        """Explain the step; the winner is the best so far."""
        self._why = f"{_words(step.settings, space)}: {explained(step, space)}"
        if step.won:
            self._best = key_of(step.settings)

    @contextmanager
    def loading(self, title: str) -> Iterator[Show]:
        """Show the running load test below the table."""
        view = self._load = LoadView(title)

        def show(figures: LiveFigures) -> None:
            view.show(figures)
            if self._running is not None and figures.seconds_left is not None:
                self._running.left = figures.seconds_left

        try:
            yield show
        finally:
            self._load = None

    def view(self) -> Group:
        """The view now."""
        title = Text(self._title, style="bold")
        title.append(f"  {self._time()}", style="dim")
        parts: list[RenderableType] = [title, Text(self._stage, style="dim")]
        if self._rows:
            parts += [_Candidates(self._shown(), self._hidden()), Text(self._why, style="dim")]
        if self._load is not None:
            parts += [Text(), self._load.view()]
        return Group(*parts)

    def _time(self) -> str:
        spent = time.monotonic() - self._began
        left = 60 * self._minutes - spent
        if left > 0:
            return f"{_clock(spent)}, {_clock(left)} of {self._minutes:g} minutes left"
        return f"{_clock(spent)}, the {self._minutes:g} minutes are over: finishing"

    def _others(self) -> list[str]:
        return [key for key in self._rows if key != self._best]

    def _hidden(self) -> int:
        return max(0, len(self._others()) - _SHOWN)

    def _shown(self) -> Iterator[tuple[str, _Candidate]]:
        """The best settings first, then the others, the latest at the end; each with its mark."""
        for key in (self._best, *self._others()[-_SHOWN:]):
            if key in self._rows:
                row = self._rows[key]
                yield "▶" if row is self._running else "★" if key == self._best else " ", row


class _Candidates:
    """A table where it fits; else two lines for each, so that no name of a setting is broken."""

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
                settings, rate, verdict, *others = row.cells()
                named = zip(_COLUMNS[3:], others, strict=True)
                told = ", ".join(f"{name} {cell}" for name, cell in named if cell)
                yield Text.assemble(f"{mark} ", settings)
                yield Text.assemble(f"    {rate} ", verdict, f", {told}" if told else "")
        if self._hidden:
            yield Text(f"  and {self._hidden} tried earlier", style="dim")


class _Board:
    """The board of a session's load tests: their steps are shown as the session's stage."""

    def __init__(self, view: TuneView) -> None:
        self._view = view

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show the step until the next one."""
        self._view.stage(title)
        yield self

    def update(self, text: str) -> None:
        """A tool's own lines are not shown."""

    def note(self, text: str) -> None:
        """Print above the table."""
        self._view.note(text)

    def watch_load(self, title: str) -> AbstractContextManager[Show]:
        """Show the load test below the table."""
        return self._view.loading(title)


def _words(settings: Settings, space: Space) -> str:
    changed = [f"{name}={value}" for name, value in space.changed(settings).items()]
    return ", ".join(changed) or "unchanged"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
