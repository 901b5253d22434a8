# SPDX-License-Identifier: Apache-2.0
"""A project with a small model of each text task, and what they answer by numpy alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, processors

from tests import sample_tokenizers
from tests.servers import ON_FREE_PORTS
from tritonctl.engines.builds.engine import build_engine
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.repository.new_step import write_step

HERE = Path(__file__).parent
MAX_TOKENS, MAX_ROWS, WIDTH = 48, 8, 16
LABELS = ("bad", "fair", "good")
TAGS = ("O", "B-PER", "I-PER")
PROMPTS = {"query": "find : "}
TASKS = ("embedding", "classification", "rerank", "token_classification")
# The embedding model again: as one model, behind a response cache, and slowly, with a short queue.
WHOLE, KEPT, SLOW, SLOW_QUEUE = "whole", "kept", "slow", 2
_TYPES = "token_type_ids"
# Two engines in one graph of the project's own, between two steps of its own.
JUDGED = "judged"
_JUDGED = f"""\
schema: tritonctl/ensemble/v1
task: {JUDGED}
summary: a text tidied, judged and embedded; labels in capitals
max_batch_size: {MAX_ROWS}
inputs:
  - {{name: text_input, data_type: TYPE_STRING, dims: [1]}}
  - {{name: top_k, data_type: TYPE_INT32, dims: [1], optional: true}}
outputs:
  - {{name: label, data_type: TYPE_STRING, dims: [-1]}}
  - {{name: score, data_type: TYPE_FP32, dims: [-1]}}
  - {{name: embedding, data_type: TYPE_FP32, dims: [-1]}}
steps:
  tidy:
    backend: tidy
    inputs: {{text: text_input}}
    outputs: {{tidied: _tidied}}
  classification:
    model: classification
    inputs: {{text_input: _tidied, top_k: top_k}}
    outputs: {{label: _label, score: score}}
  embedding:
    model: embedding
    inputs: {{text_input: _tidied}}
    outputs: {{embedding: embedding}}
  capitals:
    backend: capitals
    inputs: {{text: _label}}
    outputs: {{tidied: label}}
"""


def task_project(folder: Path, interpreter: Path) -> Project:
    """Each task in its steps, and the embedding as one model; built.

    interpreter: of the ONNX Runtime builder's environment.
    """
    shutil.copytree(HERE / "server" / "task_builder", folder / "builders" / "copied_task")
    subprocess.run([interpreter, HERE / "task_graphs.py", folder / "graphs"], check=True)
    _write_tokenizer(folder)
    models = {task: _model(folder, task) for task in TASKS}
    models[WHOLE] = models["embedding"] | {"serving": {"fused": True}}
    models[KEPT] = models["embedding"] | {"serving": {"cache": True}}
    slowly = {"fused": True, "queue": {"max_queue_size": SLOW_QUEUE}}
    models[SLOW] = _model(folder, "embedding", graph=SLOW) | {"serving": slowly}
    models[SLOW]["engine"] = models[SLOW]["engine"] | {"max_batch_size": 1}
    file = folder / "tritonctl.yaml"
    _write_own_graph(folder)
    content = {"schema": "tritonctl/v1", "models": models, "server": ON_FREE_PORTS}
    content["ensembles"] = {JUDGED: {}}
    file.write_text(json.dumps(content), encoding="utf-8")
    project = load_project(file)
    for name in models:
        build_engine(project, name, Silent())
    return project


def _write_own_graph(folder: Path) -> None:
    """With the step that `tritonctl new step` writes, as it is and changed."""
    (folder / "ensembles").mkdir()
    (folder / "ensembles" / f"{JUDGED}.yaml").write_text(_JUDGED, encoding="utf-8")
    for name in ("tidy", "capitals"):
        write_step(folder, name)
    capitals = folder / "python_backends" / "capitals"
    for name, old, new in (
        ("backend.toml", "dims = [1]", "dims = [-1]"),
        ("model.py", "    return words", "    return words.upper()"),
    ):
        text = (capitals / name).read_text(encoding="utf-8")
        assert old in text
        (capitals / name).write_text(text.replace(old, new), encoding="utf-8")


def _write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(sample_tokenizers.word_piece(folder)))
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    sample_tokenizers.save(tokenizer, folder)


def _model(folder: Path, task: str, graph: str = "") -> dict[str, Any]:
    """Its entry in the project; what it is made of lies in `folder`."""
    checkpoint = folder / "checkpoints" / (graph or task)
    checkpoint.mkdir(parents=True)
    shutil.copy(folder / "graphs" / (graph or task) / "model.onnx", checkpoint)
    shutil.copy(folder / "tokenizer.json", checkpoint)
    inputs = ["input_ids", "attention_mask", *([_TYPES] if task == "rerank" else [])]
    text: dict[str, Any] = {"max_seq_len": MAX_TOKENS, "pad_id": 0, "inputs": inputs}
    more: dict[str, Any] = {}
    if task == "embedding":
        text["prompts"] = PROMPTS
        more["embedding"] = {"dimension": WIDTH, "normalized": True}
    elif task == "rerank":
        text["pair"] = True
    else:
        more["labels"] = TAGS if task.startswith("token") else LABELS
    by_token = ["token_scores"] if task.startswith("token") else []
    padding = {"inputs": dict.fromkeys(inputs, 0), "outputs": by_token, "run_tokens": 32.0}
    records = {
        "config": {"model_type": "copied", "architectures": ["Copied"]},
        "task": {"schema": "tritonctl.task/1", "task": task, "text": text, **more},
        "padding": padding,
    }
    for name, record in records.items():
        (checkpoint / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    engine = {"builder": "copied_task", "precision": "fp32", "max_batch_size": MAX_ROWS}
    return {"task": task, "checkpoint": str(checkpoint), "engine": engine}


@dataclass(frozen=True)
class Reference:
    """What the models answer: the tokenizer and numpy, one text at a time, without padding."""

    tokenizer: Tokenizer
    table: NDArray[np.float32]
    matrix: NDArray[np.float32]
    column: NDArray[np.float32]

    @classmethod
    def of(cls, project: Project) -> Reference:
        """Of a project made here."""
        tokenizer = Tokenizer.from_file(str(project.root / "tokenizer.json"))
        tokenizer.enable_truncation(MAX_TOKENS, strategy="longest_first")
        with np.load(project.root / "graphs" / "rerank" / "weights.npz") as weights:
            return cls(tokenizer, weights["table"], weights["matrix"], weights["column"])

    def tokens(self, text: str, pair: str | None = None) -> int:
        """How many the model reads."""
        return len(self.tokenizer.encode(text, pair).ids)

    def embedding(self, text: str) -> NDArray[np.float32]:
        """FP32[WIDTH], of length 1."""
        mean = self._vectors(text).mean(axis=0)
        unit: NDArray[np.float32] = mean / np.linalg.norm(mean)
        return unit

    def scores(self, text: str) -> dict[str, float]:
        """By label."""
        logits = self._vectors(text).mean(axis=0) @ self.matrix
        return dict(zip(LABELS, _softmax(logits).tolist(), strict=True))

    def relevance(self, query: str, text: str) -> float:
        """From 0 to 1."""
        encoding = self.tokenizer.encode(query, text)
        weight = 1 + np.array(encoding.type_ids)[:, None]
        logit = (self.table[encoding.ids] * weight).sum(axis=0) @ self.column
        return float(1 / (1 + np.exp(-logit[0])))

    def tags(self, text: str) -> list[tuple[str, int, int]]:
        """Best tag, begin and end of each token of the text."""
        encoding = self.tokenizer.encode(text)
        best = (self.table[encoding.ids] @ self.matrix).argmax(axis=1)
        tokens = zip(best, encoding.offsets, encoding.special_tokens_mask, strict=True)
        return [(TAGS[tag], *offset) for tag, offset, special in tokens if not special]

    def _vectors(self, text: str) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self.table[self.tokenizer.encode(text).ids]
        return vectors


def _softmax(values: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(values - values.max())
    shares: NDArray[np.float32] = powers / powers.sum()
    return shares


def texts(
    count: int, words: Sequence[str] = ("play", "player", "believable", "日本", "x")
) -> list[str]:
    """Of very different lengths, some longer than the models read."""
    return [
        " ".join(words[(index + place) % len(words)] for place in range(index * 7 % 60))
        for index in range(count)
    ]
