# SPDX-License-Identifier: Apache-2.0
"""Fields of config.pbtxt that are newer than the server that reads them.

tritonctl renders with the newest schema; an older server refuses a model with unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.project.compatibility.rules import fields_unknown_to
from tritonctl.project.compatibility.table import Compatibility, table
from tritonctl.project.schema import Project
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.repository.server_environment import SERVER_VERSION


def server_version(project: Project) -> str | None:
    """Return the Triton version that will read the repository, or None if it is open."""
    return SERVER_VERSION if project.server.mode == "embedded" else None


def refuse_newer_fields(model: str, config: str, project: Project) -> None:
    """Raise ConfigurationError for a field that the project's server does not support yet.

    The error names the first version with it.
    """
    version = server_version(project)
    if version is None:
        return
    compatibility = table(project.root)
    newer = fields_unknown_to(version, compatibility)
    record = parse_pbtxt(config) if newer else {}
    for field, first in newer.items():
        if _has(record, field.split(".")):
            raise ConfigurationError(
                f"config.pbtxt of {model} has `{field}`, which came with Triton {first}; the "
                f"{project.server.mode} server is {version}",
                remedy=f"remove it from `serving.config`, or serve with Triton {first}"
                f"{_release(first, compatibility)} or later (`server.mode: docker`)",
            )


def _has(record: Mapping[str, Any], path: list[str]) -> bool:
    value: Any = record
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


def _release(version: str, compatibility: Compatibility) -> str:
    names = [release.name for release in compatibility.releases if release.triton == version]
    return f" ({names[0]})" if names else ""
