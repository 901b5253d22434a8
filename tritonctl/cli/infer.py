# SPDX-License-Identifier: Apache-2.0
"""`tritonctl infer`: send tensors to a model with one response, and print the outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options, sampling_options
from tritonctl.cli.server_options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Mapping


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model, such as encoder")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SPEC",
            help="NAME=JSON, NAME=@FILE.npy or NAME=@FILE.json; repeatable",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="folder for one .npy per output",
            show_default="print them",
        ),
    ] = None,
    server: ServerOptions,
    timeout: sampling_options.Timeout = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Send one request to a tensor model; output JSON or .npy files."""
    from tritonctl.protocol.client import TritonClient
    from tritonctl.protocol.inspection import model_inputs
    from tritonctl.protocol.task_usage import TASK_USAGE
    from tritonctl.protocol.tensor_arguments import parse_tensors

    console = output_options.console()
    answering_once = TASK_USAGE.keys() - {"text_generation"}
    with server.open_model_endpoint(project, model, sorted(answering_once)) as endpoint:
        arrays = parse_tensors(model_inputs(endpoint, model), inputs or ())
        with TritonClient(endpoint.url, tls=endpoint.tls, api_key=endpoint.api_key) as client:
            answer = client.infer(model, arrays, timeout=timeout)
    if output is None:
        outputs = {name: _texts(array.tolist()) for name, array in answer.items()}
        console.result({"outputs": outputs}, json.dumps(outputs, ensure_ascii=False))
    else:
        files = _save(answer, output)
        console.result(
            {"outputs": files}, "\n".join(f"{name}  {file}" for name, file in files.items())
        )


def _texts(value: Any) -> Any:
    """Convert bytes in nested lists to text."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _save(answer: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Save each output as a .npy file. Raises HostError if a file cannot be written."""
    import os

    import numpy as np

    from tritonctl.host.files import as_host_error

    files = {}
    for name, array in answer.items():
        file = folder / f"{name.replace('/', '_')}.npy"
        staged = file.with_name(f".{file.name}.part.npy")
        with as_host_error(file):
            folder.mkdir(parents=True, exist_ok=True)
            # Save texts as fixed-length bytes: numpy would pickle object arrays.
            np.save(staged, array.astype("S") if array.dtype == object else array)
            os.replace(staged, file)
        files[name] = str(file)
    return files
