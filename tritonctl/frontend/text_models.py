# SPDX-License-Identifier: Apache-2.0
"""Text properties of checkpoints: tool call markup, tokenizer, reasoning markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError
from tritonctl.frontend.tools.formats import find_format
from tritonctl.project.base import Frozen
from tritonctl.project.frontend import Frontend, Reasoning
from tritonctl.project.schema import Project

_TASK = "text_generation"
_NO_FORMAT = "none"
_MESSAGE_LOOP = re.compile(r"\bfor\s+(\w+)\s+in\s+\w*messages\b")
_NAME_OF = r"""\b{}(?:\.name\b|\[\s*['"]name['"]\s*\]|\.get\(\s*['"]name['"]|\s*\|\s*tojson)"""


class TextModel(Frozen):
    """Text properties of one model."""

    tool_format: str | None = None  # a name in FORMATS; None: unknown markup
    tokenizer: str | None = None  # its tokenizer.json, to name tokens
    reads_names: bool | None = None  # whether its template shows `name`; None: unknown
    refuses_system: bool = False  # if its template has no system role
    reasoning: Reasoning | None = None  # None: thoughts are part of the content


def text_models(project: Project) -> dict[str, TextModel]:
    """Return the text properties of the project's public text generation models."""
    settings = project.frontend or Frontend()
    models = {}
    for name, entry in project.models.items():
        if entry.task != _TASK or name not in project.public:
            continue
        try:
            folder = checkpoint_path(project, entry)
        except ConfigurationError:  # the checkpoint has not been fetched yet
            folder = None
        configured_format = settings.tool_formats.get(name)
        tool_format = (
            find_format(tool_template(folder))
            if folder and configured_format is None
            else configured_format
        )
        tokenizer = folder / "tokenizer.json" if folder else None
        sources = template_sources(folder) if folder else []
        models[name] = TextModel(
            tool_format=None if tool_format == _NO_FORMAT else tool_format,
            tokenizer=str(tokenizer.resolve()) if tokenizer and tokenizer.is_file() else None,
            reads_names=any(map(_reads_names, sources)) if sources else None,
            refuses_system=settings.system_messages.get(name) == "refuse",
            reasoning=settings.reasoning.get(name),
        )
    return models


def tool_template(folder: Path) -> str:
    """Return the source of the chat template for conversations with tools; "" if missing.

    Follows the tokenizer step's choice (python_backends/textlib/chat/files.py).
    """
    return next(iter(template_sources(folder)), "")


def template_sources(folder: Path) -> list[str]:
    """Return the sources of the chat templates, the one for conversations with tools first."""
    file = folder / "chat_template.jinja"
    try:
        if file.is_file():
            return [file.read_text(encoding="utf-8")]
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    value = config.get("chat_template") if isinstance(config, Mapping) else None
    if isinstance(value, list):
        templates = {
            item.get("name"): item.get("template") for item in value if isinstance(item, dict)
        }
        values = [templates.get("tool_use"), templates.get("default")]
    else:
        values = [value]
    return [source for source in values if isinstance(source, str) and source]


def _reads_names(source: str) -> bool:
    """Whether a template reads the `name` of messages, or writes whole messages."""
    variables = {*_MESSAGE_LOOP.findall(source), "message"}
    return any(re.search(_NAME_OF.format(re.escape(each)), source) for each in variables)
