# SPDX-License-Identifier: Apache-2.0
"""Read the steps of each ensemble from a rendered model repository."""

from __future__ import annotations

from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.protocol.model_config import Config, all_steps, instances_of
from tritonctl.repository.pbtxt import parse_pbtxt
from tritonctl.top.figures import ModelLayout


def layout_of(repository: Path) -> ModelLayout:
    """Read the layout from every config.pbtxt; skips missing or damaged files."""
    configs: dict[str, Config] = {}
    for file in sorted(repository.glob("*/config.pbtxt")):
        try:
            configs[file.parent.name] = parse_pbtxt(
                file.read_text(encoding="utf-8", errors="surrogateescape")
            )
        except (OSError, UnicodeDecodeError, ConfigurationError):
            continue
    steps = {name: all_steps(name, configs) for name in configs}
    instances = {name: instances_of(config) for name, config in configs.items()}
    return ModelLayout(
        steps={name: inner for name, inner in steps.items() if inner},
        instances={name: count for name, count in instances.items() if count},
    )
