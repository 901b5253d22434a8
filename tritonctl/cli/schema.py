# SPDX-License-Identifier: Apache-2.0
"""`tritonctl schema`: the JSON schema of tritonctl.yaml, for editors, or of a release."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    of: Annotated[
        Literal["project", "release"],
        typer.Argument(help="tritonctl.yaml, or the release.json of a release"),
    ] = "project",
    voice: options.OutputOptions,
) -> None:
    """Print the JSON schema of tritonctl.yaml; under --json in one line."""
    from tritonctl.project.schema import Project
    from tritonctl.releases.manifest import Release

    described = Project if of == "project" else Release
    schema = described.model_json_schema(by_alias=True)
    voice.console().result(schema, json.dumps(schema, indent=2, ensure_ascii=False))
