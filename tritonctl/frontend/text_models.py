# SPDX-License-Identifier: Apache-2.0
"""What checkpoints say about text: how the model calls tools, where its tokenizer lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.hub.checkpoint import checkpoint_of
from tritonctl.errors import ConfigurationError
from tritonctl.frontend.tools.formats import format_of
from tritonctl.project.base import Frozen
from tritonctl.project.frontend import Frontend, Reasoning
from tritonctl.project.schema import Project

_TASK = "text_generation"
_NO_FORMAT = "none"


class TextModel(Frozen):
    """Of one model. `tool_format`: a name in FORMATS, None where its markup is unknown.

    `tokenizer`: its tokenizer.json, to name tokens; None where there is none. `reasoning`: how it
    marks its thoughts; None: they are part of the content.
    """

    tool_format: str | None = None
    tokenizer: str | None = None
    reasoning: Reasoning | None = None


def text_models(project: Project) -> dict[str, TextModel]:
    """Of the project's public models that generate text."""
    settings = project.frontend or Frontend()
    found = {}
    for name, entry in project.models.items():
        if entry.task != _TASK or name not in project.public:
            continue
        try:
            folder = checkpoint_of(project, entry)
        except ConfigurationError:  # its checkpoint has not been fetched yet
            folder = None
        given = settings.tool_formats.get(name)
        read = format_of(tool_template(folder)) if folder and given is None else given
        tokenizer = folder / "tokenizer.json" if folder else None
        found[name] = TextModel(
            tool_format=None if read == _NO_FORMAT else read,
            tokenizer=str(tokenizer.resolve()) if tokenizer and tokenizer.is_file() else None,
            reasoning=settings.reasoning.get(name),
        )
    return found


def tool_template(folder: Path) -> str:
    """The source of the chat template for conversations with tools; empty where there is none.

    The same choice as the tokenizer step's (python_backends/textlib/chat_files.py).
    """
    file = folder / "chat_template.jinja"
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return _of_config(config.get("chat_template") if isinstance(config, Mapping) else None)


def _of_config(value: Any) -> str:
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("tool_use") or named.get("default")
    return value if isinstance(value, str) else ""
