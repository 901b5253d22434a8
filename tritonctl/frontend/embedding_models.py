# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint's embeddings may be cut to their first dimensions.

Only models that were trained for it (Matryoshka representation learning) have useful shorter
vectors. No file of a checkpoint must say so; vLLM reads the same keys of config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError
from tritonctl.project.frontend import Frontend
from tritonctl.project.schema import Project

_TASK = "embedding"
_CONFIG_KEYS = ("is_matryoshka", "matryoshka_dimensions")
_WORD = "matryoshka"
_MAX_CARD_BYTES = 1_000_000


def matryoshka_models(project: Project) -> dict[str, bool]:
    """Return by embedding model whether `dimensions` suits it; models with unknown are absent."""
    settings = project.frontend or Frontend()
    models: dict[str, bool] = {}
    for name, entry in project.models.items():
        if entry.task != _TASK or name not in project.public:
            continue
        if name in settings.matryoshka:
            models[name] = settings.matryoshka[name]
            continue
        try:
            models[name] = _is_trained(checkpoint_path(project, entry))
        except (ConfigurationError, OSError, ValueError):  # it has not been fetched yet
            continue
    return models


def _is_trained(folder: Path) -> bool:
    """Whether the configuration or the model card says so. Raises OSError, ValueError."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if isinstance(config, Mapping) and any(config.get(key) for key in _CONFIG_KEYS):
        return True
    card = folder / "README.md"
    if not card.is_file():
        return False
    with card.open("rb") as file:
        return _WORD in file.read(_MAX_CARD_BYTES).decode("utf-8", "replace").lower()
