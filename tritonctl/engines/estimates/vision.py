# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model of images as the onnxruntime builder exports it, in the sizes of an encoder.

Patches are its tokens. Of convolutions each place of the first stage is one, which is the widest;
no attention is between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonctl.engines.estimates.checkpoints import Kind, Sizes, Tensor, json_object, read_tensors
from tritonctl.engines.estimates.encoders import Encoder, architecture_of, is_float

IMAGE_TASKS = ("image_classification", "image_embedding")
PROCESSORS = ("processor_config.json", "preprocessor_config.json")
# Of CLIP, with its two towers, what images do not need, and what texts do not.
_TEXT_TOWER = ("text_model.", "text_projection.", "logit_scale")
_IMAGE_TOWER = ("vision_model.", "visual_projection.", "logit_scale")
_CLIP, CLIP_TEXTS = "CLIPModel", "CLIPTextModelWithProjection"
# Of its configuration's classes, which files leave out.
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
# Of a stage, the tensors that exist at a time are as wide as this many times its own width.
_WIDER = 4
_STRIDE = 4  # of the first stage
_PIXELS = 224  # where no file says it
_MATRIX = 2


def read_vision(folder: Path, known: list[str], *, allow_pickle: bool = False) -> Encoder:
    """Read a checkpoint folder; `known`: architectures that the builder exports.

    Raises ConfigurationError.
    """
    file = folder / "config.json"
    config = json_object(file)
    name = architecture_of(file, config, known)
    tower = config.get("vision_config")
    own = tower if isinstance(tower, dict) else config
    if name.startswith("CLIP"):
        own = _CLIP_IMAGE_SIZES | own
    tensors = _without(_TEXT_TOWER, folder, allow_pickle=allow_pickle)
    pixels = _pixels(folder, own)
    stages = own.get("hidden_sizes") or own.get("embed_dim")
    if stages:
        width = stages[0] if isinstance(stages, list) else stages
        return Encoder(
            architecture=name,
            num_hidden_layers=sum(own.get("depths") or [1]),
            hidden_size=width,
            intermediate_size=_WIDER * width,
            num_attention_heads=0,
            longest=(pixels // _STRIDE) ** 2,
            outputs_per_token=0,
            tensors=tensors,
        )
    sizes = Sizes(file, own)
    hidden = sizes.need("hidden_size")
    return Encoder(
        architecture=name,
        num_hidden_layers=sizes.need("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=sizes.get("intermediate_size") or _WIDER * hidden,
        num_attention_heads=sizes.need("num_attention_heads"),
        # And the first token, whose state is the answer's.
        longest=(pixels // sizes.need("patch_size")) ** 2 + 1,
        outputs_per_token=0,
        tensors=tensors,
    )


def is_clip(folder: Path) -> bool:
    """Whether a checkpoint has CLIP's tower of texts."""
    file = folder / "config.json"
    names = json_object(file).get("architectures") if file.is_file() else None
    return isinstance(names, list) and bool(names) and names[0] in (_CLIP, CLIP_TEXTS)


def read_clip_texts(folder: Path, *, allow_pickle: bool = False) -> Encoder:
    """Read CLIP's tower of texts, which answers a vector for each. Raises ConfigurationError."""
    file = folder / "config.json"
    config = json_object(file)
    tower = config.get("text_config")
    sizes = Sizes(file, _CLIP_TEXT_SIZES | (tower if isinstance(tower, dict) else config))
    return Encoder(
        architecture=CLIP_TEXTS,
        num_hidden_layers=sizes.need("num_hidden_layers"),
        hidden_size=sizes.need("hidden_size"),
        intermediate_size=sizes.need("intermediate_size"),
        num_attention_heads=sizes.need("num_attention_heads"),
        longest=sizes.need("max_position_embeddings"),
        outputs_per_token=0,
        tensors=_without(_IMAGE_TOWER, folder, allow_pickle=allow_pickle),
    )


def _without(tower: tuple[str, ...], folder: Path, *, allow_pickle: bool) -> tuple[Tensor, ...]:
    """The tensors of a checkpoint whose names do not begin like those of a tower."""
    tensors = read_tensors(folder, allow_pickle=allow_pickle)
    kept = (tensor for tensor in tensors if not tensor.name.startswith(tower))
    return tuple(replace(tensor, role=_role(tensor)) for tensor in kept)


def _role(tensor: Tensor) -> Kind:
    """Only matrices become integers; positions are a table, and kernels stay as they are."""
    if len(tensor.shape) != _MATRIX or not is_float(tensor):
        return "other"
    return "embedding" if "embedding" in tensor.name else "linear"


def _pixels(folder: Path, own: Mapping[str, Any]) -> int:
    """The height of an image: the model's, or what its processor makes."""
    for given in (own.get("image_size"), *_processed(folder)):
        size = max(given) if isinstance(given, list) and given else given
        if isinstance(size, int):
            return size
    return _PIXELS


def _processed(folder: Path) -> list[Any]:
    found: list[Any] = []
    for name in PROCESSORS:
        if not (folder / name).is_file():
            continue
        raw = json_object(folder / name)
        settings = raw.get("image_processor", raw)
        for key in ("crop_size", "size"):
            given = settings.get(key) if isinstance(settings, dict) else None
            found.append(list(given.values()) if isinstance(given, dict) else given)
    return found
