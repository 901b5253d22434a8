# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init`: a commented tritonctl.yaml to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError


def command(
    folder: Annotated[Path, typer.Argument(help="where to write it")] = Path(),
    name: Annotated[str, typer.Option(help="the model's name")] = "my-model",
    checkpoint: Annotated[str, typer.Option(help="its Hugging Face folder")] = "checkpoint",
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Write a commented example project file."""
    from tritonctl.project.example import example_project
    from tritonctl.project.file import FILE_NAME
    from tritonctl.project.schema import MODEL_NAME_PATTERN

    if not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise UsageError(
            f"`{name}` cannot be a Triton model's name",
            remedy="use letters, digits, `_`, `.` and `-`, beginning with a letter or digit",
        )
    file = folder / FILE_NAME
    if file.exists() and not force:
        raise UsageError(f"{file} already exists", remedy="edit it, or replace it with --force")
    from tritonctl.host.files import write_atomically

    write_atomically(file, example_project(name, checkpoint))
    options.console(as_json, quiet=False).result(
        {"file": str(file)}, f"wrote {file}; next: check `checkpoint:` in it, `tritonctl build`"
    )
