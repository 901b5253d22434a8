# SPDX-License-Identifier: Apache-2.0
"""What this builder takes. Standard library only."""

from pathlib import Path

from buildlib.builder_toml import read_description
from onnxlib.graph import Runtime

_DESCRIPTION = read_description(Path(__file__).parent)
_ALL = tuple(_DESCRIPTION["architectures"])
_VISION = ("CLIP", "ConvNext", "DeiT", "Dinov2", "ResNet", "Swin", "ViT")
IMAGE_ARCHITECTURES = tuple(name for name in _ALL if name.startswith(_VISION))
# Of texts.
ARCHITECTURES = tuple(name for name in _ALL if name not in IMAGE_ARCHITECTURES)
_PIXELS = "it takes pixels: set task to image_classification, or to image_embedding for vectors"
REFUSED = dict.fromkeys(IMAGE_ARCHITECTURES, _PIXELS)

# These count positions from the padding id on: so many of the table are never used.
OFFSET_POSITIONS = ("Camembert", "MPNet", "Roberta", "XLMRoberta")
# These look at how far tokens are from each other.
RELATIVE_POSITIONS = ("ModernBert",)

# What onnxruntime 1.31.1, the version of requirements.txt, accepts; its own operators included.
ONNX_RUNTIME = Runtime(
    name="onnxruntime 1.31",
    lowest_opset=7,
    highest_opset=26,
    highest_ir_version=13,
    domains=frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"}),
)
