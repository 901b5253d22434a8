# SPDX-License-Identifier: Apache-2.0
"""Sizes and weights of a Hugging Face encoder as the onnxruntime builder exports it.

Read from `config.json` and the headers of the safetensors, as checkpoints.py does for decoders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import (
    CheckpointTensor,
    ConfigReader,
    Kind,
    json_object,
    offset_positions,
    read_tensors,
)
from tritonctl.engines.estimates.decoders import WeightBytes
from tritonctl.engines.estimates.packed_weights import stored_weights
from tritonctl.engines.estimates.quantisation import describe, read_quantisation
from tritonctl.errors import ConfigurationError

_TABLES = {
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "relative_attention_bias",
}
# Layers over one vector per text become a Gemm, which is fused with its activation, not a MatMul.
_PER_TEXT = {"pooler", "classifier", "pre_classifier"}
# Heads that only pre-training uses, or that the requested architecture does not have.
_DROPPED = {"cls", "lm_head", "vocab_transform", "vocab_layer_norm", "vocab_projector"}
_DROPPED |= {"predictions", "discriminator_predictions", "generator_predictions", "sop_classifier"}
_MATRIX = 2
# The settings file of sentence-transformers, and the tasks that use it.
_SETTINGS, _SENTENCE_TASKS = "sentence_bert_config.json", ("embedding", "rerank")


@dataclass(frozen=True)
class ExportedEncoder:
    """An encoder as the builder exports it."""

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    max_length: int  # tokens of a text
    outputs_per_token: int
    tensors: tuple[CheckpointTensor, ...]  # exported ones
    packed: WeightBytes | None = None  # weights of an already quantised checkpoint
    notes: tuple[str, ...] = ()  # about the quantisation


def read_encoder(
    folder: Path,
    exportable: list[str],
    task: str,
    pooling: str = "none",
    *,
    allow_pickle: bool = False,
) -> ExportedEncoder:
    """Read a checkpoint folder of one of the `exportable` architectures.

    `pooling` is the option of the task tensors; other than "none" the graph returns one vector per
    text. Raises ConfigurationError.
    """
    file = folder / "config.json"
    config = json_object(file)
    name = architecture_of(file, config, exportable)
    sizes = ConfigReader(file, config)
    hidden = sizes.require("hidden_size")
    # Classifiers and embeddings have one output per text, all others one per token.
    classifies = name.endswith("ForSequenceClassification") and task != "embedding"
    pooled = task == "embedding" or pooling != "none"
    labels = len(config.get("id2label") or ()) if task == "token_classification" else 0
    tensors = read_tensors(folder, allow_pickle=allow_pickle)
    tensors = _exported_tensors(tensors, has_pooler=classifies or not (pooled or labels))
    quantisation = read_quantisation(folder)
    packed = None if quantisation is None else stored_weights([tensors], quantisation)
    return ExportedEncoder(
        architecture=name,
        num_hidden_layers=sizes.require("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=sizes.require("intermediate_size"),
        num_attention_heads=sizes.require("num_attention_heads"),
        max_length=int(min(_position_limit(sizes, name), _sentence_limit(folder, task))),
        outputs_per_token=0 if classifies or pooled else labels or hidden,
        tensors=tuple(tensors),
        packed=packed,
        notes=tuple(describe(quantisation, packed)) if quantisation and packed else (),
    )


def architecture_of(file: Path, config: dict[str, Any], exportable: list[str]) -> str:
    """Return the first architecture in config.json. Raises ConfigurationError if unsupported."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    if name not in exportable:
        raise ConfigurationError(
            f"{file}: no plan for the architecture {name}: the builder does not export it",
            remedy=f"it exports: {', '.join(exportable)}; for others provide the model.onnx",
        )
    return name


def _sentence_limit(folder: Path, task: str) -> float:
    """Return the tokens at which sentence-transformers truncates; infinite without a setting."""
    file = folder / _SETTINGS
    max_seq_length = json_object(file).get("max_seq_length") if file.is_file() else None
    return (
        max_seq_length if isinstance(max_seq_length, int) and task in _SENTENCE_TASKS else math.inf
    )


def _position_limit(sizes: ConfigReader, architecture: str) -> int:
    positions = sizes.require("max_position_embeddings")
    if not architecture.startswith(offset_positions()):
        return positions
    return positions - (sizes.get("pad_token_id") or 0) - 1


def _exported_tensors(
    tensors: list[CheckpointTensor], *, has_pooler: bool
) -> list[CheckpointTensor]:
    exported = []
    for tensor in tensors:
        parts = set(tensor.name.split("."))
        # Pooling in the graph leaves the checkpoint's pooler unused.
        if parts & _DROPPED or ("pooler" in parts and not has_pooler):
            continue
        exported.append(replace(tensor, role=_role(tensor, parts)))
    return exported


def _role(tensor: CheckpointTensor, parts: set[str]) -> Kind:
    if len(tensor.shape) < _MATRIX or not is_float(tensor):
        return "other"
    if parts & _TABLES:
        return "embedding"
    return "head" if parts & _PER_TEXT else "linear"


def is_float(tensor: CheckpointTensor) -> bool:
    """Whether a tensor has floating-point weights; position ids are integers."""
    return tensor.dtype.startswith(("F", "BF"))
