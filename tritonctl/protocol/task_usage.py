# SPDX-License-Identifier: Apache-2.0
"""How to use a model of each task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tritonctl.errors import UsageError


@dataclass(frozen=True)
class TaskUsage:
    """A task's purpose, and the command and method to use."""

    purpose: str  # what a model does, as a verb phrase
    command: str  # of tritonctl, with {model}
    method: str  # of TritonClient


TASK_USAGE = {
    "text_generation": TaskUsage("streams text", "generate {model} PROMPT", "stream"),
    "tensors": TaskUsage("takes tensors", "infer {model} --input NAME=JSON", "infer"),
    "embedding": TaskUsage("embeds texts", "embed {model} FILE", "embed"),
    "image_embedding": TaskUsage("embeds images", "embed {model} --image FILE", "embed_images"),
    "rerank": TaskUsage(
        "scores texts against a query", "rerank {model} --query TEXT FILE", "rerank"
    ),
    "classification": TaskUsage("classifies texts", "classify {model} FILE", "classify"),
    "image_classification": TaskUsage(
        "classifies images", "classify {model} --image FILE", "classify_images"
    ),
    "token_classification": TaskUsage(
        "finds entities in texts", "classify {model} FILE", "classify_tokens"
    ),
}


def refuse_other_task(model: str, task: str, allowed_tasks: Collection[str]) -> None:
    """Raise UsageError for a known task that is not allowed; accept unknown tasks."""
    if task in allowed_tasks or task not in TASK_USAGE:
        return
    usage = TASK_USAGE[task]
    raise UsageError(
        f"{model} {usage.purpose} (task {task})",
        remedy=f"use `tritonctl {usage.command.format(model=model)}`, from Python "
        f"`TritonClient.{usage.method}`",
    )
