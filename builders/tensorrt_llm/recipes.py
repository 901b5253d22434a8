# SPDX-License-Identifier: Apache-2.0
"""How each precision is made; builders/compatibility.toml has what runs it.

`engine`: compiled engines, TensorRT-LLM up to 1.2.1 (its own checkpoint format). `pytorch`: the
PyTorch runtime, from 1.3.0rc21 on the only one (unified Hugging Face checkpoints). Standard
library only. Keep the names equal to builder.toml.
"""

from dataclasses import dataclass, field
from typing import Literal

from buildlib.compatibility import precisions
from buildlib.request import World

# How the weights of a linear layer are stored, as checks.py takes them apart again.
Format = Literal["plain", "fp8", "int8", "int4", "nvfp4"]

# Model class -> ModelOpt's decoder type. Each was exported to both worlds from tiny random
# weights in every precision and compared tensor by tensor (tests/builders).
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen",
}

# Position scalings that TensorRT-LLM's own models compute as transformers does.
ROPE_TYPES = ("default", "linear", "llama3")

# Fewer say nothing about the ranges of activations: one odd prompt would decide a scale.
LEAST_SAMPLES = 16
# TensorRT-LLM's quantize.py silently stops there, too: AWQ searches a scale for each layer
# on every sample, and more of them change nothing but the time.
AWQ_SAMPLES = 32


@dataclass(frozen=True)
class Recipe:
    """How one precision is made."""

    precision: str
    # The preset's name in modelopt.torch.quantization; None: weights stay as they are.
    preset: str | None
    format: Format
    # Whether ranges of activations are measured.
    calibrated: bool
    # What to ask for where a world cannot run it, and when it answers too differently.
    instead: str
    higher: str
    # The weights are left to trtllm-build, in that world.
    at_build: tuple[World, ...] = field(default=())

    @property
    def quant_algo(self) -> str | None:
        """QuantAlgo in config.json and hf_quant_config.json."""
        return precisions()[self.precision].quant_algo

    @property
    def worlds(self) -> tuple[str, ...]:
        """The worlds that can run it."""
        return precisions()[self.precision].worlds

    @property
    def awq(self) -> bool:
        """Whether scales are searched by AWQ, in blocks of weights."""
        return self.format == "int4" and self.calibrated


# int8_wo and int4_wo: an engine's checkpoint has the plain weights and only names the algorithm,
# and trtllm-build quantises them (TensorRT-LLM 1.2: quantize_by_modelopt.py writes W8A16/W4A16
# over an unquantised export; models/modeling_utils.py, preprocess_perlayer_weights ->
# weight_only_quantize_dict; weights that are int8 already are taken for packed ones). The PyTorch
# runtime loads ModelOpt's W8A16; of W4A16 it wants one scale per row, which ModelOpt cannot write
# (its int4 comes in blocks, named W4A16_AWQ, and that loader insists on pre_quant_scale).
# int8_sq: the PyTorch runtime has no SmoothQuant (_torch/modules/linear.py, get_quant_method).
_RECIPES = (
    Recipe("fp16", None, "plain", False, "bf16", "bf16"),
    Recipe("bf16", None, "plain", False, "fp16", "fp16"),
    Recipe("fp8", "FP8_DEFAULT_CFG", "fp8", True, "int8_wo", "fp16"),
    Recipe("int8_sq", "INT8_SMOOTHQUANT_CFG", "int8", True, "fp8", "int8_wo"),
    Recipe("int8_wo", "INT8_WEIGHT_ONLY_CFG", "int8", False, "fp8", "fp16", at_build=("engine",)),
    Recipe("int4_wo", None, "int4", False, "int4_awq", "int4_awq", at_build=("engine",)),
    Recipe("int4_awq", "INT4_AWQ_CFG", "int4", True, "int8_wo", "int8_wo"),
    Recipe("w4a8_awq", "W4A8_AWQ_BETA_CFG", "int4", True, "int4_awq", "fp8"),
    Recipe("nvfp4", "NVFP4_DEFAULT_CFG", "nvfp4", True, "int4_awq", "fp8"),
)
RECIPES = {recipe.precision: recipe for recipe in _RECIPES}

# The types of the KV cache: number of bits as ModelOpt writes it.
KV_BITS: dict[str, int | tuple[int, int]] = {"fp8": (4, 3), "int8": 8}
# The largest number of each type: amax divided by it is the scale.
KV_LARGEST = {"fp8": 448.0, "int8": 127.0}
