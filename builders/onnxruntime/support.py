# SPDX-License-Identifier: Apache-2.0
"""What this builder takes. Standard library only."""

from pathlib import Path

from buildlib.builder_toml import read_description
from onnxlib.graph import Runtime

_DESCRIPTION = read_description(Path(__file__).parent)
ARCHITECTURES = tuple(_DESCRIPTION["architectures"])
REFUSED: dict[str, str] = _DESCRIPTION["refused"]

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
