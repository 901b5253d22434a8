# SPDX-License-Identifier: Apache-2.0
"""`tritonctl schema`: the JSON schema of tritonctl.yaml, for editors."""

from __future__ import annotations

import json

from tritonctl.cli import options


@options.expand_options
def command(*, voice: options.OutputOptions) -> None:
    """Print the JSON schema of tritonctl.yaml; under --json in one line."""
    from tritonctl.project.schema import Project

    schema = Project.model_json_schema(by_alias=True)
    voice.console().result(schema, json.dumps(schema, indent=2, ensure_ascii=False))
