# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint is for, as its own files say it, and as task/task.json keeps it.

Standard library only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError

SCHEMA = "tritonctl.task/1"
FILE = "task.json"

EMBEDDING = "embedding"
CLASSIFICATION = "classification"
RERANK = "rerank"
TAGGING = "token_classification"
TEXT_TASKS = (EMBEDDING, CLASSIFICATION, RERANK, TAGGING)

# The graph's outputs. FP32[dimension], FP32[labels], FP32[1] and FP32[tokens, labels] a row.
OUTPUTS = {
    EMBEDDING: "embedding",
    CLASSIFICATION: "scores",
    RERANK: "score",
    TAGGING: "token_scores",
}
# The inputs of encoders, in the order of the exported graph.
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The mask of what is pooled, where a prompt's tokens are not.
POOLING_MASK = "pooling_mask"


@dataclass(frozen=True)
class Pooling:
    """Tokens to one vector: each mode's, concatenated in this order."""

    modes: tuple[str, ...]
    include_prompt: bool = True


@dataclass(frozen=True)
class Dense:
    """A linear layer with its weights in `folder`; `activation` is the name of a torch.nn class."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True)
class Normalize:
    """Vectors of length 1."""


Step = Pooling | Dense | Normalize


@dataclass(frozen=True)
class Text:
    """How a text becomes token ids. `inputs`: of the graph, but for the mask of the pooling.

    `max_seq_len`: tokens, special ones included. `lower_case`: beyond what the tokenizer does.
    `pair`: every item has two texts.
    """

    max_seq_len: int
    pad_id: int
    inputs: tuple[str, ...]
    lower_case: bool = False
    pair: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    truncation_side: str = "right"


@dataclass(frozen=True)
class Task:
    """A compiled task of texts. `steps`: of embeddings, after the encoder.

    `activation`: softmax, sigmoid or none, of the scores. `reference`: library, and the class of
    it that answers as the checkpoint does.
    """

    name: str
    text: Text
    library: str
    reference: str
    steps: tuple[Step, ...] = ()
    dimension: int | None = None
    labels: tuple[str, ...] = ()
    activation: str = "none"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The graph's inputs, INT64[tokens] a row."""
        return (*self.text.inputs, *(() if self.text.include_prompt else (POOLING_MASK,)))

    @property
    def output(self) -> str:
        """The graph's output."""
        return OUTPUTS[self.name]

    @property
    def normalized(self) -> bool:
        """Whether vectors have the length 1: nothing changes it after the last Normalize."""
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    def record(self, version: str) -> dict[str, Any]:
        """task.json; `version`: of the reference library. Absent is what does not apply."""
        made: dict[str, Any] = {"schema": SCHEMA, "task": self.name, "text": _text(self.text)}
        if self.labels:
            made["labels"] = list(self.labels)
        if self.name == EMBEDDING:
            made["embedding"] = {"dimension": self.dimension, "normalized": self.normalized}
        else:
            made["activation"] = self.activation
        made["reference"] = {
            "library": self.library,
            "version": version,
            "class": self.reference,
        }
        return made


def _text(text: Text) -> dict[str, Any]:
    return {
        "max_seq_len": text.max_seq_len,
        "pad_id": text.pad_id,
        "lower_case": text.lower_case,
        "inputs": list(text.inputs),
        "pair": text.pair,
        "prompts": dict(text.prompts),
        "default_prompt": text.default_prompt,
        "include_prompt": text.include_prompt,
        "truncation_side": text.truncation_side,
    }


def write_task(task: Task, folder: Path, *, version: str) -> None:
    """Write task.json into `folder`."""
    text = json.dumps(task.record(version), indent=2, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def refuse_remote_code(
    folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool, task: str
) -> None:
    """Raise BuildError for code in the checkpoint: what it computes cannot be compiled or proven.

    Also for a request that would trust it.
    """
    remedy = (
        "Use a checkpoint of a class that transformers has. Or export it yourself and serve it "
        "with `task: tensors`, and your own steps around it."
    )
    if config.get("auto_map"):
        raise BuildError(
            f"{folder / 'config.json'}: brings its own code (auto_map), and the task {task} is "
            "made of known classes only",
            remedy=remedy,
        )
    if trust_remote_code:
        raise BuildError(
            f"engine.trust_remote_code is true, and the task {task} is made of known classes only",
            remedy="Remove engine.trust_remote_code.",
        )
