# SPDX-License-Identifier: Apache-2.0
"""modules.json of sentence-transformers: how vectors of tokens become one for a text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import json_object
from tritonctl.errors import ConfigurationError

_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_KNOWN = ("Transformer", "Pooling", "Normalize")
_EXPORT = "export the whole model to ONNX yourself, then run `tritonctl init MODEL.onnx`"


@dataclass(frozen=True)
class SentenceModules:
    """Options of the onnxruntime builder that do the same. `file`: None without modules.json."""

    file: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    longest: int | None = None


def read_modules(folder: Path) -> SentenceModules:
    """What a folder's modules.json asks for. Raises ConfigurationError for unknown modules."""
    file = folder / "modules.json"
    if not file.is_file():
        return SentenceModules()
    options: dict[str, Any] = {}
    for kind, path in _modules(file):
        if kind not in _KNOWN:
            raise ConfigurationError(
                f"{file}: no builder makes the module {kind}; known: {', '.join(_KNOWN)}",
                remedy=_EXPORT,
            )
        if kind == "Pooling":
            options["pooling"] = _pooling(folder / path / "config.json")
        elif kind == "Normalize":
            options["normalize"] = True
    if "pooling" not in options:
        raise ConfigurationError(f"{file} has no Pooling module", remedy=_EXPORT)
    limits = folder / "sentence_bert_config.json"
    asked = json_object(limits).get("max_seq_length") if limits.is_file() else None
    return SentenceModules(file, options, asked if isinstance(asked, int) else None)


def _modules(file: Path) -> list[tuple[str, str]]:
    """The class and the folder of each."""
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return [(str(one["type"]).rsplit(".", 1)[-1], str(one.get("path", ""))) for one in listed]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file} is no list of modules ({type(error).__name__}: {error})",
            remedy="download the checkpoint again and let it finish",
        ) from error


def _pooling(file: Path) -> str:
    config = json_object(file)
    asked = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    modes = [_MODES.get(key, key) for key in asked] or [str(config.get("pooling_mode"))]
    if len(modes) != 1 or modes[0] not in _MODES.values():
        raise ConfigurationError(
            f"{file}: no builder pools by {', '.join(modes)}; known: mean, cls", remedy=_EXPORT
        )
    return modes[0]
