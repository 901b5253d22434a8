# SPDX-License-Identifier: Apache-2.0
"""`tritonctl schema`: print the JSON schema of tritonctl.yaml, for editors, or of a release."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    kind: Annotated[
        Literal["project", "release"],
        typer.Argument(help="tritonctl.yaml, or the release.json of a release"),
    ] = "project",
    output_options: options.OutputOptions,
) -> None:
    """Print the JSON schema of tritonctl.yaml; with --json in one line."""
    from tritonctl.project.schema import Project
    from tritonctl.releases.manifest import ReleaseManifest

    described = Project if kind == "project" else ReleaseManifest
    schema = described.model_json_schema(by_alias=True)
    indent = None if output_options.as_json else 2
    text = json.dumps(schema, indent=indent, ensure_ascii=False)
    output_options.console().text(f"{text}\n")
