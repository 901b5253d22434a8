# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face encoder as the onnxruntime builder exports it: sizes, and which weights it keeps.

Read from `config.json` and the headers of the safetensors, as checkpoints.py does for decoders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import Kind, Sizes, Tensor, json_object, read_tensors
from tritonctl.engines.estimates.decoders import Weights
from tritonctl.engines.estimates.packed_weights import stored_weights
from tritonctl.engines.estimates.quantisation import described, read_quantisation
from tritonctl.errors import ConfigurationError

# These count positions from the padding id on: so many of the table are never used.
_OFFSET_POSITIONS = ("Camembert", "MPNet", "Roberta", "XLMRoberta")
_TABLES = {
    "word_embeddings",
    "position_embeddings",
    "token_type_embeddings",
    "relative_attention_bias",
}
# Layers over one vector per text become a Gemm, which is fused with its activation, not a MatMul.
_PER_TEXT = {"pooler", "classifier", "pre_classifier"}
# What pre-training predicted with, or a classifier that the architecture asked for has not.
_DROPPED = {"cls", "lm_head", "vocab_transform", "vocab_layer_norm", "vocab_projector"}
_DROPPED |= {"predictions", "discriminator_predictions", "generator_predictions", "sop_classifier"}
_MATRIX = 2
# Of sentence-transformers, and what it computes.
_SETTINGS, _SENTENCE_TASKS = "sentence_bert_config.json", ("embedding", "rerank")


@dataclass(frozen=True)
class Encoder:
    """Sizes of an encoder. `longest`: tokens of a text at most; `tensors`: those exported.

    `packed`: the weights of a checkpoint that is quantised already, `notes` what to know of that.
    """

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    longest: int
    outputs_per_token: int
    tensors: tuple[Tensor, ...]
    packed: Weights | None = None
    notes: tuple[str, ...] = ()


def read_encoder(
    folder: Path, known: list[str], task: str, pooling: str = "none", *, allow_pickle: bool = False
) -> Encoder:
    """Read a checkpoint folder; `known`: architectures that the builder exports.

    `pooling`: the option of the task tensors, where the graph makes one vector for each text.

    Raises ConfigurationError.
    """
    file = folder / "config.json"
    config = json_object(file)
    name = architecture_of(file, config, known)
    sizes = Sizes(file, config)
    hidden = sizes.need("hidden_size", "dim")
    # A vector or scores for each text; all others answer for each token.
    classifies = name.endswith("ForSequenceClassification") and task != "embedding"
    pooled = task == "embedding" or pooling != "none"
    labels = len(config.get("id2label") or ()) if task == "token_classification" else 0
    tensors = read_tensors(folder, allow_pickle=allow_pickle)
    tensors = _exported(tensors, has_pooler=classifies or not (pooled or labels))
    quantisation = read_quantisation(folder)
    packed = None if quantisation is None else stored_weights([tensors], quantisation)
    return Encoder(
        architecture=name,
        num_hidden_layers=sizes.need("num_hidden_layers", "n_layers"),
        hidden_size=hidden,
        intermediate_size=sizes.need("intermediate_size", "hidden_dim"),
        num_attention_heads=sizes.need("num_attention_heads", "n_heads"),
        longest=int(min(_longest(sizes, name), _longest_text(folder, task))),
        outputs_per_token=0 if classifies or pooled else labels or hidden,
        tensors=tuple(tensors),
        packed=packed,
        notes=tuple(described(quantisation, packed)) if quantisation and packed else (),
    )


def architecture_of(file: Path, config: dict[str, Any], known: list[str]) -> str:
    """The first that config.json names. Raises ConfigurationError for one that is not `known`."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    if name not in known:
        raise ConfigurationError(
            f"{file}: no plan for the architecture {name}: the builder does not export it",
            remedy=f"it exports: {', '.join(known)}; of others give the model.onnx",
        )
    return name


def _longest_text(folder: Path, task: str) -> float:
    """Tokens at which sentence-transformers cuts; infinite where it does not say."""
    file = folder / _SETTINGS
    asked = json_object(file).get("max_seq_length") if file.is_file() else None
    return asked if isinstance(asked, int) and task in _SENTENCE_TASKS else math.inf


def _longest(sizes: Sizes, architecture: str) -> int:
    positions = sizes.need("max_position_embeddings")
    if not architecture.startswith(_OFFSET_POSITIONS):
        return positions
    return positions - (sizes.get("pad_token_id") or 0) - 1


def _exported(tensors: list[Tensor], *, has_pooler: bool) -> list[Tensor]:
    kept = []
    for tensor in tensors:
        parts = set(tensor.name.split("."))
        # A vector per text made in the graph leaves the checkpoint's own pooler unused.
        if parts & _DROPPED or ("pooler" in parts and not has_pooler):
            continue
        kept.append(replace(tensor, role=_role(tensor, parts)))
    return kept


def _role(tensor: Tensor, parts: set[str]) -> Kind:
    if len(tensor.shape) < _MATRIX or not is_float(tensor):
        return "other"
    if parts & _TABLES:
        return "embedding"
    return "head" if parts & _PER_TEXT else "linear"


def is_float(tensor: Tensor) -> bool:
    """Whether a tensor of a safetensors file has weights; position ids are whole numbers."""
    return tensor.dtype.startswith(("F", "BF"))
