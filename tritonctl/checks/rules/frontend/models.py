# SPDX-License-Identifier: Apache-2.0
"""TC92x: models that the frontend offers for what they cannot do.

Sources: docs/reference/openai.md; https://huggingface.co/docs/transformers/main/chat_templating
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error
from tritonctl.checks.small_file import UnreadableError, read_small

_MESSAGES, _ADAPTER = "messages", "lora_name"
_TEMPLATE, _SETTINGS = "chat_template.jinja", "tokenizer_config.json"
_LARGEST_SETTINGS = 32 << 20


@advice(
    "TC920 no-chat-template",
    summary="a model for text behind the frontend whose tokenizer has no chat template",
    why="Each request to /v1/chat/completions is refused; /v1/completions works.",
    shows="elsewhere",
)
def templates(model: Model, repository: Repository) -> Iterator[Hit]:
    offered = repository.target.openai
    if offered is None or model.name not in offered.models:
        return
    if _MESSAGES not in {tensor.name for tensor in model.config.message.input}:
        return
    for step in _steps(model, repository):
        folder = f"{step.served_version}/tokenizer"
        if not (step.path / folder / "tokenizer.json").is_file():
            continue
        if not _has_template(step, folder):
            yield Hit(
                f"{model.name} answers no conversations: its tokenizer has no chat template",
                f"put the template that the model was trained with into {_TEMPLATE} of its "
                "checkpoint, then render; or have clients use /v1/completions",
                model=model,
            )
        return


def _steps(model: Model, repository: Repository) -> Iterator[Model]:
    """Those of an ensemble that are here; a model that is none is its only one."""
    names = [step.model_name for step in model.config.message.ensemble_scheduling.step]
    yield from (
        repository.models[name] for name in names or [model.name] if name in repository.models
    )


def _has_template(step: Model, folder: str) -> bool:
    """As the tokenizer step decides; true where that cannot be read."""
    if (step.path / folder / _TEMPLATE).is_file():
        return True
    path = step.path / folder / _SETTINGS
    if not path.is_file():
        return False
    try:
        settings = json.loads(read_small(path, _LARGEST_SETTINGS))
    except (UnreadableError, ValueError):
        return True
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


@error(
    "TC921 alias-without-adapters",
    summary="an alias of the frontend for an adapter of a model that takes none",
    why="Each request under that name is refused: the model has no input lora_name.",
    shows="elsewhere",
)
def adapters(model: Model, repository: Repository) -> Iterator[Hit]:
    offered = repository.target.openai
    if offered is None or not model.is_readable:
        return
    if _ADAPTER in {tensor.name for tensor in model.config.message.input}:
        return
    for alias, target in offered.aliases.items():
        base, _, adapter = target.partition(":")
        if adapter and base == model.name:
            yield Hit(
                f"frontend.aliases has {alias}: {target}, but {model.name} takes no adapters",
                f"name the model alone, {alias}: {base}; or serve it with an engine that has "
                "adapters",
                model=model,
            )
