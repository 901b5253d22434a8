# SPDX-License-Identifier: Apache-2.0
"""What a model of each task does, and what it is asked with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tritonctl.errors import UsageError


@dataclass(frozen=True)
class Way:
    """`does`: of a model. `command`, `method`: with which to ask it."""

    does: str
    command: str
    method: str


WAYS = {
    "text_generation": Way("streams text", "generate {model} PROMPT", "stream"),
    "tensors": Way("takes tensors", "infer {model} --input NAME=JSON", "infer"),
    "embedding": Way("embeds texts", "embed {model} FILE", "embed"),
    "image_embedding": Way("embeds images", "embed {model} --image FILE", "embed_images"),
    "rerank": Way("scores texts against a query", "rerank {model} --query TEXT FILE", "rerank"),
    "classification": Way("classifies texts", "classify {model} FILE", "classify"),
    "image_classification": Way(
        "classifies images", "classify {model} --image FILE", "classify_images"
    ),
    "token_classification": Way(
        "finds entities in texts", "classify {model} FILE", "classify_tokens"
    ),
}


def refuse_other_task(model: str, task: str, wanted: Collection[str]) -> None:
    """Raises UsageError for a task of ours that is not wanted; nobody knows those of others."""
    if task in wanted or task not in WAYS:
        return
    way = WAYS[task]
    raise UsageError(
        f"{model} {way.does} (task {task})",
        remedy=f"ask it with `tritonctl {way.command.format(model=model)}`, from Python with "
        f"`TritonClient.{way.method}`",
    )
