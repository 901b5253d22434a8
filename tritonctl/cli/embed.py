# SPDX-License-Identifier: Apache-2.0
"""`tritonctl embed`: embed lines of text or images; output vectors as JSON lines."""

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
        str | None,
        typer.Option(
            metavar="NAME", help="name of a prompt, such as query", show_default="default"
        ),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="cut vectors to this number", show_default="all")
    ] = None,
    truncate: line_options.Truncate = None,
    encoding: Annotated[
        str,
        typer.Option(metavar="CHOICE", help="of vectors: float, or base64 of little-endian FP32"),
    ] = "float",
    lines: line_options.LineOptions,
    server: ServerOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Embed each line of a file, or each image, as a JSON line with its vector."""
    from tritonctl.protocol.tasks import RowOptions

    if encoding not in _ENCODINGS:
        raise UsageError(
            f"--encoding is `{encoding}`, expected float or base64", remedy="drop --encoding"
        )
    question = line_options.ItemRequest(
        "embed",
        model,
        TASKS,
        RowOptions(prompt_name=prompt_name, dimensions=dimensions, truncate=truncate),
        file,
        text or (),
        image or (),
        encoding=encoding,
    )
    with server.open_model_endpoint(project, model, TASKS) as endpoint:
        line_options.process_items(output_options.console(), endpoint, question, lines)
