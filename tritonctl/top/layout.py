# SPDX-License-Identifier: Apache-2.0
"""Reads from a rendered model repository which models are steps of which ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.top.figures import Layout


def layout_of(repository: Path) -> Layout:
    """The layout by each readable config.pbtxt; skips missing or damaged ones."""
    from tritonctl.repository.pbtxt import parse_pbtxt

    configs: dict[str, Mapping[str, Any]] = {}
    for file in sorted(repository.glob("*/config.pbtxt")):
        try:
            configs[file.parent.name] = parse_pbtxt(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ConfigurationError):
            continue
    steps = {name: _steps(config) for name, config in configs.items()}
    instances = {name: _instances(config) for name, config in configs.items()}
    return Layout(
        steps={name: inner for name, inner in steps.items() if inner},
        instances={name: count for name, count in instances.items() if count},
    )


def _steps(config: Mapping[str, Any]) -> tuple[str, ...]:
    scheduling = config.get("ensemble_scheduling") or {}
    return tuple(dict.fromkeys(step["model_name"] for step in scheduling.get("step", ())))


def _instances(config: Mapping[str, Any]) -> int:
    """From the configured groups; 0 without any: Triton decides."""
    groups = config.get("instance_group") or ()
    return sum(
        int(group.get("count") or 1) * max(1, len(group.get("gpus", ()))) for group in groups
    )
