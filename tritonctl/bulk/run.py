# SPDX-License-Identifier: Apache-2.0
"""A model's answers to lines: read, asked several at once, written in the order of the lines.

One thread reads, so that no request waits for the disk or for whoever types; this one sends, and
writes. What has been read and not been written is bounded, whatever the input's length.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from tritonctl.bulk.lines import RawLine, Source, raw_lines
from tritonctl.bulk.output import Checkpoint, Output
from tritonctl.bulk.parsing import Asked, BadLineError, Format
from tritonctl.bulk.rendering import FLOAT, error_line, result_line
from tritonctl.errors import ConfigurationError, RequestRejectedError, TritonctlError
from tritonctl.protocol.batches import MOST_BYTES, Batches
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.delivery import Delivery
from tritonctl.protocol.row_calls import RowStream
from tritonctl.protocol.tasks import Result, Row, RowOptions

_MOST_BYTES = 64 << 20
_GROUP = 256
_WINDOWS = 2  # of what is sorted together: one is written while the next one is asked


@dataclass(frozen=True)
class Job:
    """What to ask. keep_errors: a line without an answer has a line that says why.

    top_k: labels of a line, for models that give all of them.
    """

    format: Format
    options: RowOptions
    delivery: Delivery
    keep_errors: bool = False
    encoding: str = FLOAT
    top_k: int | None = None


@dataclass(frozen=True)
class Figures:
    """How far a run has come. `began`: where; `seconds`: since. `size`: of the input, if known."""

    reached: Checkpoint
    began: Checkpoint
    seconds: float
    size: int | None

    @property
    def new_lines(self) -> int:
        """Those of this process."""
        return self.reached.lines - self.began.lines

    @property
    def lines_per_second(self) -> float:
        """Of this process."""
        return self.new_lines / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float | None:
        """Of the input's bytes; None where its size is unknown."""
        return self.reached.input_bytes / self.size if self.size else None

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far."""
        read = self.reached.input_bytes - self.began.input_bytes
        if not self.size or not read:
            return None
        return self.seconds * (self.size - self.reached.input_bytes) / read


@dataclass(eq=False)
class _Line:
    """A line under way. `missing`: rows without a result yet."""

    raw: RawLine
    asked: Asked = field(default_factory=lambda: Asked([]))
    problem: str = ""
    results: list[Any] = field(default_factory=list)
    missing: int = 0
    size: int = 0


class _Room:
    """How much may be under way: who reads waits here for who writes."""

    def __init__(self, lines: int) -> None:
        self._most = lines
        self._lines = self._bytes = 0
        self._changed = threading.Condition()

    def take(self, lines: int, size: int) -> None:
        """Wait until there is some, and take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines < self._most and self._bytes < _MOST_BYTES)
            self._lines += lines
            self._bytes += size

    def give(self, lines: int, size: int) -> None:
        """It is free again."""
        with self._changed:
            self._lines -= lines
            self._bytes -= size
            self._changed.notify()


class Run:
    """Lines of a source to an output. `show` hears of the progress."""

    def __init__(
        self,
        job: Job,
        source: Source,
        output: Output,
        connection: Connection,
        show: Callable[[Figures], None],
    ) -> None:
        self._job, self._source, self._output, self._show = job, source, output, show
        batches = Batches(job.format.served, job.options, job.delivery)
        self._stream = RowStream(connection, batches)
        self._room = _Room(batches.window * _WINDOWS)
        self._order: deque[_Line] = deque()
        self._hash = None if source.size is not None else hashlib.sha256()
        self._began, self._began_at = output.reached, time.monotonic()

    def __call__(self) -> Figures:
        """Run to the end.

        Raises RequestRejectedError at the first line without an answer unless errors are kept,
        ServerError when the server does not answer, ConfigurationError when the input changes.
        """
        reader = threading.Thread(target=self._read, name="tritonctl-lines", daemon=True)
        reader.start()
        try:
            with closing(self._stream.outcomes()) as stream:
                for outcomes in stream:
                    for row, result in outcomes:
                        self._settle(row, result)
                    self._write()
        except BaseException:
            self._output.keep()
            raise
        self._output.finish()
        return self.figures

    def interrupt(self) -> None:
        """Have it end with KeyboardInterrupt once no call is half started; for signal handlers."""
        self._stream.end(KeyboardInterrupt())

    @property
    def figures(self) -> Figures:
        """How far it has come."""
        seconds = time.monotonic() - self._began_at
        return Figures(self._output.reached, self._began, seconds, self._source.size)

    def _read(self) -> None:
        """In a thread of its own: what fails here is raised where the results are taken."""
        try:
            for lines in self._lines():
                self._offer(lines)
            self._stream.end()
        except BaseException as error:
            self._stream.end(error)

    def _lines(self) -> Iterator[Sequence[RawLine]]:
        """Those that the output does not have yet."""
        reached = self._output.reached
        if self._hash is None:
            self._source.seek(reached.input_bytes)
            yield from raw_lines(self._source.read, reached.lines, reached.input_bytes)
            return
        left = reached.lines
        for lines in raw_lines(self._source.read):
            for line in lines[:left]:
                _hash(self._hash, line)
            if left and left <= len(lines) and self._hash.hexdigest() != reached.input_hash:
                self._refuse_other_input()
            yield lines[left:]
            left -= min(left, len(lines))
        if left:
            self._refuse_other_input()

    def _refuse_other_input(self) -> None:
        raise ConfigurationError(
            f"the first {self._output.reached.lines} lines of {self._source.name} are not those "
            "that were read before",
            remedy="pipe in what was piped in before, or start over: --force",
        )

    def _offer(self, lines: Sequence[RawLine]) -> None:
        """In groups: of many short lines, or of few large ones, such as images."""
        made: list[_Line] = []
        size = 0
        for raw in lines:
            made.append(self._parsed(raw))
            size += made[-1].size
            if len(made) == _GROUP or size >= MOST_BYTES:
                self._ask(made, size)
                made, size = [], 0
        if made:
            self._ask(made, size)

    def _ask(self, made: Sequence[_Line], size: int) -> None:
        self._room.take(len(made), size)
        self._order.extend(made)
        rows = [
            Row(tensors, (line, number))
            for line in made
            for number, tensors in enumerate(line.asked.rows)
        ]
        self._stream.offer(rows)

    def _parsed(self, raw: RawLine) -> _Line:
        try:
            asked = self._job.format.parse(raw)
        except BadLineError as error:
            return _Line(raw, problem=str(error), size=len(raw.content))
        count = len(asked.rows)
        size = len(raw.content) + sum(len(text) for row in asked.rows for text in row.values())
        return _Line(raw, asked, results=[None] * count, missing=count, size=size)

    def _settle(self, row: Row, result: Result | TritonctlError) -> None:
        line, number = row.place
        line.missing -= 1
        line.results[number] = result
        if isinstance(result, TritonctlError) and not line.problem:
            of = f"document {number}: " if line.asked.several else ""
            line.problem = f"{of}{result.problem}"

    def _write(self) -> None:
        """The lines at the head that are complete."""
        written: list[_Line] = []
        problem: TritonctlError | None = None
        while self._order and not self._order[0].missing:
            line = self._order[0]
            if line.problem and not self._job.keep_errors:
                problem = self._stopped_by(line)
                break
            written.append(self._order.popleft())
        if written:
            if self._source.changed:
                raise ConfigurationError(
                    f"{self._source.name} is being changed while it is read",
                    remedy="wait until it is complete, then start over: --force",
                )
            reached = _with(self._output.reached, written)
            if self._hash is not None:
                for line in written:
                    _hash(self._hash, line.raw)
                reached = replace(reached, input_hash=self._hash.hexdigest())
            self._output.write(b"".join(map(self._text, written)), reached)
            self._room.give(len(written), sum(line.size for line in written))
            self._show(self.figures)
        if problem is not None:
            raise problem

    def _text(self, line: _Line) -> bytes:
        if line.problem:
            return error_line(line.raw.index, line.asked.id, line.problem)
        return result_line(
            line.raw.index,
            line.asked.id,
            line.results,
            several=line.asked.several,
            encoding=self._job.encoding,
            top_k=self._job.top_k,
        )

    def _stopped_by(self, line: _Line) -> RequestRejectedError:
        return RequestRejectedError(
            f"{self._source.name}, line {line.raw.index + 1}: {line.problem}",
            remedy="go on with --on-error keep, which writes why in place of an answer, or correct "
            "the line and start over",
        )


def _hash(digest: Any, line: RawLine) -> None:
    digest.update(line.content)
    digest.update(b"\n")


def _with(reached: Checkpoint, lines: Sequence[_Line]) -> Checkpoint:
    """So many lines further."""
    answered = [line.results for line in lines if not line.problem]
    tokens = (getattr(one, "num_input_tokens", None) for results in answered for one in results)
    cut = (any(getattr(one, "truncated", None) for one in results) for results in answered)
    return replace(
        reached,
        lines=reached.lines + len(lines),
        input_bytes=lines[-1].raw.end,
        failed=reached.failed + len(lines) - len(answered),
        truncated=reached.truncated + sum(cut),
        tokens=reached.tokens + sum(count or 0 for count in tokens),
    )
