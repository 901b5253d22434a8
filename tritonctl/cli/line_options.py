# SPDX-License-Identifier: Apache-2.0
"""What `embed`, `classify` and `rerank` share: lines in, JSON lines out."""

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
    from tritonctl.bulk.lines import Source
    from tritonctl.bulk.run import Figures, Job, Run
    from tritonctl.cli.console.voice import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.tasks import RowOptions, ServedTask

FAIL, KEEP = "fail", "keep"
_ENDING = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}

FileArgument = Annotated[
    Path | None,
    typer.Argument(help="file with an item on each line", show_default="standard input"),
]
Texts = Annotated[list[str] | None, typer.Option("--text", help="ask about this; repeatable")]
Images = Annotated[
    list[Path] | None, typer.Option("--image", help="ask about this image file; repeatable")
]
Truncate = Annotated[
    bool | None,
    typer.Option(
        "--truncate/--no-truncate",
        help="cut a text that is too long, or refuse it",
        show_default="the model's",
    ),
]


@dataclass(frozen=True)
class LineOptions:
    """How lines are read, travel, and are written."""

    jsonl: Annotated[bool, typer.Option("--jsonl", help="each line is a JSON object")] = False
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="file for the answers; the same command goes on after an interruption",
            show_default="standard output",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="replace --output, and what of it was begun")
    ] = False
    on_error: Annotated[
        str,
        typer.Option(help="at a line without an answer: fail, or keep its error as its answer"),
    ] = FAIL
    in_flight: Annotated[int, typer.Option(min=1, help="requests at once")] = 4
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="items of a request", show_default="as the model takes"),
    ] = None
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for a request")] = 300.0
    retry_for: Annotated[
        float, typer.Option(min=0.0, help="seconds to ask a busy or restarting server again")
    ] = 60.0

    def __post_init__(self) -> None:
        """Raises UsageError for what makes no sense."""
        if self.on_error not in {FAIL, KEEP}:
            raise UsageError(
                f"--on-error is `{self.on_error}`, expected fail or keep",
                remedy="write --on-error keep to go on at lines without an answer",
            )
        if self.force and self.output is None:
            raise UsageError("--force is given without --output", remedy="leave it out")


@dataclass(frozen=True)
class Question:
    """What a verb asks about. `tasks`: the models it is for. `query`: of a rerank.

    `top_k`: the labels of each line.
    """

    verb: str
    model: str
    tasks: Sequence[str]
    options: RowOptions
    file: Path | None
    texts: Sequence[str] = ()
    images: Sequence[Path] = ()
    query: str | None = None
    encoding: str = "float"
    top_k: int | None = None

    def source(self) -> Source:
        """Where its lines come from: the items named, the file, or standard input."""
        from tritonctl.bulk.lines import Source

        given = [name for name in ("file", "texts", "images") if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(
                f"items are given in {len(given)} ways: {', '.join(given)}",
                remedy="give FILE, or --text, or --image",
            )
        if self.texts and self.query is not None:
            documents = {"query": self.query, "documents": list(self.texts)}
            return Source.of("--text", json.dumps(documents).encode())
        if self.texts:
            return Source.of("--text", _objects("text", self.texts))
        if self.images:
            return Source.of("--image", _objects("image", map(str, self.images)))
        return Source.opened(self.file)

    @property
    def named(self) -> bool:
        """Whether the items are on the command line: as JSON objects then."""
        return bool(self.texts or self.images)


def _objects(field: str, values: Any) -> bytes:
    return b"".join(json.dumps({field: value}).encode() + b"\n" for value in values)


def ask(console: Console, at: Endpoint, question: Question, lines: LineOptions) -> None:
    """Ask about every line, and say how it went. Raises what `Run` raises."""
    from tritonctl.bulk.output import CheckpointedFile, Output, Stream
    from tritonctl.bulk.probe import probed
    from tritonctl.bulk.run import Run
    from tritonctl.protocol.connection import Connection
    from tritonctl.protocol.row_calls import served_task

    with ExitStack() as stack:
        connection = stack.enter_context(Connection(at))
        served = served_task(connection, question.model)
        job = _job(served, question, lines)
        source = question.source()
        stack.callback(source.close)
        output: Output = Stream(console.text)
        if lines.output is not None:
            settings = _settings(served, question, lines, source)
            probe = probed(connection, served, job.options, job.delivery)
            opened = CheckpointedFile.opened(lines.output, settings, probe, force=lines.force)
            output = stack.enter_context(opened)
        if source.path is None and not question.named and sys.stdin.isatty():
            console.note("Reading standard input, an item on each line; Ctrl-D ends.")
        if output.reached.lines:
            console.note(f"Going on after {output.reached.lines:,} lines.")
        title = f"{question.verb} {source.name}"
        watch = console.watch_lines(title, live=lines.output is not None)
        run = Run(job, source, output, connection, stack.enter_context(watch))
        try:
            with _interrupted_between_calls(run):
                figures = run()
        except KeyboardInterrupt:
            raise _interrupted(run.figures, lines.output) from None
    _conclude(console, figures, lines.output)


@contextmanager
def _interrupted_between_calls(run: Run) -> Iterator[None]:
    """Have the first signal to end heard where no call is half started; a second one at once.

    Raised amid the start of a call, KeyboardInterrupt leaves grpcio waiting without an end.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}
    before = {number: way for number, way in before.items() if way is not signal.SIG_IGN}

    def put_back() -> None:
        for number, way in before.items():
            signal.signal(number, way)

    def interrupt(*_: object) -> None:
        put_back()
        run.interrupt()

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        put_back()


def _job(served: ServedTask, question: Question, lines: LineOptions) -> Job:
    """Raises UsageError for a model of another task, or without the options asked for."""
    from tritonctl.bulk.parsing import Format
    from tritonctl.bulk.run import Job
    from tritonctl.protocol.delivery import Delivery
    from tritonctl.protocol.tasks import refuse_other_task

    refuse_other_task(served, question.tasks, question.options.tensors())
    if question.named and served.task.takes_images != bool(question.images):
        takes = "images: --image" if served.task.takes_images else "texts: --text"
        raise UsageError(f"{served.model} takes other items", remedy=f"give it {takes}")
    rows = question.options
    if "top_k" in served.inputs:  # others answer with all labels
        rows = replace(rows, top_k=question.top_k)
    return Job(
        Format(served, lines.jsonl or question.named, question.query),
        rows,
        Delivery(lines.in_flight, lines.timeout, lines.rows, lines.retry_for),
        keep_errors=lines.on_error == KEEP,
        encoding=question.encoding,
        top_k=question.top_k,
    )


def _settings(
    served: ServedTask, question: Question, lines: LineOptions, source: Source
) -> dict[str, Any]:
    """What must be the same when the run goes on; None is left out."""
    content = source.content_hash()
    given = {
        "verb": question.verb,
        "model": question.model,
        "served": served.signature,
        "jsonl": lines.jsonl,
        "query": question.query,
        "encoding": question.encoding,
        "labels": question.top_k,
        **asdict(question.options),
        "input": {"bytes": source.size, "sha256": content} if content else "standard input",
        "folder": str(Path.cwd()) if served.task.takes_images else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _interrupted(figures: Figures, output: Path | None) -> InterruptionError:
    done = f"{figures.reached.lines:,} lines are done"
    if output is None:
        return InterruptionError(
            f"interrupted: {done}", remedy="--output FILE keeps them, and goes on from there"
        )
    return InterruptionError(
        f"interrupted: {done} and kept", remedy="run the same command again: it goes on from there"
    )


def _conclude(console: Console, figures: Figures, output: Path | None) -> None:
    """The figures on standard error; under --json as the object of a run that wrote a file."""
    reached = figures.reached
    if output is not None and console.as_json:
        record = {
            "output": str(output),
            "lines": reached.lines,
            "failed": reached.failed,
            "truncated": reached.truncated,
            "num_input_tokens": reached.tokens,
            "new_lines": figures.new_lines,
            "seconds": round(figures.seconds, 3),
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
        parts.append(f"{reached.failed:,} without an answer")
    if reached.truncated:
        parts.append(f"{reached.truncated:,} cut (--no-truncate refuses them)")
    console.note(" · ".join(parts) + (f" → {output}" if output else ""))
