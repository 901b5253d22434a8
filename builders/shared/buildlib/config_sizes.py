# SPDX-License-Identifier: Apache-2.0
"""Reads sizes in config.json, whose keys differ between architectures. Standard library only.

The host's estimates read the same config_sizes.json.
"""

import json
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError

_TABLE = json.loads(Path(__file__).with_name("config_sizes.json").read_text(encoding="utf-8"))
_KEYS: dict[str, list[str]] = _TABLE["keys"]
# Starts of classes that count positions from the padding id on: the first rows of the table are
# unused.
OFFSET_POSITIONS: tuple[str, ...] = tuple(_TABLE["offset_positions"])
# Tokens of classes whose config.json names no limit, because a distance has no row of a table.
TRAINED_POSITIONS: dict[str, int] = _TABLE["trained_positions"]


def read_size(file: Path, config: dict[str, Any], name: str, *, default: int | None = None) -> int:
    """Return the first positive integer among a size's keys, or `default`.

    `file`: the config.json that `config` is of.

    Raises:
        BuildError: there is neither such an integer nor a default.
    """
    for key in _KEYS.get(name, [name]):
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is not None:
        return default
    raise BuildError(
        f"{file}: {name} is missing or not a positive whole number",
        remedy=f"Add {name} as the model was trained with it, or save the model again.",
    )
