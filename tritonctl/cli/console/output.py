# SPDX-License-Identifier: Apache-2.0
"""The only module that prints: data on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tritonctl.cli.console.control_characters import as_one_message, visible
from tritonctl.cli.console.document_name import ERROR_DOCUMENT, current_document_name
from tritonctl.errors import HostError, TritonctlError
from tritonctl.host.progress import Board, ProgressStep, SharedProgressBoard, Silent

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from tritonctl.bulk.run import BulkProgress
    from tritonctl.checks.drawing.picture import Picture
    from tritonctl.loadtest.run.live import ShowFigures
    from tritonctl.rollout.status import RolloutStatus
    from tritonctl.top.watching import MetricsSnapshot
    from tritonctl.tuning.progress import BoardWatcher

# Width of pipes and files.
_LOG_COLUMNS = 120
_PICTURE_COLUMNS = 80
_STYLES = {"": "", "bold": "bold", "dim": "dim", "fault": "bold red", "stream": "cyan"}


class Console:
    """Prints a command's output: for people (default), as JSON, or quietly."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    @cached_property
    def _stderr(self) -> RichConsole:
        return _rich_console(stderr=True)

    def result(
        self, record: Mapping[str, Any], human: str, failure: TritonctlError | None = None
    ) -> None:
        """Print the command's outcome: one JSON document, or `human` as text.

        failure: the error that the command raises next. With `--json` its record contains the
        outcome, so that standard output stays one object.
        """
        if self.as_json and failure is not None:
            failure.outcome = _document(record)
            return
        text = json.dumps(_document(record), ensure_ascii=False) if self.as_json else visible(human)
        self.text(f"{text}\n")

    def table(
        self,
        record: Mapping[str, Any],
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        failure: TritonctlError | None = None,
    ) -> None:
        """Print rows: one JSON object, or a table that fits the width (`table_text`)."""
        if self.as_json:
            self.result(record, "", failure)
            return
        from rich.text import Text

        from tritonctl.cli.console.table_text import table_lines

        stdout = _rich_console()
        heading, lines = table_lines(headings, rows, _width(stdout))
        if not stdout.is_terminal:
            self.text("".join(f"{visible(line)}\n" for line in [*heading, *lines]))
            return
        for line in heading:
            stdout.print(Text(line, style="bold"), soft_wrap=True)
        self.text("".join(f"{visible(line)}\n" for line in lines))

    def fold(self, text: str) -> str:
        """Break lines between words to fit the terminal; unchanged in pipes and files."""
        from tritonctl.cli.console.table_text import folded_lines

        stdout = _rich_console()
        wide = not stdout.is_terminal and "COLUMNS" not in os.environ
        return text if wide else folded_lines(text, stdout.width)

    def draw(self, picture: Picture) -> None:
        """Draw a graph in the available width, in colours only on a terminal."""
        from rich.text import Text

        from tritonctl.checks.drawing.terminal import draw_lines, plain

        stdout = _rich_console()
        wide = stdout.is_terminal or "COLUMNS" in os.environ
        lines = draw_lines(picture, stdout.width if wide else _PICTURE_COLUMNS)
        if not stdout.is_terminal:
            self.text(plain(lines))
            return
        for line in lines:
            styled = ((text, _STYLES[style]) for text, style in line)
            stdout.print(Text.assemble(*styled), soft_wrap=True)

    def text(self, text: str) -> None:
        """Write `text` to standard output immediately and unchanged (a streamed answer)."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # The rest of the buffer would fail again when Python exits.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            raise HostError(
                f"standard output cannot be written: {error.strerror}",
                remedy="free space there, or redirect it elsewhere",
            ) from error

    def ask(self, prompt: str) -> str | None:
        """Read a line from the user; None at the end of input (Ctrl-D)."""
        with suppress(ImportError):
            import readline  # noqa: F401 - line editing and history of input()
        if not sys.stdout.isatty():  # input() would write the prompt to standard output
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            sys.stderr.write("\n")
            return None

    def note(self, text: str) -> None:
        """Print a message on standard error, unless `--quiet`."""
        if not self.quiet:
            self._stderr.print(escape(text), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Print a message that the user should act on."""
        self._stderr.print(f"[yellow]warning[/]: {escape(as_one_message(text))}", soft_wrap=True)

    def error_record(self, error: TritonctlError) -> None:
        """Print a failure as a JSON object, under `--json` only."""
        if self.as_json:
            record = {"schema": ERROR_DOCUMENT, **error.as_record()}
            print(json.dumps(record, ensure_ascii=False))  # noqa: T201

    def error(self, error: TritonctlError) -> None:
        """Print a failure: the problem, its details, the remedy."""
        self.error_record(error)
        problem = escape(as_one_message(error.problem))
        self._stderr.print(f"[bold red]error[/]: {problem}", soft_wrap=True)
        if error.details:
            self._stderr.print(
                escape("\n".join(f"  │ {line}" for line in error.details.rstrip().splitlines())),
                style="dim",
                soft_wrap=True,
            )
        self._stderr.print(f"  [green]try[/]: {escape(error.remedy)}", soft_wrap=True)

    @contextmanager
    def board(self, *, parallel: bool) -> Iterator[Board]:
        """Show builds: a live table on a terminal, else lines."""
        from tritonctl.cli.console.build_view import BuildTable, PlainBoard

        if self.quiet or not self._stderr.is_terminal:
            yield PlainBoard(self.note) if parallel else SharedProgressBoard(self)
            return
        table = BuildTable(self.note)
        with table.live(self._stderr):
            yield table

    @contextmanager
    def watch_load(self, title: str) -> Iterator[ShowFigures]:
        """Show a running load test: live on a terminal, else a line every few seconds."""
        if self.quiet:
            yield lambda _: None
            return
        from tritonctl.cli.console.loadtest_view import LoadLines, LoadView

        if not self._stderr.is_terminal:
            yield LoadLines(title, self.note).show
            return
        view = LoadView(title)
        with view.live(self._stderr):
            yield view.show

    @contextmanager
    def watch_tuning(self, title: str, minutes: float) -> Iterator[BoardWatcher]:
        """Show a tuning session: a live table on a terminal, else a line per trial."""
        if self.quiet or not self._stderr.is_terminal:
            from tritonctl.tuning.progress import TuningLog

            yield TuningLog(self.note)
            return
        from tritonctl.cli.console.tuning_view import TuneView

        view = TuneView(title, minutes, self.note)
        with view.live(self._stderr):
            yield view

    @contextmanager
    def watch_lines(self, title: str, *, live: bool) -> Iterator[Callable[[BulkProgress], None]]:
        """Show the progress of a bulk run; nothing if its answers are printed instead."""
        if self.quiet or not live:
            yield lambda _: None
            return
        from tritonctl.cli.console.bulk_view import LineProgress

        if not self._stderr.is_terminal:
            yield LineProgress(lambda text: self.note(f"{title}: {text}"), live=False).show
            return
        with self._stderr.status(escape(title), refresh_per_second=4) as status:
            step = _StatusStep(title, status, self._stderr.width)
            yield LineProgress(step.update, live=True).show

    @contextmanager
    def watch_server(self, sort: str, *, live: bool) -> Iterator[Callable[[MetricsSnapshot], None]]:
        """Show a server's figures: as JSON lines, on the whole screen, or as text."""
        if self.as_json:
            yield lambda sight: self.result(sight.record(), "")
            return
        from tritonctl.cli.console.top_view import TopView

        view, stdout = TopView(sort), _rich_console()
        if live and stdout.is_terminal:
            with view.live(stdout):
                yield view.show
            return
        yield lambda sight: self.text(view.plain(sight, _width(stdout)))

    @contextmanager
    def watch_rollout(self) -> Iterator[Callable[[RolloutStatus], None]]:
        """Show a rollout: live on a terminal, else JSON lines or text on each change."""
        from tritonctl.cli.console.rollout_view import RolloutView, plain_text

        stdout = _rich_console()
        if stdout.is_terminal and not self.as_json:
            view = RolloutView()
            with view.live(stdout):
                yield view.show
            return
        last: list[str] = []

        def show(rollout: RolloutStatus) -> None:
            record = json.dumps(_document(rollout.record()))
            text = (record if self.as_json else plain_text(rollout)) + "\n"
            if [text] != last:
                last[:] = [text]
                self.text(text)

        yield show

    @contextmanager
    def step(self, title: str) -> Iterator[ProgressStep]:
        """Show a step while it runs, then its duration."""
        if self.quiet:
            with Silent().step(title) as step:
                yield step
            return
        started_at, mark = time.monotonic(), "[red]✗[/]"
        try:
            with self._stderr.status(escape(title)) as status:
                yield _StatusStep(title, status, self._stderr.width)
            mark = "[green]✓[/]"
        finally:
            took = time.monotonic() - started_at
            self._stderr.print(f"{mark} {escape(title)} [dim]({took:.1f} s)[/]")


def _document(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the name of its form, unless it is a stored file that has one."""
    return {"schema": current_document_name(), **record}


def _width(stdout: RichConsole) -> int:
    """Return the cells of a line: the terminal's, COLUMNS, or the default of pipes and files."""
    return stdout.width if stdout.is_terminal or "COLUMNS" in os.environ else _LOG_COLUMNS


def _rich_console(*, stderr: bool = False) -> RichConsole:
    """Create a rich console; importing rich takes longer than most commands run."""
    from rich.console import Console as RichConsole

    return RichConsole(stderr=stderr, highlight=False)


def escape(text: str) -> str:
    """Escape rich's markup and control characters in a text."""
    from rich.markup import escape as escaped

    return escaped(visible(text))


class _StatusStep:
    def __init__(self, title: str, status: Any, columns: int) -> None:
        self._title = title
        self._status = status
        # Cells of the line after the spinner and two spaces: it must not wrap.
        self._available_cells = max(columns - len(title) - 4, 0)

    def update(self, text: str) -> None:
        """Show the start of `text` after the step's title."""
        from rich.cells import set_cell_size

        visible = set_cell_size(text.strip(), self._available_cells).rstrip()
        self._status.update(f"{escape(self._title)} [dim]{escape(visible)}[/]")
