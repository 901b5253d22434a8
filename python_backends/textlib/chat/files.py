# SPDX-License-Identifier: Apache-2.0
"""Read the chat template and special tokens from a checkpoint's tokenizer folder."""

import json
from pathlib import Path
from typing import Any

from textlib.errors import ModelConfigurationError

_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer's folder has a chat template, valid or not."""
    return (folder / "chat_template.jinja").is_file() or bool(
        _read_object(folder / "tokenizer_config.json").get("chat_template")
    )


def template_source(folder: Path, *, tools: bool = False) -> str:
    """Return the template. chat_template.jinja takes precedence, as in transformers.

    tools: return the template for conversations with tools, if the checkpoint has a separate one.
    Raises ModelConfigurationError if there is no template.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = _read_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        templates = {
            item.get("name"): item.get("template") for item in value if isinstance(item, dict)
        }
        value = (
            templates.get("tool_use")
            if tools and "tool_use" in templates
            else templates.get("default")
        )
    if not isinstance(value, str):
        raise ModelConfigurationError("the checkpoint has no chat template called default")
    return value


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the special tokens that the checkpoint names, by bos_token, eos_token, ..."""
    config = _read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # an older transformers writes two files
        config |= _read_object(folder / "special_tokens_map.json")
    tokens = {f"{name}_token": config.get(f"{name}_token") for name in _NAMED_TOKENS}
    contents = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in tokens.items()
    }
    return {name: value for name, value in contents.items() if isinstance(value, str)}


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelConfigurationError(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}
