# SPDX-License-Identifier: Apache-2.0
"""Shared code of `embed`, `classify` and `rerank`: lines in, JSON lines out."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.errors import InterruptionError, UsageError

if TYPE_CHECKING:
    from tritonctl.bulk.lines import LineSource
    from tritonctl.bulk.run import BulkJob, BulkProgress, BulkRun
    from tritonctl.cli.console.output import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.tasks import RowOptions, ServedTask

FAIL, KEEP = "fail", "keep"
_TERMINATION_SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}

FileArgument = Annotated[
    Path | None,
    typer.Argument(help="file with one item per line", show_default="standard input"),
]
Texts = Annotated[list[str] | None, typer.Option("--text", help="a text to process; repeatable")]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="an image to process; repeatable"),
]
Truncate = Annotated[
    bool | None,
    typer.Option(
        "--truncate/--no-truncate",
        help="cut texts that are too long, or reject them",
        show_default="the model's",
    ),
]


@dataclass(frozen=True)
class LineOptions:
    """Options for reading, sending and writing lines."""

    jsonl: Annotated[bool, typer.Option("--jsonl", help="each line is a JSON object")] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="file for the answers; the same command continues an interrupted run",
            show_default="standard output",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="replace what exists: --output and its unfinished file")
    ] = False
    on_error: Annotated[
        str,
        typer.Option(
            metavar="CHOICE", help="at a failed line: fail, or keep its error as the answer"
        ),
    ] = FAIL
    in_flight: Annotated[int, typer.Option(min=1, help="requests at once")] = 4
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="items per request", show_default="the model's limit"),
    ] = None
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="seconds for a whole request")
    ] = 300.0
    retry_for: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.0, help="time to retry a busy or restarting server"),
    ] = 60.0

    def __post_init__(self) -> None:
        """Raise UsageError for invalid combinations."""
        if self.on_error not in {FAIL, KEEP}:
            raise UsageError(
                f"--on-error is `{self.on_error}`, expected fail or keep",
                remedy="use --on-error keep to continue after failed lines",
            )
        if self.force and self.output is None:
            raise UsageError("--force requires --output", remedy="drop --force")


@dataclass(frozen=True)
class ItemRequest:
    """The items and settings of a verb."""

    verb: str
    model: str
    tasks: Sequence[str]  # tasks that the verb supports
    options: RowOptions
    file: Path | None
    texts: Sequence[str] = ()
    images: Sequence[Path] = ()
    query: str | None = None  # of a rerank
    encoding: str = "float"
    top_k: int | None = None  # labels per line

    def source(self) -> LineSource:
        """Return the source of the lines: inline items, the file, or standard input."""
        from tritonctl.bulk.lines import LineSource

        sources = [name for name in ("file", "texts", "images") if getattr(self, name)]
        if len(sources) > 1:
            raise UsageError(
                f"items come from {len(sources)} sources: {', '.join(sources)}",
                remedy="use one of FILE, --text and --image",
            )
        if self.texts and self.query is not None:
            documents = {"query": self.query, "documents": list(self.texts)}
            return LineSource.from_bytes("--text", json.dumps(documents).encode())
        if self.texts:
            return LineSource.from_bytes("--text", _objects("text", self.texts))
        if self.images:
            return LineSource.from_bytes("--image", _objects("image", map(str, self.images)))
        return LineSource.open_path(self.file)

    @property
    def has_inline_items(self) -> bool:
        """Whether the items are on the command line, which makes them JSON objects."""
        return bool(self.texts or self.images)


def _objects(field: str, values: Any) -> bytes:
    return b"".join(json.dumps({field: value}).encode() + b"\n" for value in values)


def process_items(
    console: Console, endpoint: Endpoint, request: ItemRequest, lines: LineOptions
) -> None:
    """Send every line, print the answers and the figures. Raises the errors of `BulkRun`."""
    from tritonctl.bulk.output import CheckpointedFile, Output, StreamOutput
    from tritonctl.bulk.probe import probe_answer
    from tritonctl.bulk.run import BulkRun
    from tritonctl.protocol.connection import Connection
    from tritonctl.protocol.row_calls import describe_task

    with ExitStack() as stack:
        connection = stack.enter_context(Connection(endpoint))
        target = describe_task(connection, request.model)
        job = _job(target, request, lines)
        source = request.source()
        stack.callback(source.close)
        output: Output = StreamOutput(console.text)
        if lines.output is not None:
            settings = _settings(target, request, lines, source)
            probe = probe_answer(connection, target, job.options, job.delivery)
            opened = CheckpointedFile.open_file(lines.output, settings, probe, force=lines.force)
            output = stack.enter_context(opened)
        if source.path is None and not request.has_inline_items and sys.stdin.isatty():
            console.note("Reading standard input, one item per line; Ctrl-D ends.")
        if output.checkpoint.lines:
            console.note(f"Continuing after {output.checkpoint.lines:,} lines.")
        title = f"{request.verb} {source.name}"
        watch = console.watch_lines(title, live=lines.output is not None)
        run = BulkRun(job, source, output, connection, stack.enter_context(watch))
        try:
            with _interrupted_between_calls(run):
                figures = run()
        except KeyboardInterrupt:
            raise _interrupted(run.progress, lines.output) from None
    _conclude(console, figures, lines.output)


@contextmanager
def _interrupted_between_calls(run: BulkRun) -> Iterator[None]:
    """Handle the first termination signal between two calls, a second one at once.

    A KeyboardInterrupt during the start of a call makes grpcio wait forever.
    """
    previous_handlers = {number: signal.getsignal(number) for number in _TERMINATION_SIGNALS}
    previous_handlers = {
        number: handler
        for number, handler in previous_handlers.items()
        if handler is not signal.SIG_IGN
    }

    def restore_handlers() -> None:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)

    def interrupt(*_: object) -> None:
        restore_handlers()
        run.interrupt()

    for number in previous_handlers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        restore_handlers()


def _job(target: ServedTask, request: ItemRequest, lines: LineOptions) -> BulkJob:
    """Create the job. Raises UsageError for a wrong task or unsupported options."""
    from tritonctl.bulk.parsing import LineFormat
    from tritonctl.bulk.run import BulkJob
    from tritonctl.protocol.delivery import Delivery
    from tritonctl.protocol.tasks import refuse_other_task

    refuse_other_task(target, request.tasks, request.options.tensors())
    if request.has_inline_items and target.task.takes_images != bool(request.images):
        kind, other = ("images", "texts") if target.task.takes_images else ("texts", "images")
        raise UsageError(
            f"{target.model} takes {kind}, not {other}", remedy=f"use --{kind.removesuffix('s')}"
        )
    rows = request.options
    if "top_k" in target.inputs:  # other models answer with all labels
        rows = replace(rows, top_k=request.top_k)
    return BulkJob(
        LineFormat(target, lines.jsonl or request.has_inline_items, request.query),
        rows,
        Delivery(lines.in_flight, lines.timeout, lines.rows, lines.retry_for),
        keep_errors=lines.on_error == KEEP,
        encoding=request.encoding,
        top_k=request.top_k,
    )


def _settings(
    target: ServedTask, request: ItemRequest, lines: LineOptions, source: LineSource
) -> dict[str, Any]:
    """Return the settings that must not change when a run continues, without None."""
    content = source.content_hash()
    values = {
        "verb": request.verb,
        "model": request.model,
        "served": target.signature,
        "jsonl": lines.jsonl,
        "query": request.query,
        "encoding": request.encoding,
        "labels": request.top_k,
        **asdict(request.options),
        "input": {"bytes": source.size, "sha256": content} if content else "standard input",
        "folder": str(Path.cwd()) if target.task.takes_images else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _interrupted(figures: BulkProgress, output: Path | None) -> InterruptionError:
    done = f"{figures.checkpoint.lines:,} lines are done"
    if output is None:
        return InterruptionError(
            f"interrupted: {done}", remedy="use --output FILE to store them and continue later"
        )
    return InterruptionError(
        f"interrupted: {done} and stored", remedy="run the same command again to continue"
    )


def _conclude(console: Console, figures: BulkProgress, output: Path | None) -> None:
    """Print the figures on standard error; with --json and --output also as an object."""
    reached = figures.checkpoint
    if output is not None and console.as_json:
        record = {
            "output": str(output),
            "lines": reached.lines,
            "failed": reached.failed,
            "truncated": reached.truncated,
            "num_input_tokens": reached.tokens,
            "new_lines": figures.new_lines,
            "duration_seconds": round(figures.seconds, 3),
        }
        console.result(record, "")
    parts = [f"{reached.lines:,} line{'s' * (reached.lines != 1)}"]
    if figures.new_lines != reached.lines:
        parts.append(f"{figures.new_lines:,} of them now")
    parts.append(f"{figures.seconds:.1f} s")
    parts.append(f"{figures.lines_per_second:.0f}/s")
    if reached.tokens:
        parts.append(f"{reached.tokens:,} tokens")
    if reached.failed:
        parts.append(f"{reached.failed:,} failed")
    if reached.truncated:
        parts.append(f"{reached.truncated:,} cut (--no-truncate rejects them)")
    console.note(" · ".join(parts) + (f" → {output}" if output else ""))
