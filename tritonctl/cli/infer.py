# SPDX-License-Identifier: Apache-2.0
"""`tritonctl infer`: tensors in, tensors out, for models that answer once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.cli import sampling_options as asked
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as encoder")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="NAME=JSON, NAME=@FILE.npy or NAME=@FILE.json; repeatable"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder for a .npy per output", show_default="print them")
    ] = None,
    server: ServerOptions,
    timeout: asked.Timeout = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Ask a tensor model once: outputs as JSON, or as .npy files."""
    from tritonctl.protocol.asking import WAYS
    from tritonctl.protocol.client import TritonClient
    from tritonctl.protocol.inspection import model_inputs
    from tritonctl.protocol.tensor_arguments import parse_tensors

    console = voice.console()
    answering_once = WAYS.keys() - {"text_generation"}
    with server.of_model(project, model, sorted(answering_once)) as at:
        arrays = parse_tensors(model_inputs(at, model), inputs or ())
        with TritonClient(at.url, tls=at.tls, api_key=at.api_key) as client:
            answer = client.infer(model, arrays, timeout=timeout)
    if output is None:
        record = {name: _texts(array.tolist()) for name, array in answer.items()}
        console.result(record, json.dumps(record, ensure_ascii=False))
    else:
        files = _save(answer, output)
        console.result(files, "\n".join(f"{name}  {file}" for name, file in files.items()))


def _texts(value: Any) -> Any:
    """Nested lists with bytes as text."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _save(answer: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Raises HostError when a file cannot be written."""
    import os

    import numpy as np

    from tritonctl.host.files import explained

    files = {}
    for name, array in answer.items():
        file = folder / f"{name.replace('/', '_')}.npy"
        staged = file.with_name(f".{file.name}.part.npy")
        with explained(file):
            folder.mkdir(parents=True, exist_ok=True)
            # Texts as fixed-length bytes: object arrays would be pickled.
            np.save(staged, array.astype("S") if array.dtype == object else array)
            os.replace(staged, file)
        files[name] = str(file)
    return files
