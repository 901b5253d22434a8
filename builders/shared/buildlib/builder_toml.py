# SPDX-License-Identifier: Apache-2.0
"""What a builder says of itself in its builder.toml, which the host reads, too."""

import tomllib
from pathlib import Path
from typing import Any


def read_description(folder: Path) -> dict[str, Any]:
    """Return the builder.toml of the builder in `folder`."""
    return tomllib.loads((folder / "builder.toml").read_text(encoding="utf-8"))
