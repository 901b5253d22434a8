# SPDX-License-Identifier: Apache-2.0
"""`tritonctl classify`: classify lines of text or images; output labels as JSON lines."""

from __future__ import annotations

from typing import Annotated

import typer

from tritonctl.cli import line_options, options
from tritonctl.cli.server_options import ServerOptions

TASKS = ("classification", "image_classification", "token_classification")


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as sentiment")],
    file: line_options.FileArgument = None,
    text: line_options.Texts = None,
    image: line_options.Images = None,
    labels: Annotated[int, typer.Option(min=1, help="best labels per item")] = 5,
    truncate: line_options.Truncate = None,
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Classify each line of a file, or each image, as a JSON line with labels or entities."""
    from tritonctl.protocol.tasks import RowOptions

    question = line_options.ItemRequest(
        "classify",
        model,
        TASKS,
        RowOptions(truncate=truncate),
        file,
        text or (),
        image or (),
        top_k=labels,
    )
    with server.open_model_endpoint(project, model, TASKS) as endpoint:
        line_options.process_items(output_options.console(), endpoint, question, lines)
