# SPDX-License-Identifier: Apache-2.0
"""What a builder says of itself in its builder.toml, which the host reads, too."""

import tomllib
from pathlib import Path


def architectures(folder: Path) -> tuple[str, ...]:
    """Return the model classes that the builder in `folder` takes."""
    data = tomllib.loads((folder / "builder.toml").read_text(encoding="utf-8"))
    return tuple(data["architectures"])
