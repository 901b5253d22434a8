# SPDX-License-Identifier: Apache-2.0
"""The architectures that this builder supports. Standard library only."""

from pathlib import Path

from buildlib.builder_toml import read_description
from onnxlib.graph import RuntimeSupport

_DESCRIPTION = read_description(Path(__file__).parent)
_ALL = tuple(_DESCRIPTION["architectures"])
_VISION = ("CLIP", "ConvNext", "DeiT", "Dinov2", "ResNet", "Swin", "ViT")
IMAGE_ARCHITECTURES = tuple(name for name in _ALL if name.startswith(_VISION))
# Text models.
ARCHITECTURES = tuple(name for name in _ALL if name not in IMAGE_ARCHITECTURES)
_PIXELS = "it takes pixels: set task to image_classification, or to image_embedding for vectors"
REFUSAL_REASONS = dict.fromkeys(IMAGE_ARCHITECTURES, _PIXELS)

# These use relative positions.
RELATIVE_POSITIONS = ("ModernBert",)

# The support of onnxruntime 1.31.1, the version of requirements.txt, with its contrib operators.
ONNX_RUNTIME = RuntimeSupport(
    name="onnxruntime 1.31",
    min_opset=7,
    max_opset=26,
    max_ir_version=13,
    domains=frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"}),
)
