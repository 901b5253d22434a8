# SPDX-License-Identifier: Apache-2.0
"""`tritonctl schema`: the JSON schema of tritonctl.yaml, for editors."""

from __future__ import annotations

import json

from tritonctl.cli import options


def command() -> None:
    """Print the JSON schema of tritonctl.yaml."""
    from tritonctl.project.schema import Project

    schema = Project.model_json_schema(by_alias=True)
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    options.console().text(text + "\n")
