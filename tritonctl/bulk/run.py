# SPDX-License-Identifier: Apache-2.0
"""Run lines through a model: read, request in batches, write in the order of the lines.

One thread reads, so that no request waits for the disk or for typed input; the calling thread sends
and writes. The number of pending lines is bounded, whatever the input's length.
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

from tritonctl.bulk.lines import LineSource, RawLine, raw_lines
from tritonctl.bulk.output import Checkpoint, Output
from tritonctl.bulk.parsing import BadLineError, LineFormat, LineRequest
from tritonctl.bulk.rendering import FLOAT, error_line, result_line
from tritonctl.errors import ConfigurationError, RequestRejectedError, TritonctlError
from tritonctl.protocol.batches import MAX_REQUEST_BYTES, Batches
from tritonctl.protocol.connection import Connection
from tritonctl.protocol.delivery import Delivery
from tritonctl.protocol.row_calls import RowStream
from tritonctl.protocol.tasks import Result, RowOptions, TaskRow

_MAX_PENDING_BYTES = 64 << 20
_GROUP = 256
_WINDOWS = 2  # sorted together: one is written while the next one is requested


@dataclass(frozen=True)
class BulkJob:
    """The settings of a run."""

    format: LineFormat
    options: RowOptions
    delivery: Delivery
    keep_errors: bool = False  # write an error line for a failed line instead of stopping
    encoding: str = FLOAT
    top_k: int | None = None  # labels per line, for models that return all of them


@dataclass(frozen=True)
class BulkProgress:
    """The progress of a run."""

    checkpoint: Checkpoint
    start: Checkpoint
    seconds: float  # since the start of this process
    size: int | None  # bytes of the input; None if unknown

    @property
    def new_lines(self) -> int:
        """Lines written by this process."""
        return self.checkpoint.lines - self.start.lines

    @property
    def lines_per_second(self) -> float:
        """Rate of this process."""
        return self.new_lines / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float | None:
        """Share of the input's bytes; None if its size is unknown."""
        return self.checkpoint.input_bytes / self.size if self.size else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining seconds at the current rate; None if unknown."""
        read = self.checkpoint.input_bytes - self.start.input_bytes
        if not self.size or not read:
            return None
        return self.seconds * (self.size - self.checkpoint.input_bytes) / read


@dataclass(eq=False)
class _PendingLine:
    """A line in progress."""

    raw: RawLine
    request: LineRequest = field(default_factory=lambda: LineRequest([]))
    problem: str = ""
    results: list[Any] = field(default_factory=list)
    missing_results: int = 0
    size: int = 0


class _PendingLimit:
    """Limits pending lines and bytes: the reader waits for the writer."""

    def __init__(self, lines: int) -> None:
        self._max_lines = lines
        self._lines = self._bytes = 0
        self._changed = threading.Condition()

    def acquire(self, lines: int, size: int) -> None:
        """Wait for capacity and acquire it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._lines < self._max_lines and self._bytes < _MAX_PENDING_BYTES
            )
            self._lines += lines
            self._bytes += size

    def release(self, lines: int, size: int) -> None:
        """Release capacity."""
        with self._changed:
            self._lines -= lines
            self._bytes -= size
            self._changed.notify()


class BulkRun:
    """Runs the lines of a source through a model into an output."""

    def __init__(
        self,
        job: BulkJob,
        source: LineSource,
        output: Output,
        connection: Connection,
        on_progress: Callable[[BulkProgress], None],
    ) -> None:
        self._job, self._source, self._output, self._on_progress = job, source, output, on_progress
        batches = Batches(job.format.served_task, job.options, job.delivery)
        self._stream = RowStream(connection, batches)
        self._pending_limit = _PendingLimit(batches.window * _WINDOWS)
        self._order: deque[_PendingLine] = deque()
        self._hash = None if source.size is not None else hashlib.sha256()
        self._start, self._start_time = output.checkpoint, time.monotonic()

    def __call__(self) -> BulkProgress:
        """Run to the end and return the progress.

        Raises RequestRejectedError for the first failed line unless errors are kept, ServerError
        if the server does not answer, ConfigurationError if the input changes.
        """
        reader = threading.Thread(target=self._read, name="tritonctl-lines", daemon=True)
        reader.start()
        try:
            with closing(self._stream.outcomes()) as stream:
                for outcomes in stream:
                    for row, result in outcomes:
                        self._record_result(row, result)
                    self._write()
        except BaseException:
            self._output.save()
            raise
        self._output.finish()
        return self.progress

    def interrupt(self) -> None:
        """Stop with KeyboardInterrupt once no call is half started; for signal handlers."""
        self._stream.end(KeyboardInterrupt())

    @property
    def progress(self) -> BulkProgress:
        """The current progress."""
        seconds = time.monotonic() - self._start_time
        return BulkProgress(self._output.checkpoint, self._start, seconds, self._source.size)

    def _read(self) -> None:
        """Read lines in a separate thread; its errors are raised where results are read."""
        try:
            for lines in self._unprocessed_lines():
                self._submit_groups(lines)
            self._stream.end()
        except BaseException as error:
            self._stream.end(error)

    def _unprocessed_lines(self) -> Iterator[Sequence[RawLine]]:
        """Yield the lines that the output lacks."""
        checkpoint = self._output.checkpoint
        if self._hash is None:
            self._source.seek(checkpoint.input_bytes)
            yield from raw_lines(self._source.read, checkpoint.lines, checkpoint.input_bytes)
            return
        lines_to_skip = checkpoint.lines
        for lines in raw_lines(self._source.read):
            for line in lines[:lines_to_skip]:
                _hash(self._hash, line)
            if (
                lines_to_skip
                and lines_to_skip <= len(lines)
                and self._hash.hexdigest() != checkpoint.input_hash
            ):
                self._refuse_other_input()
            yield lines[lines_to_skip:]
            lines_to_skip -= min(lines_to_skip, len(lines))
        if lines_to_skip:
            self._refuse_other_input()

    def _refuse_other_input(self) -> None:
        raise ConfigurationError(
            f"the first {self._output.checkpoint.lines} lines of {self._source.name} differ from "
            "the lines of the first run",
            remedy="pipe in the same input, or start over: --force",
        )

    def _submit_groups(self, lines: Sequence[RawLine]) -> None:
        """Submit lines in groups: many short ones, or a few large ones such as images."""
        pending: list[_PendingLine] = []
        size = 0
        for raw in lines:
            pending.append(self._parse(raw))
            size += pending[-1].size
            if len(pending) == _GROUP or size >= MAX_REQUEST_BYTES:
                self._submit(pending, size)
                pending, size = [], 0
        if pending:
            self._submit(pending, size)

    def _submit(self, pending: Sequence[_PendingLine], size: int) -> None:
        self._pending_limit.acquire(len(pending), size)
        self._order.extend(pending)
        rows = [
            TaskRow(tensors, (line, number))
            for line in pending
            for number, tensors in enumerate(line.request.rows)
        ]
        self._stream.offer(rows)

    def _parse(self, raw: RawLine) -> _PendingLine:
        try:
            request = self._job.format.parse(raw)
        except BadLineError as error:
            return _PendingLine(raw, problem=str(error), size=len(raw.content))
        count = len(request.rows)
        size = len(raw.content) + sum(len(text) for row in request.rows for text in row.values())
        return _PendingLine(raw, request, results=[None] * count, missing_results=count, size=size)

    def _record_result(self, row: TaskRow, result: Result | TritonctlError) -> None:
        line, number = row.place
        line.missing_results -= 1
        line.results[number] = result
        if isinstance(result, TritonctlError) and not line.problem:
            prefix = f"document {number}: " if line.request.is_ranking else ""
            line.problem = f"{prefix}{result.problem}"

    def _write(self) -> None:
        """Write the leading lines that are complete."""
        complete: list[_PendingLine] = []
        problem: TritonctlError | None = None
        while self._order and not self._order[0].missing_results:
            line = self._order[0]
            if line.problem and not self._job.keep_errors:
                problem = self._line_error(line)
                break
            complete.append(self._order.popleft())
        if complete:
            if self._source.is_changed:
                raise ConfigurationError(
                    f"{self._source.name} was modified during the run",
                    remedy="wait until it is complete, then start over: --force",
                )
            checkpoint = _advanced_checkpoint(self._output.checkpoint, complete)
            if self._hash is not None:
                for line in complete:
                    _hash(self._hash, line.raw)
                checkpoint = replace(checkpoint, input_hash=self._hash.hexdigest())
            self._output.write(b"".join(map(self._text, complete)), checkpoint)
            self._pending_limit.release(len(complete), sum(line.size for line in complete))
            self._on_progress(self.progress)
        if problem is not None:
            raise problem

    def _text(self, line: _PendingLine) -> bytes:
        if line.problem:
            return error_line(line.raw.index, line.request.id, line.problem)
        return result_line(
            line.raw.index,
            line.request.id,
            line.results,
            is_ranking=line.request.is_ranking,
            encoding=self._job.encoding,
            top_k=self._job.top_k,
        )

    def _line_error(self, line: _PendingLine) -> RequestRejectedError:
        return RequestRejectedError(
            f"{self._source.name}, line {line.raw.index + 1}: {line.problem}",
            remedy="continue with --on-error keep, which writes the error instead of an answer, or "
            "correct the line and start over",
        )


def _hash(digest: Any, line: RawLine) -> None:
    digest.update(line.content)
    digest.update(b"\n")


def _advanced_checkpoint(checkpoint: Checkpoint, lines: Sequence[_PendingLine]) -> Checkpoint:
    """Return the checkpoint advanced by these lines."""
    answered = [line.results for line in lines if not line.problem]
    tokens = (
        getattr(result, "num_input_tokens", None) for results in answered for result in results
    )
    truncated = (
        any(getattr(result, "truncated", None) for result in results) for results in answered
    )
    return replace(
        checkpoint,
        lines=checkpoint.lines + len(lines),
        input_bytes=lines[-1].raw.end,
        failed=checkpoint.failed + len(lines) - len(answered),
        truncated=checkpoint.truncated + sum(truncated),
        tokens=checkpoint.tokens + sum(count or 0 for count in tokens),
    )
