# SPDX-License-Identifier: Apache-2.0
"""Files and folders that the options of a stage name, for its program to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.build.catalog import Stage
from tritonctl.errors import ConfigurationError


def given_files(stage: Stage, options: Mapping[str, Any]) -> dict[str, Path]:
    """The places under the options that the stage `reads`, by `OPTION.NUMBER`.

    Raises ConfigurationError for a relative or missing path.
    """
    files = {}
    for dotted in stage.reads:
        value = field_at(options, dotted)
        places = value if isinstance(value, list) else [value]
        for number, place in enumerate(places):
            if isinstance(place, str):  # the program says what is wrong with anything else
                files[f"{dotted}.{number}"] = _existing(f"{stage.name}.{dotted}", place)
    return files


def field_at(record: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted name; None where nothing is."""
    value: Any = record
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _existing(option: str, place: str) -> Path:
    path = Path(place)
    if not path.is_absolute():
        raise ConfigurationError(
            f"engine.options.{option} has {place!r}, expected an absolute path",
            remedy=f"use the absolute path: {path.absolute()}",
        )
    if not path.exists():
        raise ConfigurationError(
            f"engine.options.{option}: {path} does not exist",
            remedy="correct the path in tritonctl.yaml, or remove it",
        )
    return path
