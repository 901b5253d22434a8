# SPDX-License-Identifier: Apache-2.0
"""Writes a small model of images with random weights; runs in the builder's environment.

python tiny_vision.py CLASS FOLDER [PIXELS]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: TID251 - this script runs in the builder's environment
import transformers  # noqa: TID251 - same
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PIXELS = 32
POSITIONS = 24  # of CLIP's texts
ENDS = ("<|startoftext|>", "<|endoftext|>")
LABELS = ["kite", "lamp", "moth", "nail", "oboe"]
TRANSFORMER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "patch_size": 8,
}
STAGES: dict[str, Any] = {
    # As initialised, 1e-6, its blocks would add nothing.
    "ConvNext": {
        "depths": [1, 1, 2, 1],
        "hidden_sizes": [8, 16, 24, 32],
        "layer_scale_init_value": 1.0,
    },
    "ResNet": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "embedding_size": 8},
    "Swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIP": {"image_processor_type": "CLIPImageProcessor"},
    "ConvNext": {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875, **IMAGENET},
    "DeiT": {"image_processor_type": "DeiTImageProcessor"},
    "Dinov2": {"image_processor_type": "BitImageProcessor", **IMAGENET},
    "ResNet": {"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, **IMAGENET},
    "Swin": {"image_processor_type": "ViTImageProcessor", **IMAGENET},
    "ViT": {"image_processor_type": "ViTImageProcessorFast", "resample": 2},
}


def config_of(name: str, family: str, pixels: int) -> Any:
    """The configuration of a small model of this class."""
    kind = getattr(transformers, name).config_class
    vision = {**TRANSFORMER, "image_size": pixels}
    if family == "CLIP":
        tokenizer = clip_tokenizer()
        text = {
            **TRANSFORMER,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": POSITIONS,
            "eos_token_id": tokenizer.token_to_id(ENDS[1]),
        }
        text.pop("patch_size")
        if name == "CLIPModel":
            return kind(text_config=text, vision_config=vision, projection_dim=24)
        return kind(**(vision if "Vision" in name else text), projection_dim=24)
    sizes = STAGES.get(family, TRANSFORMER) | {"image_size": pixels}
    labels = {"id2label": dict(enumerate(LABELS))} if "Classification" in name else {}
    return kind(**sizes, **({"patch_size": 4} if family == "Swin" else {}), **labels)


def processor_of(family: str, pixels: int) -> dict[str, Any]:
    """A preprocessor_config.json that makes images of the model's size."""
    raw = PROCESSORS[family]
    if family in ("CLIP", "DeiT", "Dinov2"):  # resized a little larger, then cropped
        edge = pixels + 4
        size = {"height": edge, "width": edge} if family == "DeiT" else {"shortest_edge": edge}
        return {**raw, "size": size, "crop_size": pixels}
    return {**raw, "size": pixels}


def clip_tokenizer() -> Tokenizer:
    """CLIP's kind: a token in front, one at the end, whose state is the vector's."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=200, end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator([*map(chr, range(33, 127)), "the cat sat on the mat"], trainer)
    tokenizer.add_special_tokens(list(ENDS))
    first, last = ((end, tokenizer.token_to_id(end)) for end in ENDS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first[0]} $A {last[0]}", special_tokens=[first, last]
    )
    return tokenizer


def main() -> None:
    """Make and save it."""
    name, folder, *rest = sys.argv[1:]
    pixels = int(rest[0]) if rest else PIXELS
    family = next(prefix for prefix in PROCESSORS if name.startswith(prefix))
    torch.manual_seed(7)
    model = getattr(transformers, name)(config_of(name, family, pixels))
    for key, weights in model.named_parameters():
        # As initialised, all outputs would be nearly equal; norms stay as they are.
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=weights[0].numel() ** -0.5)
        elif key.endswith("bias"):
            torch.nn.init.normal_(weights, std=0.1)
    model.eval().save_pretrained(folder)
    if name in ("CLIPModel", "CLIPTextModelWithProjection"):
        start, end = ENDS
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=clip_tokenizer(),
            bos_token=start,
            eos_token=end,
            pad_token=end,
            model_max_length=POSITIONS,
        ).save_pretrained(folder)
    file = Path(folder) / "preprocessor_config.json"
    file.write_text(json.dumps(processor_of(family, pixels)), encoding="utf-8")


if __name__ == "__main__":
    main()
