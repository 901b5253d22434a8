# SPDX-License-Identifier: Apache-2.0
"""Write the checkpoint folder so that transformers 4 and 5 both read it, and read it back."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageClassification, ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIZE = 32
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"height": SIZE, "width": SIZE},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write_processor(folder: Path) -> None:
    """Write how an image becomes the model's input."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(PROCESSOR, indent=2)
    (folder / "preprocessor_config.json").write_text(text + "\n", encoding="utf-8")


def load_processor(folder: Path) -> ViTImageProcessorPil:
    """Load it with PIL as its library: torchvision's results differ a little."""
    return ViTImageProcessorPil.from_pretrained(folder, local_files_only=True)


def save(model: ViTForImageClassification, folder: Path) -> None:
    """Write the model into ``folder``."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    # Version 4's word for what transformers 5 calls dtype.
    config = json.loads(path.read_text(encoding="utf-8")) | {"torch_dtype": "float32"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    # safetensors writes a file that only its owner may read.
    (folder / "model.safetensors").chmod(0o644)


def load(folder: Path) -> ViTForImageClassification:
    """Load the model as a user would, from the folder alone."""
    return AutoModelForImageClassification.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).eval()
