# SPDX-License-Identifier: Apache-2.0
"""TC92x: models that the frontend offers for requests they cannot answer.

Sources: docs/reference/openai.md; https://huggingface.co/docs/transformers/main/chat_templating
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error
from tritonctl.checks.small_file import UnreadableError, is_file, read_small

_MESSAGES, _ADAPTER = "messages", "lora_name"
_TEMPLATE, _SETTINGS = "chat_template.jinja", "tokenizer_config.json"
_MAX_SETTINGS_BYTES = 32 << 20


@advice(
    "TC920 no-chat-template",
    summary="a text model behind the frontend whose tokenizer has no chat template",
    reason="The frontend refuses each request to /v1/chat/completions; /v1/completions works.",
    shows="elsewhere",
)
def missing_chat_template(model: Model, repository: Repository) -> Iterator[Hit]:
    frontend = repository.target.openai
    if frontend is None or model.name not in frontend.models:
        return
    if _MESSAGES not in {tensor.name for tensor in model.config.message.input}:
        return
    for step in _step_models(model, repository):
        folder = f"{step.served_version}/tokenizer"
        if not is_file(step.path / folder / "tokenizer.json"):
            continue
        if not _has_template(step, folder):
            yield Hit(
                f"{model.name} cannot answer chats: its tokenizer has no chat template",
                f"put the template that the model was trained with into {_TEMPLATE} of its "
                "checkpoint, then render; or have clients use /v1/completions",
                model=model,
            )
        return


def _step_models(model: Model, repository: Repository) -> Iterator[Model]:
    """Yield the ensemble's models in the repository; for another model, the model itself."""
    names = [step.model_name for step in model.config.message.ensemble_scheduling.step]
    yield from (
        repository.models[name] for name in names or [model.name] if name in repository.models
    )


def _has_template(step: Model, folder: str) -> bool:
    """Whether the tokenizer has a chat template, as the tokenizer step decides; True if unknown."""
    if is_file(step.path / folder / _TEMPLATE):
        return True
    path = step.path / folder / _SETTINGS
    if not is_file(path):
        return False
    try:
        settings = json.loads(read_small(path, _MAX_SETTINGS_BYTES))
    except (UnreadableError, ValueError):
        return True
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


@error(
    "TC921 alias-without-adapters",
    summary="a frontend alias for an adapter of a model without adapters",
    reason="The frontend refuses each request under that name: the model has no input lora_name.",
    shows="elsewhere",
)
def alias_without_adapters(model: Model, repository: Repository) -> Iterator[Hit]:
    frontend = repository.target.openai
    if frontend is None or not model.is_readable:
        return
    if _ADAPTER in {tensor.name for tensor in model.config.message.input}:
        return
    for alias, target in frontend.aliases.items():
        base, _, adapter = target.partition(":")
        if adapter and base == model.name:
            yield Hit(
                f"frontend.aliases has {alias}: {target}, but {model.name} takes no adapters",
                f"write {alias}: {base}, or serve the model with an engine that has adapters",
                model=model,
            )
