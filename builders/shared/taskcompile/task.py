# SPDX-License-Identifier: Apache-2.0
"""A compiled text task, and the file task/task.json that stores it. Standard library only.

tasklib is the code of python_backends/ that reads the file when the task is served.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasklib.task_file import FILE, SCHEMA, TextSettings

from buildlib.problems import BuildError

EMBEDDING = "embedding"
CLASSIFICATION = "classification"
RERANK = "rerank"
TAGGING = "token_classification"
TEXT_TASKS = (EMBEDDING, CLASSIFICATION, RERANK, TAGGING)

# The graph's outputs: FP32[dimension], FP32[labels], FP32[1] and FP32[tokens, labels] per row.
OUTPUTS = {
    EMBEDDING: "embedding",
    CLASSIFICATION: "scores",
    RERANK: "score",
    TAGGING: "token_scores",
}
# A reranker's score before its activation, FP32[1] per row: where FP32 has no other score than 1 or
# 0, logits still rank.
LOGIT = "logit"
# The inputs of encoders, in the order of the exported graph.
TYPE_IDS = "token_type_ids"
TEXT_INPUTS = ("input_ids", "attention_mask", TYPE_IDS)
# The mask of the pooled tokens, if a prompt's tokens are not pooled.
POOLING_MASK = "pooling_mask"


@dataclass(frozen=True)
class Pooling:
    """Pools the tokens to one vector."""

    modes: tuple[str, ...]  # their vectors are concatenated in this order
    include_prompt: bool = True


@dataclass(frozen=True)
class Dense:
    """A linear layer."""

    folder: Path  # of its weights
    in_features: int
    out_features: int
    bias: bool
    activation: str  # a class of torch.nn
    residual: bool


@dataclass(frozen=True)
class Normalize:
    """Scales vectors to length 1."""


EmbeddingStep = Pooling | Dense | Normalize


@dataclass(frozen=True)
class TextTask:
    """A compiled text task."""

    name: str
    text: TextSettings
    library: str
    reference: str  # the class of `library` that gives the reference answers
    steps: tuple[EmbeddingStep, ...] = ()  # of embeddings, after the encoder
    dimension: int | None = None
    labels: tuple[str, ...] = ()
    activation: str = "none"  # of the scores: softmax, sigmoid or none

    @property
    def inputs(self) -> tuple[str, ...]:
        """The graph's inputs, each INT64[tokens] per row."""
        return (*self.text.inputs, *(() if self.text.include_prompt else (POOLING_MASK,)))

    @property
    def output(self) -> str:
        """The name of the task's output, the graph's first."""
        return OUTPUTS[self.name]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return (self.output, LOGIT) if self.name == RERANK else (self.output,)

    @property
    def normalized(self) -> bool:
        """Whether vectors have length 1: the last step is Normalize."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    def record(self, version: str) -> dict[str, Any]:
        """Return task.json with the keys that apply. `version`: of the reference library."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "task": self.name,
            "text": asdict(self.text),
        }
        if self.labels:
            content["labels"] = list(self.labels)
        if self.name == EMBEDDING:
            content["embedding"] = {"dimension": self.dimension, "normalized": self.normalized}
        else:
            content["activation"] = self.activation
        content["reference"] = {
            "library": self.library,
            "version": version,
            "class": self.reference,
        }
        return content


def write_task(task: TextTask, folder: Path, *, version: str) -> None:
    """Write task.json into `folder`."""
    text = json.dumps(task.record(version), indent=2, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def refuse_remote_code(
    folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool, task: str
) -> None:
    """Raise BuildError for a checkpoint with code, or a request that trusts such code.

    The code cannot be compiled or proven.
    """
    remedy = (
        "Use a checkpoint of a class that transformers has. Or export it yourself and serve it "
        "with `task: tensors`, and your own steps around it."
    )
    if config.get("auto_map"):
        raise BuildError(
            f"{folder / 'config.json'}: brings its own code (auto_map), and the task {task} "
            "supports known classes only",
            remedy=remedy,
        )
    if trust_remote_code:
        raise BuildError(
            f"engine.trust_remote_code is true, and the task {task} supports known classes only",
            remedy="Remove engine.trust_remote_code.",
        )
