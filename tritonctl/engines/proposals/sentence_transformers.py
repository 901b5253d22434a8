# SPDX-License-Identifier: Apache-2.0
"""Files of sentence-transformers that identify an encoder's task.

The builder reads the pooling settings and refuses unsupported ones (builders/shared/taskcompile).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import json_object

MODULES = "modules.json"
_CROSS_ENCODER = "CrossEncoder"
_MODEL_CONFIG = "config_sentence_transformers.json"
_OLD_KEY = "sbert_ce_default_activation_function"


def is_cross_encoder(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether CrossEncoder saved the classifier. Raises ConfigurationError."""
    kind = _object(folder / _MODEL_CONFIG).get("model_type")
    return kind == _CROSS_ENCODER or "sentence_transformers" in config or _OLD_KEY in config


def _object(file: Path) -> dict[str, Any]:
    return json_object(file) if file.is_file() else {}
