# SPDX-License-Identifier: Apache-2.0
"""Where a served model's tokenizer lies, and what its step does with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tritonctl.frontend.counting.worker import Source
from tritonctl.protocol.model_config import Config, all_steps

_SPECIAL, _LONGEST = "add_special_tokens", "max_input_len"


def source_of(model: str, configs: Mapping[str, Config], repository: Path) -> Source | None:
    """What counts a model's prompts; None where no step of it tokenises by a folder of its own.

    `configs`: the model's and its steps', as the server runs them. The tokenizer is a step of its
    own, or the engine does that work (`serving.fused`).
    """
    for name in [*all_steps(model, configs), model]:
        folder = _version_folder(repository / name)
        if folder is None or not (folder / "tokenizer" / "tokenizer.json").is_file():
            continue
        values = configs.get(name, {}).get("parameters") or {}
        settings = {
            key: str(value.get("string_value", "")).strip() for key, value in values.items()
        }
        if _SPECIAL in settings and settings.get(_LONGEST, "").isdecimal():
            return Source(folder, int(settings[_LONGEST]), settings[_SPECIAL].lower())
        if (folder / "task" / "task.json").is_file():
            return Source(folder)
    return None


def _version_folder(model: Path) -> Path | None:
    """The newest version, which is the one that is served."""
    if not model.is_dir():
        return None
    versions = [each for each in model.iterdir() if each.name.isdecimal() and each.is_dir()]
    return max(versions, key=lambda each: int(each.name), default=None)
