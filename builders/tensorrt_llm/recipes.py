# SPDX-License-Identifier: Apache-2.0
"""The recipe of each precision. builders/compatibility.toml lists the GPUs and runtimes.

Worlds: `engine`, compiled engines of TensorRT-LLM up to 1.2.1 (its own checkpoint format);
`pytorch`, the PyTorch runtime, from 1.3.0rc21 on the only one (unified Hugging Face checkpoints).
builder.toml lists the same names, and those that measure activation ranges. Standard library only.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from buildlib.builder_toml import read_description
from buildlib.compatibility import precisions

FOLDER = Path(__file__).parent
_CALIBRATED = frozenset(read_description(FOLDER)["calibrated"])

# Storage formats of a linear layer's weights. checks.py reads them.
WeightFormat = Literal["plain", "fp8", "int8", "int4", "nvfp4"]

# ModelOpt's decoder type by model class. tests/builders exports each to both worlds from tiny
# random weights in every precision and compares tensor by tensor.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen",
}

# Position scalings that TensorRT-LLM computes like transformers.
ROPE_TYPES = ("default", "linear", "llama3")

# With fewer samples one odd prompt could decide a scale.
MIN_SAMPLES = 16
# TensorRT-LLM's quantize.py silently uses the same limit. AWQ searches a scale for each layer on
# every sample, and more samples only take more time.
AWQ_SAMPLES = 32


@dataclass(frozen=True)
class QuantisationRecipe:
    """How to make one precision."""

    precision: str
    # The preset's name in modelopt.torch.quantization; None: weights stay unchanged.
    preset: str | None
    format: WeightFormat
    # The alternatives if a world cannot run it, and if it differs too much from the checkpoint.
    instead: str
    higher: str
    # In these worlds trtllm-build quantises the weights.
    at_build: tuple[str, ...] = field(default=())

    @property
    def quant_algo(self) -> str | None:
        """QuantAlgo in config.json and hf_quant_config.json."""
        return precisions()[self.precision].quant_algo

    @property
    def worlds(self) -> tuple[str, ...]:
        """The worlds that can run it."""
        return precisions()[self.precision].worlds

    @property
    def calibrated(self) -> bool:
        """Whether activation ranges are measured."""
        return self.precision in _CALIBRATED

    @property
    def awq(self) -> bool:
        """Whether AWQ searches scales for blocks of weights."""
        return self.format == "int4" and self.calibrated

    @property
    def smoothquant(self) -> bool:
        """Whether SmoothQuant moves outliers of activations to the weights."""
        return self.format == "int8" and self.calibrated


# int8_wo and int4_wo: an engine's checkpoint has plain weights and names the algorithm.
# trtllm-build quantises them (TensorRT-LLM 1.2: quantize_by_modelopt.py writes W8A16/W4A16 over an
# unquantised export; models/modeling_utils.py, preprocess_perlayer_weights ->
# weight_only_quantize_dict; int8 weights count as packed). The PyTorch runtime loads ModelOpt's
# W8A16. For W4A16 it needs one scale per row, which ModelOpt cannot write: its int4 comes in
# blocks, named W4A16_AWQ, and that loader requires pre_quant_scale.
# int8_sq: the PyTorch runtime has no SmoothQuant (_torch/modules/linear.py, get_quant_method).
_RECIPES = (
    QuantisationRecipe("fp16", None, "plain", "bf16", "bf16"),
    QuantisationRecipe("bf16", None, "plain", "fp16", "fp16"),
    QuantisationRecipe("fp8", "FP8_DEFAULT_CFG", "fp8", "int8_wo", "fp16"),
    QuantisationRecipe("int8_sq", "INT8_SMOOTHQUANT_CFG", "int8", "fp8", "int8_wo"),
    QuantisationRecipe(
        "int8_wo", "INT8_WEIGHT_ONLY_CFG", "int8", "fp8", "fp16", at_build=("engine",)
    ),
    QuantisationRecipe("int4_wo", None, "int4", "int4_awq", "int4_awq", at_build=("engine",)),
    QuantisationRecipe("int4_awq", "INT4_AWQ_CFG", "int4", "int8_wo", "int8_wo"),
    QuantisationRecipe("w4a8_awq", "W4A8_AWQ_BETA_CFG", "int4", "int4_awq", "fp8"),
    QuantisationRecipe("nvfp4", "NVFP4_DEFAULT_CFG", "nvfp4", "int4_awq", "fp8"),
)
RECIPES = {recipe.precision: recipe for recipe in _RECIPES}

# ModelOpt's num_bits of each KV cache type.
KV_BITS: dict[str, int | tuple[int, int]] = {"fp8": (4, 3), "int8": 8}
# The largest number of each type. The scale is amax divided by it.
KV_LARGEST = {"fp8": 448.0, "int8": 127.0}
