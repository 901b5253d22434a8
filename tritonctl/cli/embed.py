# SPDX-License-Identifier: Apache-2.0
"""`tritonctl embed`: lines of text, or images, in; vectors as JSON lines out."""

from __future__ import annotations

from typing import Annotated

import typer

from tritonctl.cli import line_options, options
from tritonctl.cli.server_options import ServerOptions
from tritonctl.errors import UsageError

TASKS = ("embedding", "image_embedding")
_ENCODINGS = ("float", "base64")


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as encoder")],
    file: line_options.FileArgument = None,
    text: line_options.Texts = None,
    image: line_options.Images = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="a prompt of the model's, such as query", show_default="its")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="cut vectors to so many", show_default="all")
    ] = None,
    truncate: line_options.Truncate = None,
    encoding: Annotated[
        str, typer.Option(help="of a vector: float, or base64 of its FP32 in little-endian")
    ] = "float",
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Embed each line of a file, or image: a line of JSON with its vector."""
    from tritonctl.protocol.tasks import RowOptions

    if encoding not in _ENCODINGS:
        raise UsageError(
            f"--encoding is `{encoding}`, expected float or base64", remedy="leave it out"
        )
    question = line_options.Question(
        "embed",
        model,
        TASKS,
        RowOptions(prompt_name=prompt_name, dimensions=dimensions, truncate=truncate),
        file,
        text or (),
        image or (),
        encoding=encoding,
    )
    with server.of_model(project, model, TASKS) as at:
        line_options.ask(voice.console(), at, question, lines)
