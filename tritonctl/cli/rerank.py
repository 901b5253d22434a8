# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rerank`: a query and texts in; how well each answers it as JSON lines out."""

from __future__ import annotations

from typing import Annotated

import typer

from tritonctl.cli import line_options, options
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import UsageError

TASKS = ("rerank",)


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as reranker")],
    file: line_options.FileArgument = None,
    query: Annotated[
        str | None, typer.Option(help="what each line is scored against; --jsonl lines have theirs")
    ] = None,
    text: line_options.Texts = None,
    truncate: line_options.Truncate = None,
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Score each line against a query, or each query's documents: a line of JSON with scores."""
    from tritonctl.protocol.tasks import RowOptions

    if query is None and not lines.jsonl:
        raise UsageError(
            "no query is given",
            remedy='write --query TEXT, or --jsonl for lines such as {"query": "…", "documents": '
            '["…"]}',
        )
    question = line_options.Question(
        "rerank", model, TASKS, RowOptions(truncate=truncate), file, text or (), query=query
    )
    with server.of_model(project, model, TASKS) as at:
        line_options.ask(voice.console(), at, question, lines)
