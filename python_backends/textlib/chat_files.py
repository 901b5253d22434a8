# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint's tokenizer folder says about conversations."""

import json
from pathlib import Path
from typing import Any

from textlib.errors import ConfigurationError

_NAMED_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer's folder has a chat template, valid or not."""
    return (folder / "chat_template.jinja").is_file() or bool(
        _object(folder / "tokenizer_config.json").get("chat_template")
    )


def template_source(folder: Path, *, tools: bool = False) -> str:
    """The template. chat_template.jinja wins, as in transformers.

    tools: the one for conversations with tools, where a checkpoint has one of its own for them.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = _object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("tool_use") if tools and "tool_use" in named else named.get("default")
    if not isinstance(value, str):
        raise ConfigurationError("the checkpoint has no chat template called default")
    return value


def special_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token, ...: those that the checkpoint names."""
    config = _object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # written by an older transformers: two files
        config |= _object(folder / "special_tokens_map.json")
    named = {f"{name}_token": config.get(f"{name}_token") for name in _NAMED_TOKENS}
    contents = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in named.items()
    }
    return {name: value for name, value in contents.items() if isinstance(value, str)}


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    return value if isinstance(value, dict) else {}
