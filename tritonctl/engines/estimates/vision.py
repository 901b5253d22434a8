# SPDX-License-Identifier: Apache-2.0
"""Sizes of a Hugging Face vision model, expressed as an encoder.

Its patches count as tokens. For convolutions, the positions of the first and widest stage count as
tokens, without attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import (
    CheckpointTensor,
    ConfigReader,
    Kind,
    json_object,
    read_tensors,
)
from tritonctl.engines.estimates.encoders import ExportedEncoder, architecture_of, is_float

IMAGE_TASKS = ("image_classification", "image_embedding")
PROCESSORS = ("processor_config.json", "preprocessor_config.json")
# CLIP's two towers: tensors that images do not need, and tensors that texts do not need.
_TEXT_TOWER = ("text_model.", "text_projection.", "logit_scale")
_IMAGE_TOWER = ("vision_model.", "visual_projection.", "logit_scale")
_CLIP, CLIP_TEXTS = "CLIPModel", "CLIPTextModelWithProjection"
# Defaults of CLIP's configuration classes, which its files omit.
_CLIP_TEXT_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
_CLIP_IMAGE_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 32,
    "image_size": 224,
}
# Live tensors of a stage, as a multiple of its width.
_WIDER = 4
_STRIDE = 4  # of the first stage
_PIXELS = 224  # default
_MATRIX = 2


def read_vision(
    folder: Path, exportable: list[str], *, allow_pickle: bool = False
) -> ExportedEncoder:
    """Read a checkpoint folder of one of the `exportable` architectures.

    Raises ConfigurationError.
    """
    file = folder / "config.json"
    config = json_object(file)
    name = architecture_of(file, config, exportable)
    tower = config.get("vision_config")
    image_config = tower if isinstance(tower, dict) else config
    if name.startswith("CLIP"):
        image_config = _CLIP_IMAGE_SIZES | image_config
    tensors = _tensors_without(_TEXT_TOWER, folder, allow_pickle=allow_pickle)
    pixels = _pixels(folder, image_config)
    stages = image_config.get("hidden_sizes") or image_config.get("embed_dim")
    if stages:
        width = stages[0] if isinstance(stages, list) else stages
        return ExportedEncoder(
            architecture=name,
            num_hidden_layers=sum(image_config.get("depths") or [1]),
            hidden_size=width,
            intermediate_size=_WIDER * width,
            num_attention_heads=0,
            max_length=(pixels // _STRIDE) ** 2,
            outputs_per_token=0,
            tensors=tensors,
        )
    sizes = ConfigReader(file, image_config)
    hidden = sizes.require("hidden_size")
    return ExportedEncoder(
        architecture=name,
        num_hidden_layers=sizes.require("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=sizes.get("intermediate_size") or _WIDER * hidden,
        num_attention_heads=sizes.require("num_attention_heads"),
        # Plus the class token.
        max_length=(pixels // sizes.require("patch_size")) ** 2 + 1,
        outputs_per_token=0,
        tensors=tensors,
    )


def is_clip(folder: Path) -> bool:
    """Whether a checkpoint has CLIP's tower of texts."""
    file = folder / "config.json"
    names = json_object(file).get("architectures") if file.is_file() else None
    return isinstance(names, list) and bool(names) and names[0] in (_CLIP, CLIP_TEXTS)


def read_clip_texts(folder: Path, *, allow_pickle: bool = False) -> ExportedEncoder:
    """Read CLIP's tower of texts, which answers a vector for each. Raises ConfigurationError."""
    file = folder / "config.json"
    config = json_object(file)
    tower = config.get("text_config")
    sizes = ConfigReader(file, _CLIP_TEXT_SIZES | (tower if isinstance(tower, dict) else config))
    return ExportedEncoder(
        architecture=CLIP_TEXTS,
        num_hidden_layers=sizes.require("num_hidden_layers"),
        hidden_size=sizes.require("hidden_size"),
        intermediate_size=sizes.require("intermediate_size"),
        num_attention_heads=sizes.require("num_attention_heads"),
        max_length=sizes.require("max_position_embeddings"),
        outputs_per_token=0,
        tensors=_tensors_without(_IMAGE_TOWER, folder, allow_pickle=allow_pickle),
    )


def _tensors_without(
    tower: tuple[str, ...], folder: Path, *, allow_pickle: bool
) -> tuple[CheckpointTensor, ...]:
    """Return the tensors of a checkpoint without those of a tower."""
    tensors = read_tensors(folder, allow_pickle=allow_pickle)
    remaining = (tensor for tensor in tensors if not tensor.name.startswith(tower))
    return tuple(replace(tensor, role=_role(tensor)) for tensor in remaining)


def _role(tensor: CheckpointTensor) -> Kind:
    """Return a tensor's role: only matrices are quantised; positions are a table."""
    if len(tensor.shape) != _MATRIX or not is_float(tensor):
        return "other"
    return "embedding" if "embedding" in tensor.name else "linear"


def _pixels(folder: Path, image_config: Mapping[str, Any]) -> int:
    """Return the height of an image, from the model's config or its processor's."""
    for size_option in (image_config.get("image_size"), *_processor_sizes(folder)):
        size = max(size_option) if isinstance(size_option, list) and size_option else size_option
        if isinstance(size, int):
            return size
    return _PIXELS


def _processor_sizes(folder: Path) -> list[Any]:
    sizes: list[Any] = []
    for name in PROCESSORS:
        if not (folder / name).is_file():
            continue
        raw = json_object(folder / name)
        settings = raw.get("image_processor", raw)
        for key in ("crop_size", "size"):
            size_option = settings.get(key) if isinstance(settings, dict) else None
            sizes.append(
                list(size_option.values()) if isinstance(size_option, dict) else size_option
            )
    return sizes
