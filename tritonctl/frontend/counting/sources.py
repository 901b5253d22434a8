# SPDX-License-Identifier: Apache-2.0
"""Find a deployed model's tokenizer and its step's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tritonctl.frontend.counting.worker import TokenizerSource
from tritonctl.protocol.model_config import Config, all_steps

_SPECIAL, _MAX_INPUT = "add_special_tokens", "max_input_len"


def tokenizer_source_of(
    model: str, configs: Mapping[str, Config], repository: Path
) -> TokenizerSource | None:
    """Return the tokenizer of a model; None if no step has a tokenizer folder.

    `configs`: the current ones of the model and its steps. The tokenizer is a separate step, or
    part of the engine (`serving.fused`).
    """
    for name in [*all_steps(model, configs), model]:
        folder = _version_folder(repository / name)
        if folder is None or not (folder / "tokenizer" / "tokenizer.json").is_file():
            continue
        values = configs.get(name, {}).get("parameters") or {}
        settings = {
            key: str(value.get("string_value", "")).strip() for key, value in values.items()
        }
        if _SPECIAL in settings and settings.get(_MAX_INPUT, "").isdecimal():
            return TokenizerSource(folder, int(settings[_MAX_INPUT]), settings[_SPECIAL].lower())
        if (folder / "task" / "task.json").is_file():
            return TokenizerSource(folder)
    return None


def _version_folder(model: Path) -> Path | None:
    """Return the newest version's folder, which Triton loads."""
    if not model.is_dir():
        return None
    versions = [each for each in model.iterdir() if each.name.isdecimal() and each.is_dir()]
    return max(versions, key=lambda each: int(each.name), default=None)
