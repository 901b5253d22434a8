# SPDX-License-Identifier: Apache-2.0
"""The only place that prints: data on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from tritonctl.errors import TritonctlError
from tritonctl.progress import Board, Step, Unordered


class Console:
    """What a command says, in one of three voices: human (default), `--json`, `--quiet`."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._stderr = RichConsole(stderr=True, highlight=False)

    def result(self, record: Mapping[str, Any], human: str) -> None:
        """Print the command's outcome: one JSON object, or `human` as text."""
        print(json.dumps(record, ensure_ascii=False) if self.as_json else human)  # noqa: T201

    def table(
        self, record: Mapping[str, Any], headings: Sequence[str], rows: Sequence[Sequence[str]]
    ) -> None:
        """Print rows: one JSON object, a table on a terminal, aligned lines otherwise."""
        if self.as_json or not sys.stdout.isatty():
            self.result(record, _aligned([headings, *rows]))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(escape(heading), overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        RichConsole(highlight=False).print(table)

    def text(self, text: str) -> None:
        """Write `text` to standard output at once and as it is (a streamed answer)."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def ask(self, prompt: str) -> str | None:
        """The next line of a user at a terminal, None at its end (Ctrl-D)."""
        with suppress(ImportError):
            import readline  # noqa: F401 - input() then edits lines and remembers them
        if not sys.stdout.isatty():  # input() would write the prompt among the answers
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            sys.stderr.write("\n")
            return None

    def note(self, text: str) -> None:
        """Say something on standard error; silent under `--quiet`."""
        if not self.quiet:
            self._stderr.print(escape(text), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Say something that the user should act on."""
        self._stderr.print(f"[yellow]warning[/]: {escape(text)}", soft_wrap=True)

    def error(self, error: TritonctlError) -> None:
        """Explain a foreseen failure: what, evidence, what to do next."""
        if self.as_json:
            print(json.dumps(error.as_record(), ensure_ascii=False))  # noqa: T201
        self._stderr.print(f"[bold red]error[/]: {escape(error.problem)}", soft_wrap=True)
        if error.details:
            self._stderr.print(escape(_indented(error.details)), style="dim", soft_wrap=True)
        self._stderr.print(f"  [green]try[/]: {escape(error.remedy)}", soft_wrap=True)

    @contextmanager
    def board(self, *, several: bool) -> Iterator[Board]:
        """Where builds are shown: a live table on a terminal, else lines; `several` run at once."""
        from tritonctl.build_table import BuildTable, PlainBoard

        if self.quiet or not self._stderr.is_terminal:
            yield PlainBoard(self.note) if several else Unordered(self)
            return
        table = BuildTable(self.note)
        with table.live(self._stderr):
            yield table

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while it runs, then how long it took (seconds)."""
        began = time.monotonic()
        if self.quiet:
            yield _QuietStep()
            return
        mark = "[red]✗[/]"
        try:
            with self._stderr.status(escape(title)) as status:
                yield _StatusStep(title, status)
            mark = "[green]✓[/]"
        finally:
            took = time.monotonic() - began
            self._stderr.print(f"{mark} {escape(title)} [dim]({took:.1f} s)[/]")


class _QuietStep:
    def update(self, text: str) -> None:
        """`--quiet` wants to see nothing."""


class _StatusStep:
    def __init__(self, title: str, status: Any) -> None:
        self._title = title
        self._status = status

    def update(self, text: str) -> None:
        """Show `text`, cut to a line, behind the step's title."""
        self._status.update(f"{escape(self._title)} [dim]{escape(text.strip()[:100])}[/]")


def _indented(text: str) -> str:
    return "\n".join(f"  │ {line}" for line in text.rstrip().splitlines())


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart; an ideograph is two cells wide."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
