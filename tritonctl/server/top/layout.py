# SPDX-License-Identifier: Apache-2.0
"""Reads from a rendered model repository which models are steps of which ensemble."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.protocol.model_config import Config, all_steps, instances_of
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.server.top.figures import Layout


def layout_of(repository: Path) -> Layout:
    """The layout by each readable config.pbtxt; skips missing or damaged ones."""
    configs: dict[str, Config] = {}
    for file in sorted(repository.glob("*/config.pbtxt")):
        try:
            configs[file.parent.name] = parse_pbtxt(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ConfigurationError):
            continue
    steps = {name: all_steps(name, configs) for name in configs}
    instances = {name: instances_of(config) for name, config in configs.items()}
    return Layout(
        steps={name: inner for name, inner in steps.items() if inner},
        instances={name: count for name, count in instances.items() if count},
    )
