# SPDX-License-Identifier: Apache-2.0
"""Files and folders that a stage's options name and its program reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.catalog import BuilderStage
from tritonctl.errors import ConfigurationError


def option_files(stage: BuilderStage, options: Mapping[str, Any]) -> dict[str, Path]:
    """Return the paths in the options that the stage `reads`, by `OPTION.NUMBER`.

    Raises ConfigurationError for a relative or missing path.
    """
    files = {}
    for dotted in stage.reads:
        value = field_at(options, dotted)
        paths = value if isinstance(value, list) else [value]
        for number, path in enumerate(paths):
            if isinstance(path, str):  # the program reports values of other types
                files[f"{dotted}.{number}"] = _existing_path(f"{stage.name}.{dotted}", path)
    return files


def field_at(record: Mapping[str, Any], dotted: str) -> Any:
    """Return the value at a dotted name, or None."""
    value: Any = record
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _existing_path(option: str, value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise ConfigurationError(
            f"engine.options.{option} has {value!r}, expected an absolute path",
            remedy=f"use the absolute path: {path.absolute()}",
        )
    if not path.exists():
        raise ConfigurationError(
            f"engine.options.{option}: {path} does not exist",
            remedy="correct the path in tritonctl.yaml, or remove it",
        )
    return path
