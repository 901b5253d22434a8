# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rerank`: score texts against a query; output JSON lines."""

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
        str | None, typer.Option(help="query for every line; with --jsonl each has its own")
    ] = None,
    text: line_options.Texts = None,
    truncate: line_options.Truncate = None,
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Score each line against a query, or each query's documents, as JSON lines."""
    from tritonctl.protocol.tasks import RowOptions

    if query is None and not lines.jsonl:
        raise UsageError(
            "there is no query",
            remedy='add --query TEXT, or --jsonl for lines such as {"query": "…", "documents": '
            '["…"]}',
        )
    question = line_options.ItemRequest(
        "rerank", model, TASKS, RowOptions(truncate=truncate), file, text or (), query=query
    )
    with server.open_model_endpoint(project, model, TASKS) as endpoint:
        line_options.process_items(output_options.console(), endpoint, question, lines)
