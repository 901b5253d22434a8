# SPDX-License-Identifier: Apache-2.0
"""`tritonctl classify`: lines of text, or images, in; labels or entities as JSON lines out."""

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
    top_k: Annotated[int, typer.Option(min=1, help="the best labels of each")] = 5,
    truncate: line_options.Truncate = None,
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Classify each line of a file, or image: a line of JSON with labels, or with entities."""
    from tritonctl.protocol.tasks import RowOptions

    question = line_options.Question(
        "classify",
        model,
        TASKS,
        RowOptions(truncate=truncate),
        file,
        text or (),
        image or (),
        top_k=top_k,
    )
    with server.of_model(project, model, TASKS) as at:
        line_options.ask(voice.console(), at, question, lines)
